"""A change set without streams: requests, and updates of dependents beside them.

The graph, the plan and the evaluation are the real ones.
"""

from typing import Any

from rebaser_core.updates import AnyUpdate, SetComputed
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import decode_result
from rebaser_server.values.bulk_rebase import RebaseResult
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.reference_model import plain


class ChangeSet:
    """A graph, and up to which request its dependents are due and computed."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.sequence = 0
        """Number of the last request."""
        self.dirty = self.clean = 0
        """Last request that left work to an update, and up to which one that is done."""
        self._covers = 0
        self._results: list[SetComputed] = []
        """Results of the last update, on their way."""

    @property
    def is_due(self) -> bool:
        return self.dirty > self.clean

    def request(self, updates: list[AnyUpdate]) -> RebaseResult:
        self.sequence += 1
        done = rebase(self.graph, self.sequence, updates)
        if done.dirty:
            self.dirty = self.sequence
        return done

    def start_update(self) -> None:
        """Plan and evaluate."""
        self._covers = self.dirty
        outcomes = [
            decode_result(evaluate(unit.encode()))
            for unit in plan(self.graph, slots=2, small=0).units
        ]
        self._results = [as_update(each) for one in outcomes for each in one.value_results]

    def finish_update(self) -> RebaseResult:
        """Apply the results that are on their way (D5)."""
        done = rebase(self.graph, self.sequence + 1, self._results, self._covers)
        self.graph.clear_roots(self._covers)
        self.clean = self._covers
        return done

    def update_until_right(self) -> None:
        while self.is_due:
            self.start_update()
            self.finish_update()


def as_update(result: tuple[str, str, Any]) -> SetComputed:
    value_id, status, what = result
    field = {"ok": "value", "failed": "failed", "blocked": "blocked_by"}[status]
    return SetComputed(value_id=value_id, **{field: what})


def recomputed(graph: Graph) -> dict[str, tuple[str, Any]]:
    """By id of a dependent value its status and value or blocker, from nothing but the sources."""
    known: dict[str, tuple[str, Any]] = {}

    def compute(value_id: str) -> tuple[str, Any]:
        if value_id not in known:
            value = graph.values[value_id]
            known[value_id] = ("ok", value.value) if value.func_id is None else call(value)
        return known[value_id]

    def call(value: Any) -> tuple[str, Any]:
        for input_id in value.input_ids():
            if compute(input_id)[0] != "ok":
                return "blocked", input_id
        arguments = {
            argument: compute(target)[1]
            if isinstance(target, str)
            else [compute(input_id)[1] for input_id in target]
            for argument, target in value.inputs.items()
        }
        try:
            return "ok", read_only(BUILTINS[graph.funcs[value.func_id].code](**arguments))
        except Exception:  # noqa: BLE001 - a missing function as well as one that raises
            return "failed", None

    return {
        value_id: (status, plain(what))
        for value_id, value in graph.values.items()
        if value.func_id is not None
        for status, what in [compute(value_id)]
    }
