"""Plans the updates of one change set, so that all attempts at an update have the same units."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rebaser_server.compute.plan.admission import UnitLimits
from rebaser_server.compute.plan.affected import Closure, small_closure
from rebaser_server.compute.plan.cost_model import CostModel
from rebaser_server.compute.plan.plan import Plan, plan
from rebaser_server.compute.units.run_store import RunStore
from rebaser_server.values.graph import Graph, GraphSnapshot, ReadableGraph

_FEW_EDGES: Final = 4_096
_PART: Final = 128
"""An update is small with up to `_FEW_EDGES`, or one for so many values, before what it affects: to
plan it costs no more than a snapshot of the graph."""


class UpdatePlanner:
    """Keeps the estimates that the update in hand is planned with, in all of its attempts.

    What an attempt left in the run store belongs to its units: others would find nothing there.
    """

    def __init__(self, slots: int, limits: UnitLimits, costs: CostModel) -> None:
        self.slots: Final = slots
        self.costs: Final = costs
        self._limits = limits
        self._estimates = CostModel()
        self._clean_sequence: int | None = None
        """The update in hand is the one that begins behind this sequence."""

    def prepare(
        self, graph: Graph, clean_sequence: int, store: RunStore, *, is_repeated: bool
    ) -> Plan | Callable[[], Plan]:
        """Take from the graph what planning the update behind `clean_sequence` needs.

        Blocks; the caller holds the graph for as long as that takes, which is some milliseconds
        for a million values. Returns the plan if it is small, else what makes it, which blocks
        for longer and needs the graph no more.

        Args:
            graph: of the change set.
            clean_sequence: the last that an update covered.
            store: of the update.
            is_repeated: whether the update was attempted before, maybe by another process.
        """
        if clean_sequence != self._clean_sequence:
            self._clean_sequence = clean_sequence
            self._estimates = CostModel(store.costs()) if is_repeated else self.costs.snapshot()
        affected = small_closure(graph, max(_FEW_EDGES, len(graph.columns) // _PART))
        if affected is None:
            return partial(self._plan, GraphSnapshot(graph), store)
        return self._plan(graph, store, affected)

    def _plan(self, graph: ReadableGraph, store: RunStore, affected: Closure | None = None) -> Plan:
        planned = plan(
            graph, self.slots, costs=self._estimates, limits=self._limits, affected=affected
        )
        if len(planned.units) > 1 and self._estimates.seconds:
            functions = [(func.runtime, func.code) for func in graph.funcs.values()]
            store.put_costs(self._estimates.known(functions))
        return planned
