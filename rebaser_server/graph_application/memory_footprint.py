"""How much memory a change set takes that is held as a state, more or less."""

import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final

from rebaser_core.updates import PutValue
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import content_of, graph_of
from rebaser_server.values.graph import Graph

_ITEM: Final = 100
"""Bytes of a thing in a list or a dictionary, more or less."""
_REQUEST: Final = 175
"""Bytes of a request that is remembered."""
_EDIT: Final = 2_000
"""Bytes of a branch's edit beside its values: three definitions, of branch, base and head."""
_LEVELS: Final = 3
"""From a graph to its arrays."""


def footprint(state: State) -> int:
    """Bytes: exact for what is large, arrays and texts, and a guess for the rest."""
    size = _graph(graph_of(state))
    size += _REQUEST * len(state.recent) + _ITEM * len(state.external_batches)
    edits = content_of(state).edits
    if edits is not None:
        size += _EDIT * (len(edits.values) + len(edits.funcs))
        size += sum(map(_value, edits.theirs.values()))
        size += sum(_value(edit.base) for edit in edits.values.values())
    return size


def _graph(graph: Graph) -> int:
    return _of(graph, _LEVELS, {id(graph)})


def _of(thing: Any, levels: int, seen: set[int]) -> int:
    """Of an array, of texts, or of all that an object of ours is made of."""
    if isinstance(thing, memoryview):
        return 0  # of an array that is counted
    if isinstance(thing, array):
        return thing.itemsize * len(thing)
    if isinstance(thing, dict | list | set):
        return sys.getsizeof(thing) + _ITEM * len(thing)
    nbytes = getattr(thing, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if not levels or not type(thing).__module__.startswith(Graph.__module__.rpartition(".")[0]):
        return 0
    parts = [part for part in _parts(thing) if id(part) not in seen]
    seen.update(map(id, parts))
    return sum(_of(part, levels - 1, seen) for part in parts)


def _parts(thing: Any) -> Iterable[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)


def _value(put: PutValue | None) -> int:
    """Bytes of what a definition says that the value is, if it is text; else a guess."""
    value = None if put is None else put.value
    return sys.getsizeof(value) if isinstance(value, str | list | dict) else 0
