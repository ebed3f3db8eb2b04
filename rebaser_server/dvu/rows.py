"""Computes values one by one, each by a call of its function."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rebaser_server.dvu.blob import BLOCKED, FAILED, OK, Blob, Shape
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
    """Which values come out changed is noted in `changed` and in the lists of results."""

    def __init__(
        self,
        blob: Blob,
        cells: Cells,
        refs: Places,
        changed: bytearray,
        functions: Sequence[Callable[..., Any]],
        watch: Watch,
    ) -> None:
        self._blob = blob
        self._cells = cells
        self._refs = refs
        self._changed = changed
        self._is_changed = np.frombuffer(changed, np.bool_)
        self._functions = functions
        self._watch = watch
        self._widths = blob.widths()
        self._starts = np.cumsum(self._widths) - self._widths
        self.recomputed = 0
        self.places: list[int] = []
        """Of the results, and what they are."""
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
            begin, stop = self._starts[first], self._starts[last - 1] + self._widths[last - 1]
            refs = self._refs[begin:stop]
            if self._blob.forced[first:last].any() or self._is_changed[refs].any():
                self._chunk(np.arange(first, last), refs, all_due=False)

    def all_of(self, places: Places, refs: Places) -> None:
        """Compute these values, of one signature and in any order; a row of refs for each."""
        for first in range(0, len(places), CHUNK):
            chunk = slice(first, first + CHUNK)
            self._chunk(places[chunk], refs[chunk].ravel(), all_due=True)

    def _chunk(self, places: Places, refs: Places, *, all_due: bool) -> None:
        self._cells.box(np.unique(refs[~self._cells.is_boxed[refs]]))
        with self._watch.headroom():
            self._compute_all(places, refs.tolist(), all_due=all_due)

    def _compute_all(self, places: Places, refs: list[int], *, all_due: bool) -> None:
        blob, changed, compute = self._blob, self._changed, self._compute
        columns = zip(
            places.tolist(),
            blob.calls[places].tolist(),
            self._widths[places].tolist(),
            blob.forced[places].tolist(),
            blob.statuses[places].tolist(),
            blob.texts.take(places).to_pylist(),
            strict=True,
        )
        end = 0
        for place, call, width, forced, status_before, before in columns:
            start, end = end, end + width
            taken = refs[start:end]
            if not (forced or all_due or any(map(changed.__getitem__, taken))):
                continue
            self.recomputed += 1
            status, text, value = compute(place, call, taken)
            if status != status_before or text != before:
                self.places.append(place)
                self.statuses.append(status)
                self.texts.append(text)
                changed[place] = OK in (status, status_before)
                self._write(place, status, text, value)

    def _write(self, place: int, status: int, text: str, value: Any) -> None:
        cells = self._cells
        cells.objects[place] = value
        cells.box_bytes[place] = True
        if status != OK:
            cells.kind_bytes[place] = NONE
            return
        kind = cells.kind_bytes[place] = _KINDS.get(type(value), TEXT)
        if kind == FLOAT:
            cells.float_items[place] = value
        else:
            cells.int_items[place] = value if kind in (INT, BOOL) else 0
        if kind == TEXT:
            cells.computed_texts[place] = text

    def _compute(self, place: int, call: int, refs: list[int]) -> tuple[int, str, Any]:
        """Status, text and value."""
        function, shape = self._blob.signatures[call]
        objects = self._cells.objects
        given = [objects[ref] for ref in refs]
        for position, cell in enumerate(given):
            if cell is NOTHING:
                return BLOCKED, self._id_of(refs[position]), NOTHING
        self.calls[function] += 1
        arguments = _arguments(shape, given)
        watched = self._watch.place
        try:
            watched[0] = place
            if self.calls[function] % _TIMED == 1:
                value = self._timed(function, arguments)
            else:
                value = read_only(self._functions[function](**arguments))
            watched[0] = IDLE
            return OK, text_of(value), value
        except FunctionMissing as error:
            message = str(error)
        except (Exception, SystemExit, TimeLimitExceeded) as error:  # noqa: BLE001 - its value's alone
            watched[0] = IDLE
            message = self._watch.message(error) or _described(error)
        watched[0] = IDLE
        return FAILED, _bounded(message), NOTHING

    def _timed(self, function: int, arguments: dict[str, Any]) -> Any:
        started = time.perf_counter()
        try:
            return read_only(self._functions[function](**arguments))
        finally:
            self.timed[function] += 1
            self.seconds[function] += time.perf_counter() - started

    def _id_of(self, ref: int) -> str:
        own = len(self._blob)
        column = self._blob.ids if ref < own else self._blob.constant_ids
        value_id: str = column[ref if ref < own else ref - own].as_py()
        return value_id


def _arguments(shape: list[Shape], given: list[Any]) -> dict[str, Any]:
    arguments = {}
    start = 0
    for name, count in shape:
        if count is None:
            arguments[name] = given[start]
            start += 1
        else:
            arguments[name] = given[start : start + count]
            start += count
    return arguments


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
