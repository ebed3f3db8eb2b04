"""The same values computed as one would without Rebaser, in seconds of processor time.

Each gets all that it can keep ready.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.shapes import Graph
from rebaser_server.compute.work_unit import count_levels_below

MOST_LEVELS: Final = 200
"""For peers that pay for each level, however few values it has."""

Timed = tuple[float, dict[str, float]]
"""Seconds of the computation, and some of the values, to be compared."""


def function(a: float, b: float, c: float) -> float:
    """What all of them compute."""
    return (a * b + c) / 2


class Ready:
    """A graph as peers hold it: by ids, as their users have it, and by level."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ids = [f"v{number}" for number in range(len(graph.refs))]
        names = np.array(self.ids + [f"c{n}" for n in range(len(graph.constants))], object)
        count = len(self.ids)
        flat = np.where(graph.refs >= 0, graph.refs, count + ~graph.refs)
        self.flat = flat
        self.inputs = dict(zip(self.ids, map(tuple, names[flat].tolist()), strict=True))
        self.constants = {f"c{n}": float(c) for n, c in enumerate(graph.constants)}
        level = count_levels_below(graph.shell())
        self.by_level = [np.flatnonzero(level == n) for n in range(int(level.max()) + 1)]


def python(ready: Ready) -> Timed:
    """A loop over the values in an order that is known, and dicts that exist."""
    values, inputs = dict(ready.constants), ready.inputs
    values.update(dict.fromkeys(ready.ids, 0.0))
    changed = 0
    started = time.process_time()
    for value_id in ready.ids:
        a, b, c = inputs[value_id]
        new = function(values[a], values[b], values[c])
        if new != values[value_id]:
            values[value_id] = new
            changed += 1
    return time.process_time() - started, values


def networkx(ready: Ready) -> Callable[[], Timed]:
    graph = nx.DiGraph()
    for value_id, inputs in ready.inputs.items():
        graph.add_node(value_id, inputs=inputs)
        graph.add_edges_from((input_id, value_id) for input_id in inputs)

    def run() -> Timed:
        nodes = graph.nodes
        values = dict(ready.constants)
        started = time.process_time()
        for value_id in nx.topological_sort(graph):
            inputs = nodes[value_id].get("inputs")
            if inputs is not None:
                values[value_id] = function(*[values[i] for i in inputs])
        return time.process_time() - started, values

    return run


def numpy(ready: Ready) -> tuple[float, NDArray[np.float64]]:
    """Level by level, from arrays that exist: as fast as it gets in Python."""
    count = len(ready.ids)
    values = np.concatenate([np.zeros(count), ready.graph.constants])
    started = time.process_time()
    for places in ready.by_level:
        given = values[ready.flat[places]]
        values[places] = (given[:, 0] * given[:, 1] + given[:, 2]) / 2
    return time.process_time() - started, values[:count]


def pandas(ready: Ready) -> float | None:
    """Level by level: inputs looked up by id in a Series."""
    if len(ready.by_level) > MOST_LEVELS:
        return None
    names = np.array(ready.ids, object)
    frames = []
    for places in ready.by_level:
        rows = [ready.inputs[value_id] for value_id in names[places]]
        frames.append(pd.DataFrame(rows, index=names[places], columns=["a", "b", "c"]))
    values = pd.concat([pd.Series(ready.constants), pd.Series(0.0, index=ready.ids)])
    started = time.process_time()
    for frame in frames:
        a, b, c = (values.reindex(frame[name]).to_numpy() for name in ("a", "b", "c"))
        values.loc[frame.index] = (a * b + c) / 2
    return time.process_time() - started


def require_same(graph: Graph, found: dict[str, float], values: NDArray[np.float64]) -> None:
    for number in range(0, len(graph.refs), max(1, len(graph.refs) // 1000)):
        if found[f"v{number}"] != values[number]:
            raise RuntimeError(f"{graph.name}: value {number} is {found[f'v{number}']}")


def mean(seconds: list[Any]) -> float | None:
    """The median of rounds; None for what was not run."""
    return None if None in seconds else float(np.median(seconds))
