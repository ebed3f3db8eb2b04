"""The claim of a dependent values update, and the plan of what it covers (D2)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rebaser_core.commits import DvuClaim
from rebaser_core.ids import RequestId
from rebaser_server.processor.application import Job, JobPlanner
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.runtime.failures import JobFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClaimedUpdate:
    """What a claim covers, planned."""

    claim: DvuClaim
    base: int
    """The commit that makes the claim."""
    after: int
    """The sequence up to which updates are committed."""
    job: Job | None
    error: Exception | None = None
    """Why it could not be planned."""

    @property
    def affected(self) -> int:
        return self.job.affected if self.job else 0


async def claim_update(
    ownership: Ownership, planner: JobPlanner, max_failures: int
) -> ClaimedUpdate | None:
    """Claim what is left to do, and plan from the very state that was claimed (D2).

    Requests wait for the claim, and not for the plan. A claim of an earlier run is overwritten:
    its result cannot be committed.
    """
    async with ownership.lock:
        state = ownership.state
        control = state.control
        if not control.dvu_due:  # what was, is settled, or the change set is closed by now
            return None
        after = control.clean_sequence
        is_repeated = control.claim is not None or control.dvu_failures > 0
        claim = DvuClaim(id=RequestId(), covers=control.dirty_sequence)
        base = await ownership.write(claim=claim)
        plan, error = None, _given_up(control.dvu_failures, max_failures)
        if error is None:
            prepare = partial(planner.prepare, state.content, after, is_repeated=is_repeated)
            plan, error = await _attempt(prepare)
    if callable(plan):
        job, error = await _attempt(plan)
        return ClaimedUpdate(claim, base, after, job, error)
    return ClaimedUpdate(claim, base, after, plan, error)


def _given_up(failures: int, max_failures: int) -> Exception | None:
    if failures < max_failures:
        return None
    return JobFailed("the processes ended that computed it, or its results cannot be stored")


async def _attempt(do: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What `do`, which blocks, returns or raises."""
    try:
        return await asyncio.to_thread(do), None
    except Exception as error:  # noqa: BLE001 - memory, sizes, storage: reported as a failed update
        return None, error
