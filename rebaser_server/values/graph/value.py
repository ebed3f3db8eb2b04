"""One value of a graph as callers see it, and all of them by id."""

from collections.abc import Iterator, Mapping, ValuesView
from typing import Any, Final

import numpy as np

from rebaser_server.values.canonical_json import loads
from rebaser_server.values.graph.columns import BLOCKED, FAILED, REMOVED, STATUSES
from rebaser_server.values.graph.readable_graph import ReadableGraph
from rebaser_server.values.graph.types import Inputs, ValueStatus

_WITHOUT_VALUE: Final = (FAILED, BLOCKED)


class Value:
    """A node. A *source* (`func_id` is None) is set by updates, a *dependent* one is computed.

    A view: it shows the present state of the graph, and is of no use once the value is removed.
    """

    __slots__ = ("_graph", "index")

    def __init__(self, graph: ReadableGraph, index: int) -> None:
        self._graph = graph
        self.index: Final = index

    @property
    def id(self) -> str:
        return self._graph.id_at(self.index)

    @property
    def name(self) -> str | None:
        return self._graph.names.name_at(self.index)

    @property
    def text(self) -> str:
        """Its value as canonical JSON text; `null` if there is none."""
        graph = self._graph
        if graph.columns.status.at[self.index] in _WITHOUT_VALUE:
            return "null"
        return graph.texts.get(graph.columns.text.at[self.index])

    @property
    def value(self) -> Any:
        """Its value, parsed on each access; changing the result does not change the graph."""
        return loads(self.text)

    @property
    def message(self) -> str | None:
        graph = self._graph
        if graph.columns.status.at[self.index] not in _WITHOUT_VALUE:
            return None
        return graph.texts.get(graph.columns.text.at[self.index])

    @property
    def status(self) -> ValueStatus:
        code: int = self._graph.columns.status.at[self.index]
        return STATUSES[code]

    @property
    def func_id(self) -> str | None:
        func_index = self._graph.columns.func.at[self.index]
        return None if func_index < 0 else self._graph.func_ids[func_index]

    @property
    def inputs(self) -> Inputs:
        """Its inputs, made on each access; `Graph.set_inputs` replaces them."""
        ids = self.input_ids()  # first: it may change the signature
        return self._graph.signatures.build_inputs(
            self._graph.columns.signature.at[self.index], ids
        )

    def input_ids(self) -> list[str]:
        """Every input, in argument order; one taken twice comes twice."""
        return list(map(self._graph.id_at, self._graph.adjacency.inputs(self.index)))

    @property
    def dependents(self) -> set[str]:
        """Values that take this one as an input."""
        return set(map(self._graph.id_at, self._graph.adjacency.dependents(self.index)))

    @property
    def has_dependents(self) -> bool:
        return next(self._graph.adjacency.dependents(self.index), None) is not None

    @property
    def rank(self) -> int:
        """Greater than that of every input: sorting by it is a topological order."""
        rank: int = self._graph.columns.rank.at[self.index]
        return rank

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Value) and other.index == self.index and other._graph is self._graph
        )

    def __hash__(self) -> int:
        return hash(self.index)

    def __repr__(self) -> str:
        return f"Value({self.id!r}, {self.status.value}, {self.text[:40]})"


class ValuesById(Mapping[str, Value]):
    """Value id → value, in the order in which they were defined."""

    def __init__(self, graph: ReadableGraph) -> None:
        self._graph = graph

    def get(self, value_id: str, default: Any = None) -> Value | Any:
        index = self._graph.index_of(value_id)
        return default if index < 0 else Value(self._graph, index)

    def __getitem__(self, value_id: str) -> Value:
        index = self._graph.index_of(value_id)
        if index < 0:
            raise KeyError(value_id)
        return Value(self._graph, index)

    def __contains__(self, value_id: object) -> bool:
        return isinstance(value_id, str) and self._graph.index_of(value_id) >= 0

    def __len__(self) -> int:
        return self._graph.count

    def __iter__(self) -> Iterator[str]:
        columns = self._graph.columns
        for index in np.flatnonzero(columns.status.all != REMOVED).tolist():
            yield self._graph.id_at(index)

    def values(self) -> ValuesView[Value]:
        return _ValuesInOrder(self)

    def in_order(self) -> Iterator[Value]:
        for index in np.flatnonzero(self._graph.columns.status.all != REMOVED).tolist():
            yield Value(self._graph, index)


class _ValuesInOrder(ValuesView[Value]):
    """The values, without a lookup of their ids."""

    _mapping: ValuesById

    def __iter__(self) -> Iterator[Value]:
        return self._mapping.in_order()
