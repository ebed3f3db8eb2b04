"""Computes values each by a call of its function."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rebaser_server.compute.evaluate.call_codegen import Call, call_of, loop_of
from rebaser_server.compute.evaluate.call_watchdog import IDLE, Watch
from rebaser_server.compute.evaluate.result_writer import Results
from rebaser_server.compute.functions.vector_functions import any_of
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.units.value_buffers import NONE, NOTHING, Cells, Places
from rebaser_server.compute.units.work_unit import Blob, Shape

CHUNK: Final = 1024
"""Values whose inputs are made Python objects at once."""
_TIMED: Final = 16
"""Of so many calls of a function that are made one after the other one is timed."""


class Rows:
    """Which values come out changed is noted in `changed`; what they are, in `results`."""

    def __init__(
        self,
        blob: Blob,
        cells: Cells,
        wiring: tuple[Places, Places],
        changed: bytearray,
        functions: Sequence[Callable[..., Any]],
        watch: Watch,
    ) -> None:
        """`wiring`: the place of each ref, and where the refs of each value begin and end."""
        self._blob = blob
        self._cells = cells
        self._refs, self._starts = wiring
        self._changed = changed
        self._is_changed = np.frombuffer(changed, np.bool_)
        self._functions = functions
        self._watch = watch
        self._place = watch.place
        self._calls = [
            (number, functions[number], call_of(functions[number], shape))
            for number, shape in blob.signatures
        ]
        self.results = Results(blob, cells, changed, watch)
        self.found: list[Any] = []
        """What was returned to the calls that are made together now."""
        self.calls = [0] * len(functions)
        """By function; and of those that were timed how many they were and the seconds in all."""
        self.timed = [0] * len(functions)
        self.seconds = [0.0] * len(functions)

    def all_of(self, places: Places, refs: Places) -> None:
        """Compute these values, of one signature and ascending; a row of refs for each."""
        for first in range(0, len(places), CHUNK):
            chunk = slice(first, first + CHUNK)
            self._together(places[chunk], refs[chunk])

    def _together(self, places: Places, refs: Places) -> None:
        """What surrounds the calls is done for all at once: it would take longer than they."""
        self._box(refs)
        nothing = self._cells.kinds[refs] == NONE
        if nothing.any():
            blocked = any_of(nothing)
            blocking = refs[blocked, nothing[blocked].argmax(1)]
            for place, ref in zip(places[blocked].tolist(), blocking.tolist(), strict=True):
                self.results.write_blocked(place, ref)
            places, refs = places[~blocked], refs[~blocked]
        if len(places):
            self.results.write_all(places, self._called(places, refs))

    def _called(self, places: Places, refs: Places) -> list[Any]:
        """What each call returns, or its failure."""
        number, shape = self._blob.signatures[self._blob.calls[places[0]]]
        function, watched = self._functions[number], self._place
        loop = loop_of(function, shape)
        columns = [places.tolist(), *_columns(shape, refs, self._cells.objects)]
        found = self.found
        started = time.perf_counter()
        with self._watch.headroom():
            while len(found) < len(places):
                rows = zip(*(column[len(found) :] for column in columns), strict=True)
                try:
                    loop(function, watched, found.append, rows)
                    watched[0] = IDLE
                except BaseException as error:  # noqa: BLE001 - its value's alone
                    # What is late may have returned by now.
                    found[bisect_left(columns[0], watched[0]) :] = [self.results.failure(error)]
                    watched[0] = IDLE
        self.calls[number] += len(found)
        self.timed[number] += len(found)
        self.seconds[number] += time.perf_counter() - started
        self.found = []
        return found

    def in_order(self, start: int, end: int) -> None:
        """Compute those values from `start` to `end` that are due, which is seen on the way."""
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            refs = self._refs[self._starts[first] : self._starts[last]]
            if self._blob.forced[first:last].any() or self._is_changed[refs].any():
                self._box(refs)
                with self._watch.headroom():
                    self._compute_due(slice(first, last), refs.tolist())

    def _box(self, refs: Places) -> None:
        unboxed = refs[~self._cells.is_boxed[refs]]
        if len(unboxed) or not self._cells.objects:
            self._cells.box(unboxed)

    def _compute_due(self, where: slice, refs: list[int]) -> None:
        objects, compute = self._cells.objects, self._compute
        is_changed = self._changed.__getitem__
        columns = zip(
            range(where.start, where.stop),
            self._blob.calls[where].tolist(),
            np.diff(self._starts[where.start : where.stop + 1]).tolist(),
            self._blob.forced[where].tolist(),
            strict=True,
        )
        end = 0
        for place, call, width, forced in columns:
            start, end = end, end + width
            taken = refs[start:end]
            if not (forced or any(map(is_changed, taken))):
                continue
            given = [objects[ref] for ref in taken]
            for cell in given:
                if cell is NOTHING:
                    self.results.write_blocked(place, taken[given.index(NOTHING)])
                    break
            else:
                compute(place, call, given)

    def _compute(self, place: int, call: int, given: list[Any]) -> None:
        number, function, make = self._calls[call]
        watched = self._place
        self.calls[number] += 1
        try:
            watched[0] = place
            if place % _TIMED and self.timed[number]:
                value = make(function, given)
            else:
                value = self._timed(number, function, make, given)
            if type(value) is not float or value - value != 0:  # not so for what is not finite
                value = read_only(value)
            watched[0] = IDLE
        except BaseException as error:  # noqa: BLE001 - its value's alone
            failure = self.results.failure(error)  # still watched: it calls the error's own code
            watched[0] = IDLE
            self.results.write_failure(place, failure)
        else:
            self.results.write(place, value)

    def _timed(
        self, number: int, function: Callable[..., Any], make: Call, given: list[Any]
    ) -> Any:
        started = time.perf_counter()
        try:
            return make(function, given)
        finally:
            self.timed[number] += 1
            self.seconds[number] += time.perf_counter() - started


def _columns(shape: list[Shape], refs: Places, objects: list[Any]) -> list[list[Any]]:
    """Argument by argument what each call is given, a list of its own for each that takes one."""
    given = list(map(objects.__getitem__, refs.ravel().tolist()))
    width, columns, start = refs.shape[1], [], 0
    for _, count in shape:
        if count is None:
            columns.append(given[start::width])
        else:
            firsts = [row * width + start for row in range(len(refs))]
            columns.append([given[first : first + count] for first in firsts])
        start += 1 if count is None else count
    return columns
