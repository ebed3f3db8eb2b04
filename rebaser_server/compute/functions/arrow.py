"""Functions of tables as Arrow has them: a call in the evaluator's process, with files in and out.

The planner hands over an `ArrowCall` and a place to write to. A result that is a table is written
there, and the planner makes it a table of the store; any other result is a plain value.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pybase64 import b64decode, b64encode_as_string

from rebaser_client.arrow_batches import read_frame
from rebaser_core.table_schemas import (
    NotATable,
    arrow_schema,
    cast,
    first_line,
    kept_schema,
    spark_fields,
)
from rebaser_core.table_values import TABLE, is_table
from rebaser_server.compute.errors import TableRefused, describe
from rebaser_server.compute.json_values import (
    NotJson,
    ReadOnlyDict,
    ReadOnlyList,
    as_result,
    read_only,
)
from rebaser_server.files import SharedFiles, is_of_store
from rebaser_server.tables import Attempt, Manifest, TableFiles, TableMissing, Written
from rebaser_server.values.canonical_json import dumps, loads
from rebaser_server.values.column_hashes import ContentDigest

MAX_TABLE_BYTES: Final = 64 << 20
"""Maximum bytes of a table that a function takes or returns, in memory."""
CALL: Final = "call"
"""Name of the one argument with which an evaluator calls such a function."""
_WRITTEN: Final = "written"
_BROKEN: Final = "broken"


class InputTable(NamedTuple):
    """A table in place of an argument's value."""

    workspace: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ArrowCall:
    """A call, for the process that makes it."""

    files: SharedFiles
    arguments: dict[str, Any]
    """JSON, or an `InputTable`, or a list of both."""
    target: Attempt

    def encode(self) -> str:
        return b64encode_as_string(pickle.dumps(self))


class Outcome(NamedTuple):
    """Answer of the evaluator about a call that did not fail."""

    value: Any = None
    """The result, if it is plain JSON."""
    written: Written | None = None
    """Rows that were written, if the result is a table."""
    broken: str | None = None
    """Error of the store, because of which there is no result."""

    @classmethod
    def of(cls, value: Any) -> "Outcome":
        if not is_table(value):
            return cls(value)
        written = value[TABLE].get(_WRITTEN)
        return cls(None, written and Written.decode(loads(written)), value[TABLE].get(_BROKEN))


def callable_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an evaluator calls with an encoded `ArrowCall`; its result is for `Outcome.of`.

    It raises what the function raises, and `NotJson` for a result that cannot be kept.
    """

    def run(*, call: str) -> Any:
        given: ArrowCall = pickle.loads(b64decode(call))  # noqa: S301 - from the planner
        tables = TableFiles(given.files)
        try:
            arguments = {
                name: _argument(tables, name, value) for name, value in given.arguments.items()
            }
        except OSError as error:
            return _answer(_BROKEN, describe(error))
        result = function(**arguments)
        if not hasattr(type(result), "__arrow_c_stream__"):
            return require_plain(
                result,
                "a pyarrow.Table or what has __arrow_c_stream__, as frames have, and of a scalar "
                "its as_py()",
            )
        try:
            schema, batches = _rows_of(result)
        except NotATable as error:
            raise NotJson(str(error)) from None
        digest = ContentDigest()
        for batch in batches:
            digest.add(batch)
        try:
            with _refusing("the result cannot be kept: "):
                files = tables.write(given.target, schema, batches)
        except OSError as error:
            return _answer(_BROKEN, describe(error))
        written = Written(spark_fields(schema), digest.rows, digest.text, files)
        return _answer(_WRITTEN, dumps(written.encode()))

    return run


def _answer(kind: str, text: str) -> Any:
    return read_only({TABLE: {kind: text}})  # a plain object of this kind is no result


def too_large(what: str) -> str:
    """Return the message about a table that is larger than `MAX_TABLE_BYTES`."""
    return (
        f"{what} has more than {MAX_TABLE_BYTES >> 20} MiB, the most that a function of runtime "
        "`arrow` takes or returns: use `sql`"
    )


def _argument(tables: TableFiles, name: str, value: Any) -> Any:
    if isinstance(value, InputTable):
        return _table(tables, name, value)
    if isinstance(value, list):
        return [_argument(tables, name, each) for each in value]
    return read_only(value)


def _table(tables: TableFiles, name: str, given: InputTable) -> pa.Table:
    workspace, manifest = given
    names = [field["name"] for field in manifest.fields]
    with _refusing(f"table {name!r} cannot be read: "):
        batches = tables.batches(workspace, manifest, names)
        bounded = list(_bounded(batches, f"table {name!r}"))
        return pa.Table.from_batches(bounded, arrow_schema(manifest.fields)).combine_chunks()


@contextmanager
def _refusing(before: str = "") -> Iterator[None]:
    """Raise `TableRefused` where the rows are at fault, and not store or memory."""
    try:
        yield
    except (NotATable, TableMissing, pa.ArrowException, OSError) as error:
        if is_of_store(error):
            raise
        raise TableRefused(f"{before}{first_line(error)}") from None


def _bounded(batches: Iterable[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_TABLE_BYTES:
            raise TableRefused(too_large(what))
        yield batch


def require_plain(result: Any, wanted: str) -> Any:
    """Return the result, which is no table. Raises `NotJson`: it is not JSON, but `wanted`."""
    if is_table(result):
        raise NotJson(f"an object with the key {TABLE}: return the table itself")
    if type(result) not in _JSON:
        raise NotJson(f"{type(result).__name__} is neither JSON nor a table: return {wanted}")
    return as_result(result)


_JSON: Final = (NoneType, bool, int, float, str, list, dict, ReadOnlyList, ReadOnlyDict)


def _rows_of(result: Any) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Return the rows as a table keeps them. Raises `NotATable`."""
    try:
        reader = read_frame(result)
    except NotATable as error:
        raise NotATable(f"{type(result).__name__} is no table: {first_line(error)}") from None
    schema = kept_schema(reader.schema)
    batches = list(_bounded((cast(batch, schema) for batch in reader), "the result"))
    for number, field in enumerate(schema):
        if not field.nullable and any(batch.column(number).null_count for batch in batches):
            raise NotATable(f"column {field.name!r} is not nullable, and has nulls")
    return schema, batches
