"""The columns of a table of updates: their names, their types, and texts of JSON in them."""

from collections.abc import Callable
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import DIGITS, ID_LENGTH
from rebaser_core.plain_json import MAX_DEPTH
from rebaser_core.updates import MAX_ARGUMENT

MAX_ARGUMENTS: Final = 64
"""Arguments in the column `inputs`. Each may be a list, of any length."""
TEXT: Final = pa.string()
"""The one type of text that a table has."""


def is_text(kind: pa.DataType) -> bool:
    return bool(kind == TEXT)


def _is_value(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.float64(), pa.bool_(), TEXT)


_COLUMNS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "id": is_text,
    "name": is_text,
    "value": _is_value,
    "json": is_text,
    "function": is_text,
    "inputs": pa.types.is_struct,
    "set": pa.types.is_boolean,
}


def require_columns(schema: pa.Schema) -> None:
    names = schema.names
    if "id" not in names or len(set(names)) < len(names) or {"value", "json"} <= set(names):
        raise MalformedMessage(
            f"a table with the columns {', '.join(names)[:200]}; it has `id`, each of the others "
            "once, and not both `value` and `json`"
        )
    for field in schema:
        is_right = _COLUMNS.get(field.name)
        if is_right is None:
            known = ", ".join(_COLUMNS)
            raise MalformedMessage(f"a table with a column {field.name[:80]!r}; there are {known}")
        if not is_right(field.type):
            raise MalformedMessage(f"a table with {field.name!r} of type {field.type!s:.80}")


def column_or_nulls(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    return rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows, kind)


def arguments_in(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    if "inputs" not in rows.schema.names:
        return {}
    inputs = rows.column("inputs")
    names = [field.name for field in inputs.type]
    if len(names) > MAX_ARGUMENTS or len(set(names)) < len(names):
        raise MalformedMessage(
            f"a table with {len(names)} arguments in `inputs`; at most {MAX_ARGUMENTS}, each once"
        )
    for field in inputs.type:
        if not 0 < len(field.name) <= MAX_ARGUMENT:
            raise MalformedMessage(f"a table with an argument of {len(field.name)} characters")
        kind = field.type
        if not is_text(kind) and not (pa.types.is_list(kind) and is_text(kind.value_type)):
            raise MalformedMessage(f"a table with `inputs.{field.name}` of type {kind!s:.80}")
    return dict(zip(names, inputs.flatten(), strict=True))


def are_ids(cells: pa.Array) -> bool:
    """Whether each is a ULID in its canonical text: all at once, as one text."""
    if not len(cells):
        return True
    widths = pc.min_max(pc.binary_length(cells)).as_py()
    if cells.null_count or widths != {"min": ID_LENGTH, "max": ID_LENGTH}:
        return False
    _, bounds, texts = cells.buffers()
    start = memoryview(bounds).cast("i")[cells.offset]
    text = texts.slice(start, len(cells) * ID_LENGTH).to_pybytes()
    return not text.translate(None, DIGITS) and not text[::ID_LENGTH].translate(None, DIGITS[:8])


def canonical_texts(cells: pa.Array) -> pa.Array:
    """The JSON of each cell as the values of a graph have it; null where a cell is null."""
    texts = pc.fill_null(cells, "null").to_pylist()
    try:
        values = list(map(orjson.loads, texts))
    except ValueError:
        values = [None] * len(texts)
    canonical = [orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() for value in values]
    for row, text in enumerate(texts):
        if canonical[row] != text:  # orjson reads what is no JSON of ours: keys twice, 10**30
            values[row] = codecs.loads(codecs.JSON, text.encode())
            codecs.validate_json(values[row])
            canonical[row] = orjson.dumps(values[row], option=orjson.OPT_SORT_KEYS).decode()
    codecs.validate_json(values, MAX_DEPTH + 1)  # the list of them is one level
    return pa.array(canonical, TEXT)
