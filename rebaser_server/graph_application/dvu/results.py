"""The result of a dependent values update: a few values in a commit, many in files."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog

from rebaser_client.requests import INLINE_UPDATES
from rebaser_core.commits import DvuClaim
from rebaser_core.messages import DvuResultInfo, ResultFile, UpdatesAddress
from rebaser_core.updates import SetComputed
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state import Batch
from rebaser_server.compute.affected import certain_dependents, closure
from rebaser_server.compute.rescue import failed_result, salvage
from rebaser_server.compute.results import (
    CallCosts,
    RunStore,
    StoredResult,
    UnitResult,
    ValueResult,
    total_costs,
)
from rebaser_server.values.graph import Graph

log: Final = structlog.get_logger()

_INLINE_TEXT: Final = 32 * 1024
"""Most octets of results that travel in a message."""


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


async def fail_uncomputed(
    units: Sequence[bytes | memoryview], message: str, target: ResultTarget, slots: int
) -> DvuResult:
    """Collect the units' computed results; all their other values fail with this message."""
    outcomes = await salvage(units, message, target.run_store, slots)
    return await asyncio.to_thread(collect, outcomes, target)


def fail_affected(graph: Graph, message: str, target: ResultTarget) -> DvuResult:
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
