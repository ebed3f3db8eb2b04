"""A large batch as arrays, whether it came as rows or as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_core.lazy_updates import LazyUpdates
from rebaser_core.plain_updates import PlainUpdates
from rebaser_core.table_updates import TableUpdates
from rebaser_core.updates import InputSignature, PutFunc
from rebaser_server.values.canonical_json import dumps, dumps_numbers
from rebaser_server.values.graph.columns import ID_BYTES
from rebaser_server.values.graph.ids import padded_ids

Mask = NDArray[np.bool_]
_TEXT = pa.large_string()
_ESCAPED = r'[\x00-\x1f"\\]'


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """Puts and sets of values, in their order; and puts of functions."""

    funcs: Sequence[PutFunc]
    raw_ids: NDArray[Any]
    names: pa.Array
    """`large_string`, null where there is none."""
    has_value: Mask
    """Whether the value is another than null."""
    texts_of: Callable[[Mask], pa.Array]
    """The canonical JSON texts of the values of these rows."""
    funcs_used: NDArray[np.int32]
    """Which of `func_ids` computes each row; -1: none, or it is a set."""
    func_ids: Sequence[str]
    signatures: NDArray[np.int64]
    """Which of `known_signatures` the inputs of each row have; 0: it has none."""
    known_signatures: Sequence[InputSignature]
    widths: NDArray[np.int64]
    """How many inputs each row has."""
    raw_inputs: NDArray[Any]
    """Every input, row after row, in the order of its arguments."""
    is_put: Mask

    @classmethod
    def of(cls, updates: LazyUpdates) -> "BatchArrays | None":
        """The arrays; None if there is something in it that they cannot hold."""
        if isinstance(updates, PlainUpdates):
            return _of_rows(updates)
        return _of_table(updates) if isinstance(updates, TableUpdates) else None


def _of_rows(updates: PlainUpdates) -> BatchArrays:
    columns = updates.columns
    func_ids = {func_id: None for func_id in columns.func_ids if func_id is not None}
    places = {None: -1} | {func_id: place for place, func_id in enumerate(func_ids)}
    signatures = np.array(columns.signatures, np.int64)

    def texts_of(rows: Mask) -> pa.Array:
        return pa.array(list(map(dumps, compress(columns.values, rows.tolist()))), _TEXT)

    return BatchArrays(
        funcs=columns.funcs,
        raw_ids=_padded(columns.ids),
        names=pa.array(columns.names, _TEXT),
        has_value=np.array([value is not None for value in columns.values], np.bool_),
        texts_of=texts_of,
        funcs_used=np.array([places[func_id] for func_id in columns.func_ids], np.int32),
        func_ids=list(func_ids),
        signatures=signatures,
        known_signatures=list(columns.known_signatures),
        widths=np.array(columns.widths, np.int64)[signatures],
        raw_inputs=_padded(columns.input_ids),
        is_put=np.array(columns.is_put, np.bool_),
    )


def _padded(ids: Sequence[str]) -> NDArray[Any]:
    return np.frombuffer("".join(ids).encode(), f"S{ID_BYTES}")


def _of_table(updates: TableUpdates) -> BatchArrays | None:
    funcs = [update for update in updates.before if isinstance(update, PutFunc)]
    if len(funcs) < len(updates.before):
        return None
    encoded = updates.func_ids.dictionary_encode()
    values = updates.values

    def texts_of(rows: Mask) -> pa.Array:
        return _texts(values.filter(pa.array(rows)), is_json=updates.is_json)

    is_null = pc.equal(values, "null") if updates.is_json else values.is_null()
    signatures, known = _signatures(updates)
    return BatchArrays(
        funcs=funcs,
        raw_ids=padded_ids(updates.ids),
        names=updates.names.cast(_TEXT),
        has_value=~_mask(is_null),
        texts_of=texts_of,
        funcs_used=encoded.indices.fill_null(-1).to_numpy(),
        func_ids=encoded.dictionary.to_pylist(),
        signatures=signatures,
        known_signatures=known,
        widths=sum((_widths(column) for column in updates.inputs.values()), _zeros(updates)),
        raw_inputs=_raw_inputs(updates),
        is_put=~_mask(updates.is_set),
    )


def _mask(values: pa.Array) -> Mask:
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask


def _zeros(updates: TableUpdates) -> NDArray[np.int64]:
    return np.zeros(updates.row_count, np.int64)


def _texts(values: pa.Array, *, is_json: bool) -> pa.Array:
    kind = values.type
    if is_json:
        return values.cast(_TEXT)
    if kind == pa.string():
        texts = _quoted(values)
    elif kind == pa.bool_():
        texts = values.cast(_TEXT)
    else:
        texts = dumps_numbers(values.fill_null(0).to_numpy())
    return texts if not values.null_count else pc.if_else(values.is_null(), "null", texts)


def _quoted(values: pa.Array) -> pa.Array:
    values = values.cast(_TEXT).fill_null("")
    quote = pa.scalar('"', _TEXT)
    quoted = pc.binary_join_element_wise(quote, values, quote, pa.scalar("", _TEXT))
    is_escaped = pc.match_substring_regex(values, _ESCAPED)
    if not is_escaped.true_count:
        return quoted
    escaped = pa.array(list(map(dumps, values.filter(is_escaped).to_pylist())), _TEXT)
    return pc.replace_with_mask(quoted, is_escaped, escaped)


def _widths(column: pa.Array) -> NDArray[np.int64]:
    """How many inputs each row has in this argument."""
    if not pa.types.is_list(column.type):
        return _mask(column.is_valid()).astype(np.int64)
    lengths: NDArray[Any] = pc.list_value_length(column).fill_null(0).to_numpy()
    return lengths.astype(np.int64)


def _signatures(updates: TableUpdates) -> tuple[NDArray[np.int64], list[InputSignature]]:
    columns = updates.inputs
    shapes = _zeros(updates)
    for column in columns.values():
        shape = np.where(_mask(column.is_valid()), _widths(column) + 1, 0)
        combined = shapes * (shape.max(initial=0) + 1) + shape
        shapes = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    _, firsts, groups = np.unique(shapes, return_index=True, return_inverse=True)
    known: dict[InputSignature, int] = {(): 0}
    places = [known.setdefault(_signature_at(columns, int(row)), len(known)) for row in firsts]
    return np.array(places, np.int64)[groups], list(known)


def _signature_at(columns: dict[str, pa.Array], row: int) -> InputSignature:
    return tuple(
        (argument, len(column[row]) if pa.types.is_list(column.type) else None)
        for argument, column in columns.items()
        if column[row].is_valid
    )


def _raw_inputs(updates: TableUpdates) -> NDArray[Any]:
    flat = [
        padded_ids(pc.list_flatten(column) if pa.types.is_list(column.type) else column.drop_null())
        for column in updates.inputs.values()
    ]
    if len(flat) == 1:
        return flat[0]
    widths = [_widths(column) for column in updates.inputs.values()]
    in_all = sum(widths, _zeros(updates))
    starts = np.cumsum(in_all) - in_all
    raw = np.empty(int(in_all.sum()), f"S{ID_BYTES}")
    for ids, width in zip(flat, widths, strict=True):
        before = np.cumsum(width) - width
        raw[np.arange(len(ids)) + np.repeat(starts - before, width)] = ids
        starts = starts + width
    return raw
