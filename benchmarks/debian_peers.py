"""The Debian graph computed by its own functions in a plain loop, and with networkx."""

from collections.abc import Callable
from typing import Any

import networkx as nx
from pydantic import TypeAdapter

from debian_demo.graph import load_packages
from rebaser_core.updates import Update
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.functions.runtimes import resolve
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import decode_result
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase

Call = tuple[Callable[..., Any], dict[str, str | list[str]]]


class Debian:
    """Never computed yet: all dependent values are to be."""

    def __init__(self, slots: int) -> None:
        graph = Graph()
        rebase(graph, 1, TypeAdapter(list[Update]).validate_python(load_packages().updates()))
        self.blobs = plan(graph, slots).units
        self._sources: dict[str, Any] = {}
        self._calls: dict[str, Call] = {}
        self._values: dict[str, Any] = {}
        for value in graph.values.values():
            if value.func_id is None:
                self._sources[value.id] = value.value
            else:
                func = graph.funcs[value.func_id]
                self._calls[value.id] = resolve(func.runtime, func.code), dict(value.inputs)
        self.count = len(self._calls)
        self._graph = nx.DiGraph()
        for value_id, (_, inputs) in self._calls.items():
            self._graph.add_node(value_id)
            for target in inputs.values():
                ids = [target] if isinstance(target, str) else target
                self._graph.add_edges_from((input_id, value_id) for input_id in ids)
        self._order = [each for each in nx.topological_sort(self._graph) if each in self._calls]

    def python(self) -> None:
        """A loop in an order that is known."""
        self._compute(self._order)

    def networkx(self) -> None:
        self._compute(nx.topological_sort(self._graph))

    def _compute(self, order: Any) -> None:
        values, calls = dict(self._sources), self._calls
        for value_id in order:
            call = calls.get(value_id)
            if call is not None:
                function, inputs = call
                values[value_id] = function(
                    **{
                        name: values[target]
                        if isinstance(target, str)
                        else [values[each] for each in target]
                        for name, target in inputs.items()
                    }
                )
        self._values = values

    def require_same(self) -> None:
        """That the loops and Rebaser's evaluator come to the same."""
        found = 0
        for blob in self.blobs:
            for value_id, _, value in decode_result(evaluate(blob)).value_results:
                found += 1
                if self._values[value_id] != value:
                    raise RuntimeError(f"{value_id}: {value}, not {self._values[value_id]}")
        if found != self.count:
            raise RuntimeError(f"{found} results of {self.count}")
