"""Computes the values of one blob: pure, in whichever process it is called."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.evaluate.call_watchdog import Watch
from rebaser_server.compute.evaluate.scalar import Rows
from rebaser_server.compute.evaluate.vector import Wide
from rebaser_server.compute.failure_text import MAX_MESSAGE
from rebaser_server.compute.functions.runtimes import form_of, resolve
from rebaser_server.compute.units.buffers import KIND
from rebaser_server.compute.units.culprits import FAILED_RUNTIME
from rebaser_server.compute.units.segments import highest_refs, runs
from rebaser_server.compute.units.unit_result import (
    SCHEMA,
    Costs,
    Outcome,
    Result,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.compute.units.value_buffers import NONE, Cells
from rebaser_server.compute.units.work_unit import OK, Blob, size

if TYPE_CHECKING:
    from rebaser_server.compute.evaluate.forked_evaluation import GuardedEvaluation

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
    evaluation = evaluation_of(Blob.decode(blob))
    evaluation.advance(size(blob))
    return encode_outcome(evaluation.found())


def evaluation_of(blob: Blob) -> "Evaluation | GuardedEvaluation":
    """Of this blob; in processes that may end if it asks for that."""
    if blob.limits.is_guarded:
        from rebaser_server.compute.evaluate.forked_evaluation import GuardedEvaluation  # noqa: PLC0415 - it imports this

        return GuardedEvaluation(blob)
    return Evaluation(blob, Watch(blob.limits))


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
        functions = [_callable(runtime, code) for runtime, code in blob.functions]
        forms = [
            form_of(runtime, code) if runtime and vectorised else None
            for runtime, code in blob.functions
        ]
        widths = blob.widths()
        self._highest = highest_refs(blob.refs, widths)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(widths, out=starts[1:])
        refs = blob.refs.astype(np.int64)
        np.subtract(count - 1, refs, out=refs, where=refs < 0)
        wiring = refs, starts
        self._cells = Cells(blob)
        changed = bytearray(count + len(blob.constant_known))
        self._changed = np.frombuffer(changed, np.bool_)
        self._rows = Rows(blob, self._cells, wiring, changed, functions, watch)
        self._wide = Wide(blob, self._cells, wiring, self._changed, forms, self._rows, watch)
        self.done = 0
        """Values computed, or found not to be due."""
        self._step = 0, 0
        """Values of the call of `advance` that goes on, and calls of functions before it."""

    @property
    def ahead(self) -> int:
        """Values computed beyond `done`, at least, while `advance` goes on on another thread."""
        count, before = self._step
        return max(0, min(self._called() - before, count) - 1)

    def _called(self) -> int:
        return self._wide.recomputed + sum(self._rows.calls) + len(self._rows.found)

    def advance(self, count: int) -> None:
        """Compute the next `count` values, or as many as there are."""
        stop = min(self.done + count, len(self._blob))
        self._step = stop - self.done, self._called()
        with self._watch.watching():
            for start, end, is_wide in runs(self._highest, self.done, stop):
                if is_wide:
                    self._wide.run(start, end)
                else:
                    self._rows.in_order(start, end)
        self.done, self._step = stop, (0, 0)

    def found(self) -> Outcome:
        """What became of the values so far."""
        recomputed = self._wide.recomputed + self._rows.results.blocked + sum(self._rows.calls)
        return Outcome(recomputed, self._table(), self._costs())

    def _table(self) -> pa.Table:
        results, cells, ids = self._rows.results, self._cells, self._blob.ids
        places = np.flatnonzero(self._changed[: self.done] & (cells.kinds[: self.done] != NONE))
        statuses = np.full(len(places), OK, np.uint8)
        texts = cells.all_texts_at(places)
        if results.places:
            places = np.concatenate([places, np.array(results.places, np.int64)])
            statuses = np.concatenate([statuses, np.array(results.statuses, np.uint8)])
            order = np.argsort(places)
            texts = pa.concat_arrays([texts, pa.array(results.texts, KIND)]).take(order)
            places, statuses = places[order], statuses[order]
        columns = [ids if len(places) == len(ids) else ids.take(places), statuses, texts]
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
