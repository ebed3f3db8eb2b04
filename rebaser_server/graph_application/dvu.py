"""Plans and runs dependent values updates, as the core's background jobs.

The result of a dependent values update: a few values in a commit, many in files.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pyarrow as pa
import structlog
from blake3 import blake3

from rebaser_client.requests import INLINE_UPDATES
from rebaser_core.commits import DvuClaim
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import DvuResultInfo, ResultFile, UpdatesAddress
from rebaser_core.updates import SetComputed
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state import Batch, Content
from rebaser_server.compute.affected import certain_dependents, closure
from rebaser_server.compute.call_watchdog import KILL_FACTOR
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed, Stalled
from rebaser_server.compute.executors import Executor, OnProgress, ProgressDeadline
from rebaser_server.compute.memo import Memo, WorkspaceMemo
from rebaser_server.compute.plan import Plan, UnitLimits, UpdatePlanner
from rebaser_server.compute.rescue import failed_result, run_isolated, salvage
from rebaser_server.compute.results import (
    REMEMBERED,
    CallCosts,
    RunStore,
    StoredResult,
    UnitResult,
    ValueResult,
    total_costs,
)
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.graph_application.content import as_graph
from rebaser_server.processor.application import Job
from rebaser_server.runtime.containment import contained
from rebaser_server.telemetry import metrics
from rebaser_server.telemetry.work_stats import WorkStats
from rebaser_server.values.graph import Graph

log: Final = structlog.get_logger()

_INLINE_TEXT: Final = 32 * 1024
"""Most octets of results that travel in a message."""


_IMPURE_LOGGED: Final = 10
"""Values of functions that are not pure that one update logs, at most."""
_LOGGED_TEXT: Final = 200
"""Characters of their results."""


@dataclass(frozen=True, slots=True)
class ResultTarget:
    """Where the results of one update go."""

    batches: BatchStore
    run_store: RunStore
    """What all attempts at the update share."""


@dataclass(frozen=True, slots=True)
class DvuResult:
    """A `JobResult`: updates or files, not both."""

    target: ResultTarget
    recomputed: int = 0
    costs: CallCosts = field(default_factory=dict)
    updates: Sequence[SetComputed] = ()
    files: Sequence[ResultFile] = ()
    """In the run store."""

    def __len__(self) -> int:
        return len(self.updates) + sum(file.values for file in self.files)

    @property
    def batch(self) -> Batch:
        batches, run = self.target.batches, self.target.run_store.key
        results = batches.result_files(run, self.files) if self.files else None
        return Batch(self.updates, results=results)

    async def store(self, claim: DvuClaim, base: int, max_bytes: int) -> UpdatesAddress:
        batches = self.target.batches
        computed = DvuResultInfo(claim=claim.id, covers=claim.covers, commit=base)
        if self.files:
            run = self.target.run_store.key
            return await batches.put_results(claim.id, computed, run, self.files)
        return await batches.put(claim.id, self.updates, computed, room=max_bytes)

    def clear(self) -> None:
        self.target.run_store.clear([file.name for file in self.files])


def collect(outcomes: Sequence[UnitResult | StoredResult], target: ResultTarget) -> DvuResult:
    """Collect the results of all units; large ones that are not in the run store are put there.

    Blocks.
    """
    recomputed = sum(outcome.recomputed for outcome in outcomes)
    costs = total_costs(outcomes)
    in_memory = [
        outcome for outcome in outcomes if isinstance(outcome, UnitResult) and len(outcome)
    ]
    files = [
        ResultFile(name=name, values=count)
        for outcome in outcomes
        if isinstance(outcome, StoredResult)
        for name, count in outcome.files
        if count
    ]
    if not files and _is_small(in_memory):
        updates = [_update_of(result) for outcome in in_memory for result in outcome.value_results]
        return DvuResult(target, recomputed, costs, updates)
    if in_memory:
        table = pa.concat_tables([outcome.table.replace_schema_metadata() for outcome in in_memory])
        name = target.run_store.put_part("0", 0, 0, UnitResult(0, table))
        files.append(ResultFile(name=name, values=len(table)))
    return DvuResult(target, recomputed, costs, files=files)


async def _fail_uncomputed(
    units: Sequence[bytes | memoryview], message: str, target: ResultTarget, slots: int
) -> DvuResult:
    """Collect the units' computed results; all their other values fail with this message."""
    outcomes = await salvage(units, message, target.run_store, slots)
    return await asyncio.to_thread(collect, outcomes, target)


def _fail_affected(graph: Graph, message: str, target: ResultTarget) -> DvuResult:
    """Fail all values that the graph's roots affect: the update cannot be planned.

    If not even these can be listed, fail those that the next update would always compute.
    Blocks; the caller holds the graph.
    """
    try:
        affected = closure(graph)
        indices = affected.indices
        affected.release(graph)
    except Exception:
        log.exception("affected values unknown")
        indices = certain_dependents(graph)
    return collect([failed_result(graph.ids_of(indices), message)], target)


def _is_small(outcomes: Sequence[UnitResult]) -> bool:
    return (
        sum(map(len, outcomes)) <= INLINE_UPDATES
        and sum(outcome.table.nbytes for outcome in outcomes) <= _INLINE_TEXT
    )


def _update_of(result: ValueResult) -> SetComputed:
    value_id, status, content = result
    match status:
        case "ok":
            return SetComputed(value_id=value_id, value=content)
        case "failed":
            return SetComputed(value_id=value_id, failed=str(content))
        case _:
            return SetComputed(value_id=value_id, blocked_by=str(content))


_MIN_UNIT_DEADLINE: Final = 5.0
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
    memo: Memo
    stats: WorkStats
    """Where people see what an update looks like."""


class DvuPlanner:
    """A `JobPlanner` for one run."""

    def __init__(self, services: DvuServices, change_set: ChangeSet) -> None:
        self._services = services
        self._change_set = change_set
        self._memo = services.memo.of(str(change_set.workspace_id))
        self._planner = UpdatePlanner(services.slots, services.limits, services.costs, self._memo)

    def prepare(
        self, content: Content, after: int, *, is_repeated: bool
    ) -> Job | Callable[[], Job]:
        target, graph = self._target(after), as_graph(content).graph
        plan = self._planner.prepare(graph, after, target.run_store, is_repeated=is_repeated)
        if callable(plan):
            return lambda: DvuJob(self._services, self._change_set, plan(), target, self._memo)
        return DvuJob(self._services, self._change_set, plan, target, self._memo)

    def fail_all(self, content: Content, after: int, message: str) -> DvuResult:
        return _fail_affected(as_graph(content).graph, message, self._target(after))

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
    memo: WorkspaceMemo | None

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
        if self.memo is not None:
            await asyncio.to_thread(self._remember, self.memo, outcomes)
        return result

    def _remember(self, memo: WorkspaceMemo, outcomes: Sequence[UnitResult | StoredResult]) -> None:
        tables = []
        for outcome in outcomes:
            if isinstance(outcome, UnitResult):
                tables.append(outcome.remembered)
                continue
            with contained("remembered result"):
                parts = [self.target.run_store.get_part(name) for name, _ in outcome.files]
                tables += [part.remembered for part in parts]
        results = pa.concat_tables([REMEMBERED.empty_table(), *tables])
        self._report_impure(results.filter(results.column("former").is_valid()))
        costs = total_costs(outcomes)
        memo.record(
            results,
            sum(spent for function, (_, spent) in costs.items() if function[0] != "builtin"),
        )

    def _report_impure(self, results: pa.Table) -> None:
        """Tell of values of which the same call came to another result than before."""
        if not results.num_rows:
            return
        metrics.DVU_VALUES.labels("impure").inc(results.num_rows)
        units = [WorkUnit.decode(unit) for unit in self.planned.units]
        functions = {
            value_id: unit.functions[unit.signatures[signature][0]][1]
            for unit in units
            for value_id, signature in zip(
                unit.ids.to_pylist(), unit.signature_indices.tolist(), strict=True
            )
        }
        for row in results.to_pylist()[:_IMPURE_LOGGED]:
            log.warning(
                "function is not pure",
                function=functions.get(row["id"]),
                value=row["id"],
                before=row["former"][:_LOGGED_TEXT],
                now=row["text"][:_LOGGED_TEXT],
            )

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
                limit=max(_MIN_UNIT_DEADLINE, seconds / 20),
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
        return await _fail_uncomputed(units, message, self.target, slots)
