"""Computes the values of one blob: pure, in whichever process it is called."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.dvu.blob import OK, Blob
from rebaser_server.dvu.cells import NONE, TEXT, Cells, Places
from rebaser_server.dvu.culprits import FAILED_RUNTIME
from rebaser_server.dvu.errors import FunctionMissing
from rebaser_server.dvu.functions import form_of, resolve
from rebaser_server.dvu.limits import IDLE, TimeLimitExceeded, Watch
from rebaser_server.dvu.outcome import (
    SCHEMA,
    Costs,
    Outcome,
    Result,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.dvu.rows import MAX_MESSAGE, Rows
from rebaser_server.dvu.runs import WIDE, highest_refs, runs
from rebaser_server.dvu.vectorised import Form, Found, any_of, arguments_of

__all__ = ["MAX_MESSAGE", "Outcome", "Result", "decode_outcome", "evaluate", "evaluated"]


def evaluate(blob: bytes) -> bytes:
    """The `Outcome` of an encoded `Blob`, encoded.

    A function that raises fails its value and blocks what depends on it, and nothing else;
    likewise one that exceeds the blob's limits. Values are computed if they are forced or an
    input comes out changed, which is to say: with another value, or with one where there was
    none, or the other way round.
    """
    decoded = Blob.decode(blob)
    if decoded.limits.is_guarded:
        from rebaser_server.dvu.guard import evaluated_guarded  # noqa: PLC0415 - it imports this

        return encode_outcome(evaluated_guarded(decoded))
    return encode_outcome(evaluated(decoded, Watch(decoded.limits)))


def evaluated(blob: Blob, watch: Watch, *, vectorised: bool = True) -> Outcome:
    """`evaluate` without the bytes.

    `vectorised`: whether functions may be called for many values at once, which changes
    nothing but how long it takes.
    """
    with watch.watching():
        return _Evaluation(blob, watch, vectorised=vectorised).run()


class _Evaluation:
    def __init__(self, blob: Blob, watch: Watch, *, vectorised: bool) -> None:
        self._blob = blob
        self._watch = watch
        count = len(blob)
        self._functions = [_callable(runtime, code) for runtime, code in blob.functions]
        self._forms: list[Form | None] = [
            form_of(runtime, code) if runtime and vectorised else None
            for runtime, code in blob.functions
        ]
        self._widths = blob.widths()
        self._starts = np.cumsum(self._widths) - self._widths
        self._refs = np.where(blob.refs < 0, count + ~blob.refs, blob.refs).astype(np.int64)
        self._cells = Cells(blob)
        changed = bytearray(count + len(blob.constant_known))
        self._changed = np.frombuffer(changed, np.bool_)
        self._rows = Rows(blob, self._cells, self._refs, changed, self._functions, watch)
        self._recomputed = 0
        self._done: list[Places] = []
        self._calls = [0] * len(self._functions)
        self._seconds = [0.0] * len(self._functions)

    def run(self) -> Outcome:
        for start, end, is_wide in runs(highest_refs(self._blob.refs, self._widths)):
            if is_wide:
                self._wide(start, end)
            else:
                self._rows.in_order(start, end)
        return Outcome(self._recomputed + self._rows.recomputed, self._table(), self._costs())

    def _wide(self, start: int, end: int) -> None:
        """Compute a run of values, none of which is an input of another."""
        calls = self._blob.calls[start:end]
        places = np.arange(start, end)
        if (np.diff(calls) < 0).any():
            places = places[np.argsort(calls, kind="stable")]
            calls = self._blob.calls[places]
        bounds = [0, *(np.flatnonzero(np.diff(calls)) + 1).tolist(), len(calls)]
        for first, last in pairwise(bounds):
            self._of_one_signature(int(calls[first]), places[first:last])

    def _of_one_signature(self, call: int, places: Places) -> None:
        width = int(self._widths[places[0]])
        refs = self._refs_of(places, width)
        forced = self._blob.forced[places]
        if not forced.all():
            due = forced | any_of(self._changed[refs])
            places, refs = places[due], refs[due]
        form = self._forms[self._blob.signatures[call][0]]
        if form is not None and len(places) >= WIDE:
            left = self._at_once(form, call, places, refs)
            places, refs = places[left], refs[left]
        self._rows.all_of(places, refs)

    def _refs_of(self, places: Places, width: int) -> Places:
        first = int(self._starts[places[0]])
        if places[-1] - places[0] == len(places) - 1:
            return self._refs[first : first + len(places) * width].reshape(len(places), width)
        matrix: Places = self._refs[self._starts[places][:, None] + np.arange(width)]
        return matrix

    def _at_once(self, form: Form, call: int, places: Places, refs: Places) -> Places:
        """Compute those of these that the form can; return the others, by position."""
        function, shape = self._blob.signatures[call]
        started = time.perf_counter()
        arguments, complete = arguments_of(self._cells, shape, refs)
        limited = self._limited if self._blob.functions[function][0] == "python" else _unlimited
        try:
            with np.errstate(all="ignore"), limited(int(places[0])):
                found = form(arguments, len(places))
        except (Exception, TimeLimitExceeded):  # noqa: BLE001 - one by one, each tells what is wrong
            return np.arange(len(places))
        self._require_sound(found)
        # What has an input without a value is blocked, whatever the form makes of that.
        done = found.kinds != NONE
        if complete is not None:
            done &= complete
        count = int(np.count_nonzero(done))
        self._calls[function] += count
        self._seconds[function] += time.perf_counter() - started
        self._recomputed += count
        self._write(places, found, done)
        return np.flatnonzero(~done)

    @contextmanager
    def _limited(self, place: int) -> Iterator[None]:
        """Hold all calls at once to the limits of one: beyond, they are made one by one."""
        place_now = self._watch.place
        with self._watch.headroom():
            try:
                place_now[0] = place
                yield
            finally:
                place_now[0] = IDLE

    def _require_sound(self, found: Found) -> None:
        if found.chosen is not None:
            texts = np.flatnonzero(found.kinds == TEXT)
            self._cells.require_sound(np.unique(found.chosen[texts]))

    def _write(self, places: Places, found: Found, done: NDArray[np.bool_]) -> None:
        cells = self._cells
        is_new = (cells.kinds[places] != found.kinds) | (cells.bits[places] != found.bits)
        if found.chosen is not None:
            same = np.flatnonzero(done & ~is_new & (found.kinds == TEXT))
            one, other = cells.texts_at(places[same]), cells.texts_at(found.chosen[same])
            is_new[same] = pa.compute.not_equal(one, other).to_numpy(zero_copy_only=False)
        is_new &= done
        written = places[is_new]
        cells.kinds[written] = found.kinds[is_new]
        cells.bits[written] = found.bits[is_new]
        if found.chosen is not None:
            cells.choose(written, found.chosen[is_new])
        self._changed[written] = True
        self._done.append(written)

    def _table(self) -> pa.Table:
        rows = self._rows
        done = np.concatenate([np.empty(0, np.int64), *self._done])
        places = np.concatenate([done, np.array(rows.places, np.int64)])
        statuses = np.concatenate(
            [np.full(len(done), OK, np.uint8), np.array(rows.statuses, np.uint8)]
        )
        texts = pa.array(rows.texts, pa.string())
        if len(done):
            texts = pa.concat_arrays([self._cells.all_texts_at(done), texts])
        if (np.diff(places) < 0).any():
            order = np.argsort(places)
            places, statuses, texts = places[order], statuses[order], texts.take(order)
        ids = self._blob.ids
        columns = [ids if len(places) == len(ids) else ids.take(places), statuses, texts]
        return pa.table([*columns, places.astype(np.int32)], schema=SCHEMA)

    def _costs(self) -> Costs:
        rows, costs = self._rows, Costs()
        for index, (runtime, code) in enumerate(self._blob.functions):
            calls, seconds = self._calls[index], self._seconds[index]
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


def _unlimited(_place: int) -> AbstractContextManager[None]:
    return nullcontext()


def _missing(message: str, /, **_arguments: Any) -> Any:
    raise FunctionMissing(message)
