"""Computes many values of one signature at once, where their function has a form for that."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.evaluate.call_watchdog import IDLE, Watch
from rebaser_server.compute.evaluate.scalar import Rows
from rebaser_server.compute.functions.vector_functions import (
    Form,
    Found,
    Uniform,
    any_of,
    arguments_of,
)
from rebaser_server.compute.units.segments import WIDE
from rebaser_server.compute.units.value_buffers import NONE, TEXT, Cells, Places
from rebaser_server.compute.units.work_unit import Blob

Where: TypeAlias = "slice | Places"
"""Places: a slice of those that follow one another, which costs much less."""


class Wide:
    """Which values come out changed is noted in `changed`; what they are, in the cells."""

    def __init__(
        self,
        blob: Blob,
        cells: Cells,
        wiring: tuple[Places, Places],
        is_changed: NDArray[np.bool_],
        forms: list[Form | None],
        rows: Rows,
        watch: Watch,
    ) -> None:
        """`wiring`: the place of each ref, and where the refs of each value begin and end."""
        self._blob = blob
        self._cells = cells
        self._refs, self._starts = wiring
        self._changed = is_changed
        self._forms = forms
        self._rows = rows
        self._watch = watch
        self._all_forced = bool(blob.forced.all())
        self.recomputed = 0
        self.calls = [0] * len(forms)
        """By function; and the seconds that they took in all."""
        self.seconds = [0.0] * len(forms)

    def run(self, start: int, end: int) -> None:
        """Compute the values from `start` to `end` that are due; none is an input of another."""
        calls = self._blob.calls[start:end]
        if (calls == calls[0]).all():
            self._of_one_signature(int(calls[0]), slice(start, end))
            return
        places = np.arange(start, end)
        if (np.diff(calls) < 0).any():
            places = places[np.argsort(calls, kind="stable")]
            calls = self._blob.calls[places]
        bounds = [0, *(np.flatnonzero(np.diff(calls)) + 1).tolist(), len(calls)]
        for first, last in pairwise(bounds):
            one, other = int(places[first]), int(places[last - 1]) + 1
            together = other - one == last - first
            where = slice(one, other) if together else places[first:last]
            self._of_one_signature(int(calls[first]), where)

    def _of_one_signature(self, call: int, where: Where) -> None:
        refs = self._refs_of(where)
        if not self._all_forced:
            forced = self._blob.forced[where]
            if not forced.all():
                due = forced | any_of(self._changed[refs])
                if not due.all():
                    where, refs = _places(where)[due], refs[due]
        form = self._forms[self._blob.signatures[call][0]]
        if form is not None and len(refs) >= WIDE:
            left = self._at_once(form, call, where, refs)
            if left is None:
                return
            where, refs = _places(where)[left], refs[left]
        if len(refs):
            self._rows.all_of(_places(where), refs)

    def _refs_of(self, where: Where) -> Places:
        """A row for each."""
        starts = self._starts
        if isinstance(where, slice):
            some = self._refs[starts[where.start] : starts[where.stop]]
            return some.reshape(where.stop - where.start, -1) if len(some) else _none(where)
        width = int(starts[where[0] + 1] - starts[where[0]])
        return self._refs.take(starts[where][:, None] + np.arange(width))

    def _at_once(self, form: Form, call: int, where: Where, refs: Places) -> Places | None:
        """Compute those of these that the form can; return the others, by position, if any."""
        function, shape = self._blob.signatures[call]
        count = len(refs)
        started = time.perf_counter()
        arguments, complete = arguments_of(self._cells, shape, refs)
        limited = self._limited if self._blob.functions[function][0] == "python" else _unlimited
        try:
            with np.errstate(all="ignore"), limited(where):
                found = form(arguments, count)
        except BaseException:  # noqa: BLE001 - one by one, each tells what is wrong
            return np.arange(count)
        left = None
        if isinstance(found, Uniform) and complete is None:
            self._write_uniform(where, found)
        else:
            found = found.found() if isinstance(found, Uniform) else found
            left = self._write(where, found, complete)
        count -= 0 if left is None else len(left)
        self.calls[function] += count
        self.recomputed += count
        self.seconds[function] += time.perf_counter() - started
        return left

    @contextmanager
    def _limited(self, where: Where) -> Iterator[None]:
        """Hold all calls at once to the limits of one: beyond, they are made one by one."""
        place_now = self._watch.place
        with self._watch.headroom():
            try:
                place_now[0] = where.start if isinstance(where, slice) else where[0]
                yield
            finally:
                place_now[0] = IDLE

    def _write_uniform(self, where: Where, found: Uniform) -> None:
        cells = self._cells
        is_new = cells.bits[where] != found.bits
        is_new |= cells.kinds[where] != found.kind
        bits = found.bits
        if not is_new.all():
            where, bits = _places(where)[is_new], bits[is_new]
        cells.bits[where] = bits
        cells.kinds[where] = found.kind
        self._changed[where] = True

    def _write(
        self, where: Where, found: Found, complete: NDArray[np.bool_] | None
    ) -> Places | None:
        cells = self._cells
        self._require_sound(found)
        # What has an input without a value is blocked, whatever the form makes of that.
        done = found.kinds != NONE
        if complete is not None:
            done &= complete
        is_new = (cells.kinds[where] != found.kinds) | (cells.bits[where] != found.bits)
        places = _places(where)
        if found.chosen is not None:
            same = np.flatnonzero(done & ~is_new & (found.kinds == TEXT))
            if len(same):
                one, other = cells.texts_at(places[same]), cells.texts_at(found.chosen[same])
                is_new[same] = pa.compute.not_equal(one, other).to_numpy(zero_copy_only=False)
        is_new &= done
        written = places[is_new]
        cells.kinds[written] = found.kinds[is_new]
        cells.bits[written] = found.bits[is_new]
        if found.chosen is not None:
            cells.choose(written, found.chosen[is_new])
        self._changed[written] = True
        return None if done.all() else np.flatnonzero(~done)

    def _require_sound(self, found: Found) -> None:
        """What is beyond the limits of a value is no result."""
        if found.chosen is None:
            return
        texts = np.flatnonzero(found.kinds == TEXT)
        if len(texts):
            chosen = found.chosen[texts]
            self._cells.require_sound(np.unique(chosen))
            is_too_large = self._cells.exceed(chosen, self._watch.value_bytes)
            found.kinds[texts[is_too_large | (self._cells.kinds[chosen] == NONE)]] = NONE


def _places(where: Where) -> Places:
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def _none(where: slice) -> Places:
    return np.empty((where.stop - where.start, 0), np.int64)


def _unlimited(_where: Any) -> AbstractContextManager[None]:
    return nullcontext()
