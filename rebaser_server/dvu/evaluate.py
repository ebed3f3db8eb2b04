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
from rebaser_server.dvu.results import MAX_MESSAGE
from rebaser_server.dvu.rows import Rows
from rebaser_server.dvu.runs import highest_refs, runs
from rebaser_server.dvu.wide import Wide

__all__ = [
    "MAX_MESSAGE",
    "Evaluation",
    "Outcome",
    "Result",
    "decode_outcome",
    "evaluate",
    "evaluated",
]


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
    evaluation = Evaluation(blob, watch, vectorised=vectorised)
    evaluation.advance(len(blob))
    return evaluation.found()


class Evaluation:
    """A blob's values, computed from the first on as far as is asked for."""

    def __init__(self, blob: Blob, watch: Watch, *, vectorised: bool = True) -> None:
        self._blob = blob
        self._watch = watch
        count = len(blob)
        self._functions = [_callable(runtime, code) for runtime, code in blob.functions]
        self._forms = [
            form_of(runtime, code) if runtime and vectorised else None
            for runtime, code in blob.functions
        ]
        widths = blob.widths()
        self._highest = highest_refs(blob.refs, widths)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(widths, out=starts[1:])
        refs = blob.refs.astype(np.int64)
        np.subtract(count - 1, refs, out=refs, where=refs < 0)
        self._wiring = refs, starts
        self._cells = Cells(blob)
        self._changed_bytes = bytearray(count + len(blob.constant_known))
        self._changed = np.frombuffer(self._changed_bytes, np.bool_)
        self.done = 0
        """Values computed, or found not to be due."""
        self._begin()

    def _begin(self) -> None:
        self._found = self.done
        blob, wiring = self._blob, self._wiring
        self._rows = Rows(
            blob, self._cells, wiring, self._changed_bytes, self._functions, self._watch
        )
        self._wide = Wide(
            blob, self._cells, wiring, self._changed, self._forms, self._rows, self._watch
        )

    def advance(self, count: int) -> None:
        """Compute the next `count` values, or as many as there are."""
        stop = min(self.done + count, len(self._blob))
        with self._watch.watching():
            for start, end, is_wide in runs(self._highest, self.done, stop):
                if is_wide:
                    self._wide.run(start, end)
                else:
                    self._rows.in_order(start, end)
        self.done = stop

    def found(self) -> Outcome:
        """What became of the values computed since this was asked last."""
        recomputed = self._wide.recomputed + self._rows.results.blocked + sum(self._rows.calls)
        outcome = Outcome(recomputed, self._table(self._found, self.done), self._costs())
        self._cells.forget_objects()
        self._begin()
        return outcome

    def _table(self, start: int, stop: int) -> pa.Table:
        results, cells, ids = self._rows.results, self._cells, self._blob.ids
        is_found = self._changed[start:stop] & (cells.kinds[start:stop] != NONE)
        places = np.flatnonzero(is_found) + start
        statuses = np.full(len(places), OK, np.uint8)
        texts = cells.all_texts_at(places)
        if results.places:
            places = np.concatenate([places, np.array(results.places, np.int64)])
            statuses = np.concatenate([statuses, np.array(results.statuses, np.uint8)])
            order = np.argsort(places)
            texts = pa.concat_arrays([texts, pa.array(results.texts, pa.string())]).take(order)
            places, statuses = places[order], statuses[order]
        ids = ids[start:stop] if len(places) == stop - start else ids.take(places)
        return pa.table([ids, statuses, texts, places.astype(np.int32)], schema=SCHEMA)

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
