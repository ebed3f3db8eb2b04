"""Plans and runs dependent values updates, as the core's background jobs.

The result of an update is a few values in a commit, or many in files.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final, Never

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from blake3 import blake3

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import DvuClaim
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import DvuResultInfo, ResultFile, UpdatesAddress
from rebaser_core.requests import INLINE_UPDATES
from rebaser_core.updates import SetComputed
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state import Batch, Content
from rebaser_server.compute.affected import certain_dependents, closure
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.memo import Memo, WorkspaceMemo
from rebaser_server.compute.plan import Rounds, UnitLimits, UpdatePlanner
from rebaser_server.compute.rescue import failed_result, isolated, salvage
from rebaser_server.compute.results import (
    REMEMBERED,
    CallCosts,
    RunStore,
    StoredResult,
    UnitResult,
    ValueResult,
    total_costs,
)
from rebaser_server.compute.run import Executor, Run
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.files import shared_files
from rebaser_server.graph_application.code import after_update
from rebaser_server.graph_application.content import as_graph
from rebaser_server.graph_application.extension import Extension
from rebaser_server.processor.application import CommitPart, Job
from rebaser_server.processor.outcomes import Notifier
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.failures import Stalled
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import background
from rebaser_server.telemetry import metrics
from rebaser_server.values.graph import Graph

log: Final = structlog.get_logger()

_INLINE_TEXT: Final = 32 * 1024
"""Maximum bytes of results that travel in a message."""


_IMPURE_REPORTED: Final = 10
"""Maximum number of values of impure functions that one round of an update reports."""
_REPORTED_TEXT: Final = 100
"""Maximum number of characters of their results, and of the functions' code."""


@dataclass(frozen=True, slots=True)
class ResultTarget:
    batches: BatchStore
    run_store: RunStore
    """Store that all attempts at the update share."""


@dataclass(frozen=True, slots=True)
class DvuResult:
    """A `JobResult`: updates or files, not both."""

    target: ResultTarget
    recomputed: int = 0
    costs: CallCosts = field(default_factory=dict)
    updates: Sequence[SetComputed] = ()
    files: Sequence[ResultFile] = ()
    """Files in the run store."""
    in_parts: int = 0
    """Number of results that were committed before."""

    @property
    def changed(self) -> int:
        return len(self) + self.in_parts

    def __len__(self) -> int:
        return len(self.updates) + sum(file.values for file in self.files)

    def code(self, before: str, *, is_last: bool) -> str:
        return after_update(before, self.costs, is_last=is_last)

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
    """Collect the results of all units; put large ones into the run store, unless they are there.

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


def _fail_affected(graph: Graph, message: str, target: ResultTarget) -> DvuResult:
    """Fail all values that the graph's roots affect: the update cannot be planned.

    If these cannot be listed, fail the values that the next update would always compute. Blocks;
    the caller holds the graph.
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
"""Seconds without progress that a unit may take during the search for a value that crashes."""


@dataclass(frozen=True, slots=True)
class DvuServices:
    """Services and limits for the updates of all change sets of a process."""

    executor: Executor
    slots: Callable[[], int]
    """Function that returns the number of units that it computes at a time, as its cluster is."""
    costs: CostModel
    limits: UnitLimits
    deadline: timedelta
    """Time for which an update may go on without computing another value."""
    batches: BatchStore
    memo: Memo
    notifier: Notifier
    """Notifier by which people see what an update looks like, and what it found."""
    extension: Extension = field(default_factory=Extension)


class DvuPlanner:
    """A `JobPlanner` for one run."""

    def __init__(self, services: DvuServices, change_set: ChangeSet) -> None:
        self._services = services
        self._change_set = change_set
        self._memo = services.memo.of(str(change_set.workspace_id))
        self._planner = UpdatePlanner(services.slots(), services.limits, services.costs, self._memo)

    def prepare(
        self, content: Content, after: int, *, is_repeated: bool
    ) -> Job | Callable[[], Job]:
        target, graph = self._target(after), as_graph(content).graph
        if (on_plan := self._services.extension.on_plan) is not None:
            with contained("lineage"):
                on_plan(self._change_set, graph)
        self._planner.slots = self._services.slots()
        rounds = self._planner.prepare(graph, after, target.run_store, is_repeated=is_repeated)
        if callable(rounds):
            return lambda: self._job(rounds(), target)
        return self._job(rounds, target)

    def _job(self, rounds: Rounds, target: ResultTarget) -> "DvuJob":
        return DvuJob(self._services, self._change_set, rounds, target, self._memo)

    def fail_all(self, content: Content, after: int, message: str) -> DvuResult:
        return _fail_affected(as_graph(content).graph, message, self._target(after))

    def _target(self, after: int) -> ResultTarget:
        """Place for the results of all attempts at the update behind a sequence."""
        workspace, change_set = self._change_set
        key = blake3(f"{workspace}.{change_set}.{after}".encode()).hexdigest()
        return ResultTarget(
            self._services.batches, RunStore(shared_files(self._services.batches.files), key)
        )


class Parts:
    """Results that are committed while others are computed: people wait for each of them.

    They do not go into files of the run store, which the last commit of the update clears.
    """

    def __init__(self) -> None:
        self._ready: list[UnitResult] = []
        self._committing = asyncio.Lock()
        self._committed = set[str]()
        """Ids of their values."""

    def add(self, result: UnitResult) -> None:
        self._ready.append(result)

    @asynccontextmanager
    async def committed_by(self, commit: CommitPart, target: ResultTarget) -> AsyncIterator[None]:
        """Commit what is there while the body computes, as long as it is wanted."""
        async with background(self._commit_now_and_then(commit, target)):
            try:
                yield
            finally:
                # A commit that is cancelled ends the run; so the one under way is waited for.
                async with self._committing:
                    pass

    async def _commit_now_and_then(self, commit: CommitPart, target: ResultTarget) -> Never:
        is_wanted = True
        while True:
            await asyncio.sleep(_PART_EVERY)
            async with self._committing:
                is_wanted = is_wanted and await self._commit(commit, target)

    async def _commit(self, commit: CommitPart, target: ResultTarget) -> bool:
        ready, self._ready = self._ready, []
        # Results that are too many for a part are not lost: the job keeps all results, and the last
        # commit has those that no part committed.
        if not 0 < sum(map(len, ready)) <= _LARGEST_PART:
            return True
        results = [result for each in ready for result in each.value_results]
        updates = list(map(_update_of, results))
        part = DvuResult(target, costs=total_costs(ready), updates=updates)
        if not await commit(part):
            return False
        self._committed.update(value_id for value_id, _, _ in results)
        log.info("results committed before the others", values=len(results))
        return True

    def collected(
        self, outcomes: Sequence[UnitResult | StoredResult], target: ResultTarget
    ) -> DvuResult:
        """Collect, as `collect` does, what was not committed. Blocks."""
        if not self._committed:
            return collect(outcomes, target)
        ids = pa.array(sorted(self._committed))
        rest = [
            each if isinstance(each, StoredResult) else _without(each, ids) for each in outcomes
        ]
        return replace(collect(rest, target), in_parts=len(ids))


def _without(result: UnitResult, ids: pa.Array) -> UnitResult:
    others = pc.invert(pc.is_in(result.table["id"], value_set=ids))
    return replace(result, table=result.table.filter(others))


_PART_EVERY: Final = 1.0
"""Seconds between two commits of results that are there before others."""
_LARGEST_PART: Final = 5_000
"""Number of results beyond which they are committed with the others."""


@dataclass(frozen=True, slots=True)
class DvuJob:
    """A `Job`: the rounds of a plan, and the place for their results."""

    services: DvuServices
    change_set: ChangeSet
    rounds: Rounds
    target: ResultTarget
    memo: WorkspaceMemo | None
    units: list[WorkUnit] = field(default_factory=list)
    """Units of the rounds that are over."""
    outcomes: list[UnitResult | StoredResult] = field(default_factory=list)
    """Results of these units."""
    parts: Parts = field(default_factory=Parts)

    @property
    def affected(self) -> int:
        return self.rounds.affected

    async def run(
        self, *, is_suspect: bool, progress: JobProgress, commit_part: CommitPart
    ) -> DvuResult:
        try:
            async with (
                self.parts.committed_by(commit_part, self.target),
                # Inside the context above: when the deadline ends the computation, the commit of a
                # part that is under way is still waited for.
                progress.limiting(self.services.deadline.total_seconds()),
            ):
                while self.rounds.units:
                    progress.total = self.rounds.affected
                    await self._run_round(progress, is_suspect=is_suspect)
        except Stalled as error:
            if self._is_no_functions_fault():
                raise RunFailed(f"{error}, and no function may take that long") from error
            raise
        if (on_results := self.services.extension.on_results) is not None:
            results = chain.from_iterable(map(self.target.run_store.results_of, self.outcomes))
            with contained("lineage"):
                await asyncio.to_thread(on_results, self.change_set, results)
        return await asyncio.to_thread(self.parts.collected, self.outcomes, self.target)

    async def _run_round(self, progress: JobProgress, *, is_suspect: bool) -> None:
        part = progress.part(sum(map(len, self.rounds.units)))
        outcomes = await self._evaluate(part, is_suspect=is_suspect)
        part.record(part.total)  # also what was done before, or came out unchanged
        self.services.costs.learn(total_costs(outcomes))
        if self.memo is not None and any(unit.remembered for unit in self.rounds.units):
            for found in await asyncio.to_thread(self._remember, self.memo, outcomes):
                await self.services.notifier.activity(
                    self.change_set, ActivityKind.FUNCTION_IMPURE, **found
                )
        units = self.rounds.units
        await asyncio.to_thread(self.rounds.record, outcomes, self.target.run_store)
        self.units.extend(units)
        self.outcomes.extend(outcomes)
        progress.extend()

    def _remember(
        self, memo: WorkspaceMemo, outcomes: Sequence[UnitResult | StoredResult]
    ) -> list[dict[str, Any]]:
        """Remember results; return what shows that functions are not pure."""
        tables = []
        for outcome in outcomes:
            with contained("remembered result"):
                parts = self.target.run_store.results_of(outcome)
                tables += [part.remembered for part in parts]
        results = pa.concat_tables([REMEMBERED.empty_table(), *tables])
        costs = total_costs(outcomes)
        memo.record(
            results,
            sum(spent for function, (_, spent) in costs.items() if function[0] != "builtin"),
        )
        return self._note_impure(memo, results.filter(results.column("former").is_valid()))

    def _note_impure(self, memo: WorkspaceMemo, results: pa.Table) -> list[dict[str, Any]]:
        """Log and note values whose call came to another result than an earlier equal call."""
        if not results.num_rows:
            return []
        metrics.DVU_VALUES.labels("impure").inc(results.num_rows)
        functions = {
            value_id: unit.functions[unit.signatures[signature][0]]
            for unit in self.rounds.units
            for value_id, signature in zip(
                unit.ids.to_pylist(), unit.signature_indices.tolist(), strict=True
            )
        }
        where = {"workspace": memo.workspace, "changeSet": str(self.change_set.change_set_id)}
        impure: list[dict[str, Any]] = []
        notes: dict[tuple[str | None, str], dict[str, Any]] = {}
        for row in results.to_pylist()[:_IMPURE_REPORTED]:
            function = functions.get(row["id"], (None, "unknown"))
            found = {
                "function": function[1][:_REPORTED_TEXT],
                "value": row["id"],
                "before": row["former"][:_REPORTED_TEXT],
                "now": row["text"][:_REPORTED_TEXT],
            }
            log.warning("function is not pure", **found)
            impure.append(found)
            notes[function] = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                **where,
                **found,
            }
        with contained("remembered result"):
            for (runtime, code), note in notes.items():
                memo.memo.impure.add(memo.workspace, runtime, code, note)
        return impure

    async def _evaluate(
        self, progress: JobProgress, *, is_suspect: bool
    ) -> list[UnitResult | StoredResult]:
        executor, extension = self.services.executor, self.services.extension
        units = self.rounds.units
        if extension.executor is not None and any(
            unit.has_runtime(*extension.runtimes) for unit in units
        ):
            executor = extension.executor
        limit = max(_MIN_UNIT_DEADLINE, self.services.deadline.total_seconds() / 20)
        run = Run(
            str(self.change_set.workspace_id), self.target.run_store, progress, self.parts.add
        )
        # D6: after a crash, only those values fail that end what computes them.
        return await executor.run(isolated(units, limit) if is_suspect else units, run)

    def _is_no_functions_fault(self) -> bool:
        """Whether a call that takes as long as the deadline would have been ended before."""
        seconds = self.services.limits.calls.seconds
        # Twice as long, since calls are looked at now and then, and may wait for a processor.
        return seconds > 0 and 2 * seconds + 1 < self.services.deadline.total_seconds()

    async def give_up(self, message: str) -> DvuResult:
        """Return the computed values of all rounds; all others that may be affected fail."""
        units, run_store = self.rounds.units, self.target.run_store
        salvaged = await salvage(units, message, run_store, self.services.slots())
        rest = failed_result(await asyncio.to_thread(self.rounds.rest), message)
        try:
            every_outcome = [*self.outcomes, *salvaged, rest]
            return await asyncio.to_thread(self.parts.collected, every_outcome, self.target)
        except Exception:
            log.exception("computed results not kept")
        every = [unit.ids for unit in (*self.units, *units)]
        failed = [failed_result(ids, message) for ids in every]
        return await asyncio.to_thread(self.parts.collected, [*failed, rest], self.target)
