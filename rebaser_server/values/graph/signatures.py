"""Signatures of inputs: which arguments there are, and how many values each takes."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_core.updates import InputSignature
from rebaser_server.values.graph.types import Inputs

NO_INPUTS: Final = 0
"""The index of the signature without arguments."""


class Signatures:
    """Every different signature, once; values keep its index."""

    def __init__(self) -> None:
        self.all: list[InputSignature] = [()]
        self.widths: list[int] = [0]
        """How many inputs a value of each signature has."""
        self._indices: dict[InputSignature, int] = {(): NO_INPUTS}
        self._widths = np.zeros(1, np.int64)

    def index_for(self, inputs: Inputs) -> int:
        return self.intern(
            tuple(
                (argument, len(target) if isinstance(target, list) else None)
                for argument, target in inputs.items()
            )
        )

    def intern(self, signature: InputSignature) -> int:
        index = self._indices.get(signature)
        if index is None:
            index = self._indices[signature] = len(self.all)
            self.all.append(signature)
            self.widths.append(sum(1 if count is None else count for _, count in signature))
        return index

    def widths_of(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        if len(self._widths) < len(self.widths):
            self._widths = np.array(self.widths, np.int64)
        widths: NDArray[np.int64] = self._widths[indices]
        return widths

    def build_inputs(self, index: int, ids: list[str]) -> Inputs:
        """Inputs with this signature that take these values, in order."""
        inputs: Inputs = {}
        start = 0
        for argument, count in self.all[index]:
            if count is None:
                inputs[argument] = ids[start]
                start += 1
            else:
                inputs[argument] = ids[start : start + count]
                start += count
        return inputs

    def without(self, index: int, is_kept: list[bool]) -> int:
        """The signature that is left when the other inputs are removed."""
        kept: list[tuple[str, int | None]] = []
        start = 0
        for argument, count in self.all[index]:
            if count is None:
                if is_kept[start]:
                    kept.append((argument, None))
                start += 1
            else:
                kept.append((argument, sum(is_kept[start : start + count])))
                start += count
        return self.intern(tuple(kept))
