"""The results of a dependent values update: few travel in a message, many in files."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog

from rebaser_client.batches import INLINE_UPDATES
from rebaser_core.ids import RequestId
from rebaser_core.messages import DvuResultInfo, ResultFile, UpdatesAddress
from rebaser_core.updates import SetComputed
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.compute.plan.affected import certain_dependents, closure
from rebaser_server.compute.runs.salvage import failed_result, salvage
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import CallCosts, UnitResult, ValueResult, total_costs
from rebaser_server.values.graph import Graph

log: Final = structlog.get_logger()

_INLINE_TEXT: Final = 32 * 1024
"""Most octets of results that travel in a message."""


@dataclass(frozen=True, slots=True)
class DvuResult:
    """The results, as updates or in files."""

    recomputed: int = 0
    costs: CallCosts = field(default_factory=dict)
    updates: Sequence[SetComputed] = ()
    files: Sequence[ResultFile] = ()
    """The files in the update's run store."""

    def __len__(self) -> int:
        return len(self.updates) + sum(file.values for file in self.files)

    async def store(
        self,
        batches: BatchStore,
        claim: RequestId,
        computed: DvuResultInfo,
        shelf: RunStore,
        room: int,
    ) -> UpdatesAddress:
        """Store a batch with these results; return its address, inline up to `room` octets."""
        if self.files:
            return await batches.put_results(claim, computed, shelf, self.files)
        return await batches.put(claim, self.updates, computed, room=room)


def collect(outcomes: Sequence[UnitResult | StoredResult], shelf: RunStore) -> DvuResult:
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
        return DvuResult(recomputed, costs, updates)
    if in_memory:
        table = pa.concat_tables([outcome.table.replace_schema_metadata() for outcome in in_memory])
        name = shelf.put_part("0", 0, 0, UnitResult(0, table))
        files.append(ResultFile(name=name, values=len(table)))
    return DvuResult(recomputed, costs, files=files)


async def fail_uncomputed(
    blobs: Sequence[bytes | memoryview], message: str, shelf: RunStore, slots: int
) -> DvuResult:
    """Collect the units' computed results; all their other values fail with this message."""
    outcomes = await salvage(blobs, message, shelf, slots)
    return await asyncio.to_thread(collect, outcomes, shelf)


def fail_affected(graph: Graph, message: str, shelf: RunStore) -> DvuResult:
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
    return collect([failed_result(graph.ids_of(indices), message)], shelf)


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
