"""What a value is computed from, and the shortest way from each of these to it."""

from collections.abc import Iterator, Mapping
from typing import Final

from rebaser_server.values.columns import ValueStatus
from rebaser_server.values.graph import Graph

MAX_VALUES: Final = 100_000
"""Values in a lineage: those behind them are left out."""


class Lineage:
    """A value with all that it is computed from, as a graph has it now; a copy."""

    def __init__(self, graph: Graph, value_id: str) -> None:
        """`value_id`: of a value in the graph."""
        self.value_id: Final = value_id
        self.is_whole = True
        """Whether all of it is here: no more than `MAX_VALUES`."""
        self.names: dict[str, str] = {}
        """Of the values, or their ids, by id."""
        self.func_names: dict[str, str] = {}
        """Of the functions that compute them, or their ids, by id."""
        self.roots: dict[str, int] = {}
        """Values that changed since the last update → sequence of the request."""
        self.failures: dict[str, str] = {}
        """Failed values because of which the last one has no result → message."""
        self._next: dict[str, str] = {value_id: ""}
        """Value → the one that takes it, on the shortest way to the last one."""
        self._steps: dict[str, int] = {value_id: 1}
        """Number of names from a value to the last one, both included."""
        self._computed: dict[str, str] = {}
        """Function → the value nearest to the last one that it computes."""
        self._add_values(graph)
        self._add_failures(graph)

    def _add_values(self, graph: Graph) -> None:
        level = [self.value_id]
        while level:
            met: list[str] = []
            for value_id in level:
                value = graph.values[value_id]
                self.names[value_id] = value.name or value_id
                if (root := graph.roots.get(value_id)) is not None:
                    self.roots[value_id] = root
                if (func_id := value.func_id) is not None and func_id not in self.func_names:
                    func = graph.funcs.get(func_id)
                    self.func_names[func_id] = func_id if func is None else func.name
                    self._computed[func_id] = value_id
                for input_id in value.input_ids():
                    if input_id not in self._next and len(self._next) < MAX_VALUES:
                        self._next[input_id] = value_id
                        self._steps[input_id] = self._steps[value_id] + 1
                        met.append(input_id)
                    self.is_whole &= input_id in self._next
            level = met

    def _add_failures(self, graph: Graph) -> None:
        met, ways = {self.value_id}, [self.value_id]
        while ways:
            value = graph.values[ways.pop()]
            if value.status is ValueStatus.FAILED and value.id in self._next:
                self.failures[value.id] = value.message or ""
            elif value.status is ValueStatus.BLOCKED:
                ways += (inputs := {*value.input_ids()} - met)
                met |= inputs

    @property
    def values(self) -> Mapping[str, str]:
        """All its values by id, the last one first."""
        return self._next

    def steps(self, value_id: str) -> int:
        """How many names `path` yields; a chain has too many paths to look at all of them."""
        return self._steps[value_id]

    def steps_of_function(self, func_id: str) -> int:
        """How many names `path_of_function` yields."""
        return 1 + self._steps[self._computed[func_id]]

    def path(self, value_id: str) -> Iterator[str]:
        """The names from a value of it to the last one, both included."""
        while value_id:
            yield self.names[value_id]
            value_id = self._next[value_id]

    def path_of_function(self, func_id: str) -> Iterator[str]:
        """The names from a function to the last value."""
        yield self.func_names[func_id]
        yield from self.path(self._computed[func_id])
