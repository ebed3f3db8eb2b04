"""What a dependent values update computes: the affected values, packed into blobs.

The cost follows the affected values and their inputs; the rest of the graph is not looked at.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rebaser_server.dvu.blob import Blob, Shape
from rebaser_server.dvu.components import components, shared_out
from rebaser_server.graph import Graph, Status, Value

SMALL = 256
"""Values that a blob holds on average, at least: tasks of fewer would cost more than they gain."""
BLOBS_PER_SLOT = 2
"""More than one, so that a slot that was given the cheaper values can take over from another."""

_OK, _PENDING = Status.OK, Status.PENDING  # an enum's own look-ups are slow
_WORDS = {status: status.value for status in Status}


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot: what happens to the graph afterwards does not reach it."""

    affected: int
    """Values that may be recomputed; how many are, early cutoff decides while they run."""
    blobs: list[bytes]
    """Encoded `Blob`s, independent of each other, the largest first."""


def plan(graph: Graph, slots: int, *, small: int = SMALL) -> Plan:
    """The update that covers all of `graph.roots`, for `slots` evaluators at a time.

    Dependent roots and the direct dependents of every root are computed in any case, others
    that are affected only if one of their inputs comes out changed.
    """
    forced = _forced(graph)
    affected = _affected(graph, forced)
    groups = [affected]
    count = min(slots * BLOBS_PER_SLOT, len(affected) // max(small, 1))
    if slots > 1 and count > 1:
        groups = shared_out(components(affected), count)
    return Plan(len(affected), [_blob(graph, group, forced) for group in groups if group])


def _forced(graph: Graph) -> set[str]:
    forced = set()
    for root_id in graph.roots:
        root = graph.values.get(root_id)
        if root is not None:
            forced.add(root_id)
            forced |= root.dependents
    return forced


def _affected(graph: Graph, forced: set[str]) -> list[Value]:
    """The dependent values in `forced` and all that depend on them, in topological order."""
    seen = set(forced)
    reached = [graph.values[value_id] for value_id in forced]
    for value in reached:  # grows while it is walked
        fresh = value.dependents - seen
        seen |= fresh
        reached += [graph.values[value_id] for value_id in fresh]
    return sorted((v for v in reached if v.func_id is not None), key=attrgetter("rank"))


def _blob(graph: Graph, group: list[Value], forced: set[str]) -> bytes:
    blob = Blob(
        ids=[value.id for value in group],
        statuses=[_WORDS[value.status] for value in group],
        before=[value.value if value.status is _OK else value.message for value in group],
        forced=[value.id in forced or value.status is _PENDING for value in group],
    )
    cells = _Cells(graph, blob)
    calls = _Calls(graph, blob)
    cell_of = cells.__getitem__
    for value in group:
        shape: list[Shape] = []
        for argument, target in value.inputs.items():
            if isinstance(target, list):
                shape.append((argument, len(target)))
                blob.refs += map(cell_of, target)
            else:
                shape.append((argument, None))
                blob.refs.append(cell_of(target))
        blob.calls.append(calls[value.func_id, *shape])
    blob.constants.reverse()
    return blob.encode()


class _Cells(dict[str, int]):
    """Value id → its cell; one that is not the blob's own becomes a constant of it."""

    def __init__(self, graph: Graph, blob: Blob) -> None:
        super().__init__(zip(blob.ids, range(len(blob.ids)), strict=True))
        self._graph = graph
        self._constants = blob.constants

    def __missing__(self, value_id: str) -> int:
        value = self._graph.values[value_id]
        is_known = value.status is _OK
        self._constants.append((value_id, is_known, value.value if is_known else None))
        cell = self[value_id] = -len(self._constants)
        return cell


class _Calls(dict[tuple[Any, ...], int]):
    """Function id and shape of the arguments → its signature."""

    def __init__(self, graph: Graph, blob: Blob) -> None:
        super().__init__()
        self._graph = graph
        self._blob = blob
        self._functions: dict[str, int] = {}

    def __missing__(self, key: tuple[Any, ...]) -> int:
        func_id, *shape = key
        if func_id not in self._functions:
            self._functions[func_id] = len(self._functions)
            func = self._graph.funcs.get(func_id)
            self._blob.functions.append((func.runtime, func.code) if func else (None, func_id))
        signature = self[key] = len(self._blob.signatures)
        self._blob.signatures.append((self._functions[func_id], shape))
        return signature
