"""A few of the values that an update affects and how they hang together, for people to look at."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np

from rebaser_server.compute.plan.affected import Closure
from rebaser_server.values.graph import Graph

MOST: Final = 60
"""Values shown."""
ROWS: Final = 12
"""Values shown of a level."""
COLUMNS: Final = 10
"""Levels shown, the changed sources before them among these."""
TAKERS: Final = 20
"""Dependents of one value that are looked at for the next level."""
NAME: Final = 48
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Bounded, and so is what it costs, by the constants above."""

    sources: int = 0
    """How many changed."""
    affected: int = 0
    levels: int = 0
    """Of the affected values."""
    sizes: list[int] = field(default_factory=list)
    """Of the columns: the sources, if any changed, then level by level."""
    values: list[dict[str, Any]] = field(default_factory=list)
    """`column`, `name`, `function`; `forced`: whether computed even if no input changes."""
    edges: list[tuple[int, int]] = field(default_factory=list)
    """Places in `values`: what is taken, and who takes it."""


def sketch(graph: Graph, affected: Closure) -> Sketch:
    """Sketch the update of the graph's roots.

    In each level those come first that take a value drawn before: there is something to see.
    """
    if not len(affected.indices):
        return Sketch()
    roots = graph.roots.indices()
    sources = roots[graph.columns.func.room[roots] < 0]
    starts = np.flatnonzero(np.diff(affected.levels, prepend=-1))
    ends = [*starts[1:].tolist(), len(affected.indices)]
    columns = [(0, len(sources))] if len(sources) else []
    columns += zip(starts.tolist(), ends, strict=True)
    columns = columns[:COLUMNS]
    drawing = _Drawing(graph, affected, min(ROWS, MOST // len(columns)))
    for place, (start, end) in enumerate(columns):
        if place == 0 and len(sources):
            drawing.add(place, sources[: drawing.most].tolist())
        else:
            drawing.add(place, drawing.of_level(start, end))
    return Sketch(
        len(sources),
        len(affected.indices),
        len(starts),
        [end - start for start, end in columns],
        drawing.values,
        drawing.edges,
    )


class _Drawing:
    def __init__(self, graph: Graph, affected: Closure, most: int) -> None:
        self._graph = graph
        self._affected = affected
        self.most = most
        """Values of one column."""
        self.values: list[dict[str, Any]] = []
        self.edges: list[tuple[int, int]] = []
        self._places: dict[int, int] = {}
        """Index → place in `values`."""
        self._takers: dict[int, None] = {}
        """Some of those that take drawn ones."""

    def of_level(self, start: int, end: int) -> list[int]:
        """Which of the affected values from `start` to `end` to draw."""
        places = self._affected.places
        reached = [index for index in self._takers if start < places[index] <= end]
        first = self._affected.indices[start : min(end, start + self.most)].tolist()
        return list(dict.fromkeys([*reached, *first]))[: self.most]

    def add(self, column: int, indices: list[int]) -> None:
        first = len(self.values)
        if self.values:
            refs, widths = self._graph.wiring.refs_of(np.array(indices))
            drawn = np.flatnonzero(np.isin(refs, list(self._places)))
            takers = np.repeat(np.arange(first, first + len(indices)), widths)[drawn]
            taken = map(self._places.__getitem__, refs[drawn].tolist())
            self.edges += dict.fromkeys(zip(taken, takers.tolist(), strict=True))
        for place, index in enumerate(indices, first):
            self._places[index] = place
            self.values.append(self._value(column, index))
            self._takers.update(dict.fromkeys(islice(self._graph.wiring.takers(index), TAKERS)))

    def _value(self, column: int, index: int) -> dict[str, Any]:
        graph = self._graph
        func = graph.columns.func.at[index]
        known = graph.funcs.get(graph.func_ids[func]) if func >= 0 else None
        at = self._affected.places[index] - 1
        name = graph.names.of(index) or graph.id_at(index)
        return {
            "column": column,
            "name": name if len(name) <= NAME else f"{name[: NAME - 1]}…",
            "function": known.name if known else None,
            "forced": bool(func < 0 or self._affected.forced[at]),
        }
