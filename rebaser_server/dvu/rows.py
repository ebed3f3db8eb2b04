"""Computes values one by one, each by a call of its function."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rebaser_server.dvu.blob import BLOCKED, FAILED, OK, Blob
from rebaser_server.dvu.calls import Call, call_of
from rebaser_server.dvu.cells import BOOL, FLOAT, INT, NONE, NOTHING, NULL, TEXT, Cells, Places
from rebaser_server.dvu.errors import FunctionMissing
from rebaser_server.dvu.json_data import NotJson, read_only
from rebaser_server.dvu.limits import IDLE, TimeLimitExceeded, Watch
from rebaser_server.json_text import text_of

MAX_MESSAGE: Final = 1000
"""Characters of a failed value's message."""
CHUNK: Final = 1024
"""Values whose inputs are made Python objects at once."""
_TIMED: Final = 16
"""Of so many calls of a function one is timed."""

_KINDS: Final[dict[type, int]] = {type(None): NULL, bool: BOOL, int: INT, float: FLOAT}


class Rows:
    """Which values come out changed is noted in `changed`.

    What those are that have a value stands in the cells, what became of the others in the
    lists of results.
    """

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
        self._watch = watch
        self._place = watch.place
        self._calls = [
            (number, functions[number], call_of(functions[number], shape))
            for number, shape in blob.signatures
        ]
        self.blocked = 0
        self.places: list[int] = []
        """Of those that come out without a value, and what they are."""
        self.statuses: list[int] = []
        self.texts: list[str] = []
        self.calls = [0] * len(functions)
        """By function; and of those that were timed how many they were and the seconds in all."""
        self.timed = [0] * len(functions)
        self.seconds = [0.0] * len(functions)

    def in_order(self, start: int, end: int) -> None:
        """Compute those values from `start` to `end` that are due, which is seen on the way."""
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            refs = self._refs[self._starts[first] : self._starts[last]]
            if self._blob.forced[first:last].any() or self._is_changed[refs].any():
                self._chunk(np.arange(first, last), refs, all_due=False)

    def all_of(self, places: Places, refs: Places) -> None:
        """Compute these values, of one signature and in any order; a row of refs for each."""
        for first in range(0, len(places), CHUNK):
            chunk = slice(first, first + CHUNK)
            self._chunk(places[chunk], refs[chunk].ravel(), all_due=True)

    def _chunk(self, places: Places, refs: Places, *, all_due: bool) -> None:
        unboxed = refs[~self._cells.is_boxed[refs]]
        if len(unboxed) or not self._cells.objects:
            self._cells.box(unboxed)
        with self._watch.headroom():
            self._compute_all(places, refs.tolist(), all_due=all_due)

    def _compute_all(self, places: Places, refs: list[int], *, all_due: bool) -> None:
        objects, compute = self._cells.objects, self._compute
        is_changed = self._changed.__getitem__
        columns = zip(
            places.tolist(),
            self._blob.calls[places].tolist(),
            (self._starts[places + 1] - self._starts[places]).tolist(),
            self._blob.forced[places].tolist(),
            strict=True,
        )
        end = 0
        for place, call, width, forced in columns:
            start, end = end, end + width
            taken = refs[start:end]
            if not (forced or all_due or any(map(is_changed, taken))):
                continue
            given = [objects[ref] for ref in taken]
            for cell in given:
                if cell is NOTHING:
                    self.blocked += 1
                    blocking = taken[given.index(NOTHING)]
                    self._write_nothing(place, BLOCKED, self._id_of(blocking))
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
        except (Exception, SystemExit, TimeLimitExceeded) as error:  # noqa: BLE001 - its value's alone
            watched[0] = IDLE
            self._write_nothing(place, FAILED, self._message(error))
            return
        cells = self._cells
        cells.objects[place] = value
        cells.box_bytes[place] = True
        kind = _KINDS.get(type(value), TEXT)
        is_new = cells.kind_bytes[place] != kind
        if kind == TEXT:
            is_new = self._write_text(place, value) or is_new
        else:
            bits = cells.int_items
            before = bits[place]
            if kind == FLOAT:
                cells.float_items[place] = value
            else:
                bits[place] = value or 0  # of null, too
            is_new = is_new or bits[place] != before
        if is_new:
            cells.kind_bytes[place] = kind
            self._changed[place] = True

    def _write_text(self, place: int, value: Any) -> bool:
        cells = self._cells
        text = text_of(value)
        if cells.kind_bytes[place] == TEXT and text == cells.texts[place].as_py():
            return False
        cells.int_items[place] = 0
        cells.computed_texts[place] = text
        return True

    def _timed(
        self, number: int, function: Callable[..., Any], make: Call, given: list[Any]
    ) -> Any:
        started = time.perf_counter()
        try:
            return make(function, given)
        finally:
            self.timed[number] += 1
            self.seconds[number] += time.perf_counter() - started

    def _write_nothing(self, place: int, status: int, text: str) -> None:
        text = _bounded(text)
        cells, before = self._cells, int(self._blob.statuses[place])
        cells.objects[place] = NOTHING
        cells.box_bytes[place] = True
        cells.kind_bytes[place] = NONE
        if status != before or text != self._blob.texts[place].as_py():
            self.places.append(place)
            self.statuses.append(status)
            self.texts.append(text)
            self._changed[place] = before == OK

    def _message(self, error: BaseException) -> str:
        if isinstance(error, FunctionMissing):
            return str(error)
        return self._watch.message(error) or _described(error)

    def _id_of(self, ref: int) -> str:
        own = len(self._blob)
        column = self._blob.ids if ref < own else self._blob.constant_ids
        value_id: str = column[ref if ref < own else ref - own].as_py()
        return value_id


def _described(error: BaseException) -> str:
    if isinstance(error, NotJson):
        return f"the result cannot be a value: {error}"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception's own code is a function's, too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bounded(text: str) -> str:
    text = text.encode(errors="replace").decode()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
