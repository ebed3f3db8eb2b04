"""The shapes of inputs: which arguments there are, and how many values each takes."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.types import Inputs

Shape = tuple[tuple[str, int | None], ...]
"""Arguments by name, in order: one value (None), or a list of so many."""

NONE: Final = 0
"""The shape of no inputs at all."""


class Shapes:
    """Every shape that was met, once."""

    def __init__(self) -> None:
        self.known: list[Shape] = [()]
        self.widths: list[int] = [0]
        """How many refs values of each shape have."""
        self._places: dict[Shape, int] = {(): NONE}
        self._widths = np.zeros(1, np.int64)

    def of(self, inputs: Inputs) -> int:
        return self.place(
            tuple(
                (argument, len(target) if isinstance(target, list) else None)
                for argument, target in inputs.items()
            )
        )

    def place(self, shape: Shape) -> int:
        place = self._places.get(shape)
        if place is None:
            place = self._places[shape] = len(self.known)
            self.known.append(shape)
            self.widths.append(sum(1 if count is None else count for _, count in shape))
        return place

    def widths_of(self, places: NDArray[Any]) -> NDArray[np.int64]:
        if len(self._widths) < len(self.widths):
            self._widths = np.array(self.widths, np.int64)
        widths: NDArray[np.int64] = self._widths[places]
        return widths

    def inputs(self, place: int, ids: list[str]) -> Inputs:
        """The inputs of this shape that take these values."""
        made: Inputs = {}
        start = 0
        for argument, count in self.known[place]:
            if count is None:
                made[argument] = ids[start]
                start += 1
            else:
                made[argument] = ids[start : start + count]
                start += count
        return made

    def without(self, place: int, is_kept: list[bool]) -> int:
        """The shape that is left of one when the other refs are taken out."""
        kept: list[tuple[str, int | None]] = []
        start = 0
        for argument, count in self.known[place]:
            if count is None:
                if is_kept[start]:
                    kept.append((argument, None))
                start += 1
            else:
                kept.append((argument, sum(is_kept[start : start + count])))
                start += count
        return self.place(tuple(kept))
