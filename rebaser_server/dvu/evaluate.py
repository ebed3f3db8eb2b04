"""Computes the values of one blob: pure, in whichever process it is called."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.dvu.blob import OK, Blob
from rebaser_server.dvu.cells import NONE, Cells
from rebaser_server.dvu.culprits import FAILED_RUNTIME
from rebaser_server.dvu.errors import FunctionMissing
from rebaser_server.dvu.functions import form_of, resolve
from rebaser_server.dvu.limits import Watch
from rebaser_server.dvu.outcome import (
    SCHEMA,
    Costs,
    Outcome,
    Result,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.dvu.rows import MAX_MESSAGE, Rows
from rebaser_server.dvu.runs import highest_refs, runs
from rebaser_server.dvu.wide import Wide

__all__ = ["MAX_MESSAGE", "Outcome", "Result", "decode_outcome", "evaluate", "evaluated"]


def evaluate(blob: bytes | memoryview) -> pa.Buffer:
    """The `Outcome` of an encoded `Blob`, encoded.

    A function that raises fails its value and blocks what depends on it, and nothing else;
    likewise one that exceeds the blob's limits. Values are computed if they are forced or an
    input comes out changed, which is to say: with another value, or with one where there was
    none, or the other way round.
    """
    return encode_outcome(outcome_of(Blob.decode(blob)))


def outcome_of(blob: Blob) -> Outcome:
    """`evaluate` without the bytes."""
    if blob.limits.is_guarded:
        from rebaser_server.dvu.guard import evaluated_guarded  # noqa: PLC0415 - it imports this

        return evaluated_guarded(blob)
    return evaluated(blob, Watch(blob.limits))


def evaluated(blob: Blob, watch: Watch, *, vectorised: bool = True) -> Outcome:
    """What becomes of a blob in this process.

    `vectorised`: whether functions may be called for many values at once, which changes
    nothing but how long it takes.
    """
    with watch.watching():
        return _Evaluation(blob, watch, vectorised=vectorised).run()


class _Evaluation:
    def __init__(self, blob: Blob, watch: Watch, *, vectorised: bool) -> None:
        self._blob = blob
        count = len(blob)
        functions = [_callable(runtime, code) for runtime, code in blob.functions]
        forms = [
            form_of(runtime, code) if runtime and vectorised else None
            for runtime, code in blob.functions
        ]
        self._widths = blob.widths()
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(self._widths, out=starts[1:])
        refs = blob.refs.astype(np.int64)
        np.subtract(count - 1, refs, out=refs, where=refs < 0)
        self._cells = Cells(blob)
        changed = bytearray(count + len(blob.constant_known))
        self._changed = np.frombuffer(changed, np.bool_)
        wiring = refs, starts
        self._rows = Rows(blob, self._cells, wiring, changed, functions, watch)
        self._wide = Wide(blob, self._cells, wiring, self._changed, forms, self._rows, watch)

    def run(self) -> Outcome:
        for start, end, is_wide in runs(highest_refs(self._blob.refs, self._widths)):
            if is_wide:
                self._wide.run(start, end)
            else:
                self._rows.in_order(start, end)
        recomputed = self._wide.recomputed + self._rows.blocked + sum(self._rows.calls)
        return Outcome(recomputed, self._table(), self._costs())

    def _table(self) -> pa.Table:
        rows, cells, ids = self._rows, self._cells, self._blob.ids
        count = len(self._blob)
        places = np.flatnonzero(self._changed[:count] & (cells.kinds[:count] != NONE))
        statuses = np.full(len(places), OK, np.uint8)
        texts = cells.all_texts_at(places)
        if rows.places:
            places = np.concatenate([places, np.array(rows.places, np.int64)])
            statuses = np.concatenate([statuses, np.array(rows.statuses, np.uint8)])
            order = np.argsort(places)
            texts = pa.concat_arrays([texts, pa.array(rows.texts, pa.string())]).take(order)
            places, statuses = places[order], statuses[order]
        columns = [ids if len(places) == count else ids.take(places), statuses, texts]
        return pa.table([*columns, places.astype(np.int32)], schema=SCHEMA)

    def _costs(self) -> Costs:
        rows, wide, costs = self._rows, self._wide, Costs()
        for index, (runtime, code) in enumerate(self._blob.functions):
            calls, seconds = wide.calls[index], wide.seconds[index]
            if rows.timed[index]:
                seconds += rows.seconds[index] / rows.timed[index] * rows.calls[index]
            if runtime is not None and calls + rows.calls[index]:
                costs[runtime, code] = calls + rows.calls[index], seconds
        return costs


def _callable(runtime: str | None, code: str) -> Callable[..., Any]:
    try:
        if runtime is None:
            raise FunctionMissing(f"function {code} does not exist")
        if runtime == FAILED_RUNTIME:
            raise FunctionMissing(code)
        return resolve(runtime, code)
    except FunctionMissing as error:
        return partial(_missing, str(error))


def _missing(message: str, /, **_arguments: Any) -> Any:
    raise FunctionMissing(message)
