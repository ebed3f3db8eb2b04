"""Evaluate a plan: report its progress, and stop it once it makes no progress."""

import asyncio
from dataclasses import dataclass
from typing import Final, Never

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import DvuClaim
from rebaser_core.ids import ChangeSet
from rebaser_server.compute.plan.plan import Plan
from rebaser_server.compute.runs.bisection import run_isolated
from rebaser_server.compute.runs.executor import Executor
from rebaser_server.compute.runs.progress_deadline import ProgressDeadline
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.processor.notifier import Notifier
from rebaser_server.runtime.concurrency import background

REPORT_EVERY: Final = 1.0  # seconds
SHORTEST_LIMIT: Final = 5.0
"""Seconds for which a unit may make no progress during the search for a value that crashes."""


@dataclass(frozen=True, slots=True)
class DvuEvaluation:
    """Evaluates the updates of one change set."""

    change_set: ChangeSet
    executor: Executor
    notifier: Notifier
    deadline: float
    """Seconds for which an evaluation may go on without computing another value."""

    async def evaluate(
        self, planned: Plan, claim: DvuClaim, shelf: RunStore, *, is_suspect: bool
    ) -> list[UnitResult | StoredResult]:
        """Evaluate the plan; return the result of each unit of work.

        `is_suspect`: one of the values may have crashed its evaluator; search for it.

        Raises:
            DvuError: there are no results, beside those in the run store.
        """
        if not planned.units:
            return []
        progress: list[tuple[int, int]] = []
        deadline = ProgressDeadline(self.deadline)

        def on_progress(done: int, in_all: int) -> None:
            progress.append((done, in_all))
            deadline.record(done, in_all)

        async with deadline.limiting(), background(self._report(progress, claim)):
            if not is_suspect:
                return await self.executor.run(planned.units, store=shelf, on_progress=on_progress)
            return await run_isolated(
                self.executor,
                planned.units,
                limit=max(SHORTEST_LIMIT, self.deadline / 20),
                store=shelf,
                on_progress=on_progress,
                on_step=deadline.extend,
            )

    async def _report(self, progress: list[tuple[int, int]], claim: DvuClaim) -> Never:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if progress:
                done, in_all = progress[-1]
                progress.clear()
                await self.notifier.activity(
                    self.change_set, ActivityKind.DVU_PROGRESS, claim.id, done=done, of=in_all
                )
