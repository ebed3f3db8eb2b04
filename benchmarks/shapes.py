"""Synthetic graphs: values in topological order, each with three inputs, over a few constants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from rebaser_server.compute.work_unit import PENDING, WorkUnit, sort_by_level
from rebaser_server.values.canonical_json import dumps_numbers

WIDTH: Final = 3
CONSTANTS: Final = 1000
_CHAIN: Final = 1000


@dataclass(frozen=True, slots=True)
class Graph:
    """`refs` has a row for each value: earlier values, or constants as a blob has them."""

    name: str
    refs: NDArray[np.int32]
    constants: NDArray[np.float64]

    def blob(self, function: tuple[str, str], shape: list[tuple[str, int | None]]) -> WorkUnit:
        """All values, never computed yet, in the order of their levels."""
        count = len(self.refs)
        blob = WorkUnit(
            [function],
            [(0, shape)],
            pa.array([f"{number:026d}" for number in range(count)]),
            np.zeros(count, np.int32),
            np.full(count, PENDING, np.uint8),
            pa.repeat("", count),
            np.ones(count, np.bool_),
            self.refs.ravel(),
            pa.array([f"constant {number}" for number in range(CONSTANTS)]),
            np.ones(CONSTANTS, np.bool_),
            dumps_numbers(self.constants),
        )
        return sort_by_level(blob)[0]

    def shell(self) -> WorkUnit:
        """A blob that has nothing but what levels are told from."""
        calls = np.zeros(len(self.refs), np.int32)
        shape: list[tuple[str, int | None]] = [("all", WIDTH)]
        return WorkUnit(signatures=[(0, shape)], signature_indices=calls, refs=self.refs.ravel())

    def parts(self, count: int) -> list["Graph"]:
        """At most so many graphs of similar size, of which none needs another."""
        takers, columns = np.nonzero(self.refs >= 0)
        edges = (np.ones(len(takers)), (takers, self.refs[takers, columns]))
        found, labels = connected_components(
            coo_array(edges, (len(self.refs),) * 2), directed=False
        )
        if found == 1:
            return [self]
        sizes = np.bincount(labels)
        into, loads = np.zeros(found, np.int64), np.zeros(count)
        for label in np.argsort(-sizes).tolist():
            into[label] = loads.argmin()
            loads[into[label]] += sizes[label]
        return [self._part(np.flatnonzero(into[labels] == n)) for n in range(count) if loads[n]]

    def _part(self, chosen: NDArray[Any]) -> "Graph":
        places = np.zeros(len(self.refs), np.int32)
        places[chosen] = np.arange(len(chosen))
        refs = self.refs[chosen]
        return Graph(self.name, np.where(refs >= 0, places[refs], refs), self.constants)


def _any_below(rng: np.random.Generator, first: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    """For each value three from `first` up to `below`; constants where there are none."""
    count = len(below)
    room = np.maximum(below - first, 1)[:, None]
    own = first[:, None] + rng.integers(0, 2**31, (count, WIDTH)) % room
    constants = ~rng.integers(0, CONSTANTS, (count, WIDTH))
    return np.where((below > first)[:, None], own, constants)


def _wide(rng: np.random.Generator, count: int) -> NDArray[Any]:
    levels = np.arange(count) * 3 // count
    edges = np.searchsorted(levels, np.arange(4))
    return _any_below(rng, edges[np.maximum(levels - 1, 0)], edges[levels])


def _chains(_rng: np.random.Generator, count: int) -> NDArray[Any]:
    number = np.arange(count)
    refs = ~np.stack([number % CONSTANTS] * WIDTH, 1)
    inside = number % _CHAIN > 0
    refs[inside, 0] = number[inside] - 1
    return refs


def _random(rng: np.random.Generator, count: int) -> NDArray[Any]:
    number = np.arange(count)
    return _any_below(rng, np.zeros(count, np.int64), number)


def _small(rng: np.random.Generator, count: int) -> NDArray[Any]:
    number = np.arange(count)
    return _any_below(rng, number - number % 10, number)


def _giant(rng: np.random.Generator, count: int) -> NDArray[Any]:
    levels = np.arange(count) * 100 // count
    edges = np.searchsorted(levels, np.arange(101))
    return _any_below(rng, edges[np.maximum(levels - 1, 0)], edges[levels])


SHAPES: Final[dict[str, Callable[[np.random.Generator, int], NDArray[Any]]]] = {
    "wide, 3 levels": _wide,
    "chains of 1,000": _chains,
    "random": _random,
    "many small": _small,
    "one giant, 100 levels": _giant,
}


def made(name: str, count: int) -> Graph:
    rng = np.random.default_rng(7)
    refs = SHAPES[name](rng, count).astype(np.int32)
    return Graph(name, refs, rng.random(CONSTANTS))
