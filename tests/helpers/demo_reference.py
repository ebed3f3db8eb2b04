"""What the demo must find, computed another way: networkx on the packages, no code of ours."""

from collections import deque
from functools import cache
from typing import NamedTuple

import networkx as nx
import pyarrow.parquet as pq

from tests.helpers.paths import ROOT

DATA = ROOT / "examples/debian/debian_demo/data/debian_bookworm.parquet"


class Counts(NamedTuple):
    """How many packages are exposed, and for how many the distance became another, if only none."""

    exposed_before: int
    exposed_after: int
    distance_changed: int


@cache
def pending() -> frozenset[str]:
    """Packages that a security fix is pending for."""
    rows = pq.read_table(DATA, columns=["package", "security_version"]).to_pylist()
    return frozenset(row["package"] for row in rows if row["security_version"] is not None)


@cache
def _condensed() -> nx.DiGraph:
    """Cycles shrunk to one node each; an edge leads from a dependency to what depends on it."""
    rows = pq.read_table(DATA, columns=["package", "depends"]).to_pylist()
    graph = nx.DiGraph()
    graph.add_nodes_from(row["package"] for row in rows)
    graph.add_edges_from((target, row["package"]) for row in rows for target in row["depends"])
    return nx.condensation(graph)


def distances(fixed: str | None = None) -> dict[str, int | None]:
    """Package → hops to the nearest pending fix, once `fixed` has its own; None if there is none.

    A package is exposed if and only if it has a distance.
    """
    graph = _condensed()
    component = graph.graph["mapping"]
    found = {component[package]: 0 for package in pending() if package != fixed}
    queue = deque(found)
    while queue:
        node = queue.popleft()
        for dependent in graph.successors(node):
            if dependent not in found:
                found[dependent] = found[node] + 1
                queue.append(dependent)
    return {package: found.get(node) for package, node in component.items()}


def counts(package: str) -> Counts:
    """The answer of the demo, were `package` fixed."""
    before, after = distances(), distances(package)
    return Counts(
        sum(hops is not None for hops in before.values()),
        sum(hops is not None for hops in after.values()),
        sum(before[name] != after[name] for name in before),
    )
