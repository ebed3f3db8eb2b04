"""A bounded sample of the values that an update affects, and of their edges, for display."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np

from rebaser_server.compute.plan.affected import Closure
from rebaser_server.values.graph import ReadableGraph

MAX_VALUES: Final = 60
"""Values shown."""
MAX_VALUES_PER_LEVEL: Final = 12
"""Values shown of a level."""
MAX_LEVELS: Final = 10
"""Levels shown, the changed sources before them among these."""
MAX_DEPENDENTS: Final = 20
"""Dependents of one value that are looked at for the next level."""
MAX_NAME: Final = 48
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class GraphPreview:
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


def preview_graph(graph: ReadableGraph, affected: Closure) -> GraphPreview:
    """Sample the update of the graph's roots.

    In each level those come first that take a value drawn before: there is something to see.
    """
    if not len(affected.indices):
        return GraphPreview()
    roots = graph.root_indices()
    sources = roots[graph.columns.func.buffer[roots] < 0]
    starts = np.flatnonzero(np.diff(affected.levels, prepend=-1))
    ends = [*starts[1:].tolist(), len(affected.indices)]
    columns = [(0, len(sources))] if len(sources) else []
    columns += zip(starts.tolist(), ends, strict=True)
    columns = columns[:MAX_LEVELS]
    drawing = _Drawing(graph, affected, min(MAX_VALUES_PER_LEVEL, MAX_VALUES // len(columns)))
    for position, (start, end) in enumerate(columns):
        if position == 0 and len(sources):
            drawing.add(position, sources[: drawing.most].tolist())
        else:
            drawing.add(position, drawing.of_level(start, end))
    return GraphPreview(
        len(sources),
        len(affected.indices),
        len(starts),
        [end - start for start, end in columns],
        drawing.values,
        drawing.edges,
    )


class _Drawing:
    def __init__(self, graph: ReadableGraph, affected: Closure, most: int) -> None:
        self._graph = graph
        self._affected = affected
        self.most = most
        """Values of one column."""
        self.values: list[dict[str, Any]] = []
        self.edges: list[tuple[int, int]] = []
        self._positions: dict[int, int] = {}
        """Index → position in `values`."""
        self._dependents: dict[int, None] = {}
        """Some of those that take drawn ones."""

    def of_level(self, start: int, end: int) -> list[int]:
        """Which of the affected values from `start` to `end` to draw."""
        positions = self._affected.positions
        reached = [index for index in self._dependents if start < positions[index] <= end]
        first = self._affected.indices[start : min(end, start + self.most)].tolist()
        return list(dict.fromkeys([*reached, *first]))[: self.most]

    def add(self, column: int, indices: list[int]) -> None:
        first = len(self.values)
        if self.values:
            refs, widths = self._graph.adjacency.inputs_of(np.array(indices))
            drawn = np.flatnonzero(np.isin(refs, list(self._positions)))
            dependents = np.repeat(np.arange(first, first + len(indices)), widths)[drawn]
            taken = map(self._positions.__getitem__, refs[drawn].tolist())
            self.edges += dict.fromkeys(zip(taken, dependents.tolist(), strict=True))
        for position, index in enumerate(indices, first):
            self._positions[index] = position
            self.values.append(self._value(column, index))
            self._dependents.update(
                dict.fromkeys(islice(self._graph.adjacency.dependents(index), MAX_DEPENDENTS))
            )

    def _value(self, column: int, index: int) -> dict[str, Any]:
        graph = self._graph
        func = graph.columns.func.at[index]
        known = graph.funcs.get(graph.func_ids[func]) if func >= 0 else None
        at = self._affected.positions[index] - 1
        name = graph.names.name_at(index) or graph.id_at(index)
        return {
            "column": column,
            "name": name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
            "function": known.name if known else None,
            "forced": bool(func < 0 or self._affected.must_compute[at]),
        }
