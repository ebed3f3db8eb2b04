"""Plans and runs dependent values updates, as the core's background jobs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from blake3 import blake3

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state import Content
from rebaser_server.compute.call_watchdog import KILL_FACTOR
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed, Stalled
from rebaser_server.compute.executors import Executor, OnProgress, ProgressDeadline
from rebaser_server.compute.plan import Plan, UnitLimits, UpdatePlanner
from rebaser_server.compute.rescue import run_isolated
from rebaser_server.compute.results import RunStore, StoredResult, UnitResult
from rebaser_server.graph_application.content import as_graph
from rebaser_server.graph_application.dvu.results import (
    DvuResult,
    ResultTarget,
    collect,
    fail_affected,
    fail_uncomputed,
)
from rebaser_server.processor.application import Job
from rebaser_server.telemetry.work_stats import WorkStats

MIN_UNIT_DEADLINE: Final = 5.0
"""Seconds for which a unit may make no progress during the search for a value that crashes."""


@dataclass(frozen=True, slots=True)
class DvuServices:
    """What the updates of all change sets of a process are computed with."""

    executor: Executor
    slots: int
    """Units that it computes at a time."""
    costs: CostModel
    limits: UnitLimits
    deadline: timedelta
    """For which an update may go on without computing another value."""
    batches: BatchStore
    stats: WorkStats
    """Where people see what an update looks like."""


class DvuPlanner:
    """A `JobPlanner` for one run."""

    def __init__(self, services: DvuServices, change_set: ChangeSet) -> None:
        self._services = services
        self._change_set = change_set
        self._planner = UpdatePlanner(services.slots, services.limits, services.costs)

    def prepare(
        self, content: Content, after: int, *, is_repeated: bool
    ) -> Job | Callable[[], Job]:
        target, graph = self._target(after), as_graph(content).graph
        plan = self._planner.prepare(graph, after, target.run_store, is_repeated=is_repeated)
        if callable(plan):
            return lambda: DvuJob(self._services, self._change_set, plan(), target)
        return DvuJob(self._services, self._change_set, plan, target)

    def fail_all(self, content: Content, after: int, message: str) -> DvuResult:
        return fail_affected(as_graph(content).graph, message, self._target(after))

    def _target(self, after: int) -> ResultTarget:
        """What all attempts at the update behind a sequence share."""
        workspace, change_set = self._change_set
        key = blake3(f"{workspace}.{change_set}.{after}".encode()).hexdigest()
        return ResultTarget(self._services.batches, RunStore(self._services.batches.files, key))


@dataclass(frozen=True, slots=True)
class DvuJob:
    """A `Job`: a plan, and where its results go."""

    services: DvuServices
    change_set: ChangeSet
    planned: Plan
    target: ResultTarget

    @property
    def affected(self) -> int:
        return self.planned.affected

    async def run(self, *, is_suspect: bool, on_progress: OnProgress) -> DvuResult:
        self.services.stats.set_sketch(self.change_set, self.planned.preview)
        try:
            outcomes = await self._evaluate(is_suspect=is_suspect, on_progress=on_progress)
        except Stalled as error:
            if self._is_no_functions_fault():
                raise RunFailed(f"{error}, and no function may take that long") from error
            raise
        result = await asyncio.to_thread(collect, outcomes, self.target)
        self.services.costs.learn(result.costs)
        return result

    async def _evaluate(
        self, *, is_suspect: bool, on_progress: OnProgress
    ) -> list[UnitResult | StoredResult]:
        if not self.planned.units:
            return []
        executor, seconds = self.services.executor, self.services.deadline.total_seconds()
        deadline, owner = ProgressDeadline(seconds), str(self.change_set.workspace_id)

        def record(done: int, in_all: int) -> None:
            on_progress(done, in_all)
            deadline.record(done, in_all)

        async with deadline.limiting():
            if not is_suspect:
                return await executor.run(
                    self.planned.units,
                    owner=owner,
                    store=self.target.run_store,
                    on_progress=record,
                )
            return await run_isolated(
                executor,
                self.planned.units,
                limit=max(MIN_UNIT_DEADLINE, seconds / 20),
                owner=owner,
                store=self.target.run_store,
                on_progress=record,
                on_step=deadline.extend,
            )

    def _is_no_functions_fault(self) -> bool:
        """Whether a call that takes as long as the deadline would have been ended before."""
        longest = KILL_FACTOR * self.services.limits.calls.seconds + 1
        return 1 < longest < self.services.deadline.total_seconds()

    async def give_up(self, message: str) -> DvuResult:
        units, slots = self.planned.units, self.services.slots
        return await fail_uncomputed(units, message, self.target, slots)
