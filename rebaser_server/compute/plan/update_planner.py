"""Plans the updates of one change set, so that all attempts at an update have the same units."""

from typing import Final

from rebaser_server.compute.plan.admission import UnitLimits
from rebaser_server.compute.plan.cost_model import CostModel
from rebaser_server.compute.plan.plan import Plan, plan
from rebaser_server.compute.units.run_store import RunStore
from rebaser_server.values.graph import Graph


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

    def plan(
        self, graph: Graph, clean_sequence: int, store: RunStore, *, is_repeated: bool
    ) -> Plan:
        """The units of the update that begins behind `clean_sequence`.

        Blocks; the caller holds the graph.

        Args:
            graph: of the change set.
            clean_sequence: the last that an update covered.
            store: of the update.
            is_repeated: whether the update was attempted before, maybe by another process.
        """
        if clean_sequence != self._clean_sequence:
            self._clean_sequence = clean_sequence
            self._estimates = CostModel(store.costs()) if is_repeated else self.costs.snapshot()
        planned = plan(graph, self.slots, costs=self._estimates, limits=self._limits)
        if len(planned.units) > 1 and self._estimates.seconds:
            functions = [(func.runtime, func.code) for func in graph.funcs.values()]
            store.put_costs(self._estimates.known(functions))
        return planned
