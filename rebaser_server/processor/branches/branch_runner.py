"""What a run does for a branch beside its requests: begin it, follow head, bring it to an end."""

import asyncio
from typing import Final, Never

from rebaser_core.commits import ClosedState
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.registry_records import ChangeSetStatus
from rebaser_core.subjects import Subjects
from rebaser_server.processor.branches.branch_closer import HEAD_PATIENCE, BranchCloser
from rebaser_server.processor.branches.head_follower import HeadFollower
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.outcome_lookup import OutcomeLookup
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import REASON_LENGTH
from rebaser_server.runtime.concurrency import background

POLL_EVERY: Final = 1.0
"""Seconds between two looks whether what keeps a branch from being quiet is done."""


class BranchRunner:
    """One run's; for a change set that is no branch it does nothing."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        ownership: Ownership,
        outcomes: OutcomeLookup,
        checkpointer: Checkpointer,
        every: float,
    ) -> None:
        """`every`: seconds between two looks at head if nothing is heard of it."""
        self._ownership = ownership
        self._checkpointer = checkpointer
        self._follower = HeadFollower(js, subjects, ownership, every)
        self._closer = BranchCloser(js, subjects, ownership, outcomes)
        self._clock = asyncio.get_running_loop().time
        self._last_request = self._clock()

    async def start(self) -> None:
        """Take over the base that a branch was forked from, if that is still to be done.

        Once the log says so the branch needs its base no more, so a checkpoint comes first.

        Raises:
            RetryLater: the store did not take the checkpoint; the branch has not begun.
        """
        ownership, origin = self._ownership, self._ownership.state.origin
        if origin is None or not ownership.state.is_unstarted_branch:
            return
        if origin.lost is None:
            await self._checkpointer.require()
        async with ownership.lock:
            branch = ownership.state.control.branch
            assert branch is not None  # noqa: S101 - it begins
            started = branch.model_copy(update={"cursor": origin.cursor})
            if origin.lost is not None:
                reason = f"its base cannot be had any more: {origin.lost}"
                lost = ClosedState(
                    standing=ChangeSetStatus.ABANDONED,
                    request=RequestId(),
                    reason=reason[:REASON_LENGTH],
                )
                await ownership.write(branch=started, closing=lost)
            else:  # what was to be recomputed there is to be recomputed here
                dirty = max(ownership.state.graph.roots.values(), default=0)
                await ownership.write(branch=started, dirty_sequence=dirty)

    async def run(self) -> Never:
        """Follow and finish until cancelled."""
        async with background(self._closer.run()):
            await self._follower.run()
        raise AssertionError("it follows until it is cancelled")

    def handled(self, sequence: int) -> None:
        """That request was handled."""
        if not self._follower.is_own_refresh(sequence):
            self._last_request = self._clock()
        self._follower.notify()
        self._closer.notify()

    def idle_timeout(self, period: float, *, unfinished: bool) -> float:
        """Seconds until it is quiet: head's changes keep no branch awake.

        Or until it is to be seen whether head does anything about what it brings.
        """
        least = POLL_EVERY if unfinished or self.busy else 0.0
        left = max(least, self._last_request + period - self._clock())
        return min(left, HEAD_PATIENCE) if self.busy else left

    @property
    def busy(self) -> bool:
        """Whether it is on its way to head, or the registry has still to be told."""
        return self._closer.busy

    @property
    def gave_up_on_head(self) -> bool:
        """Whether it is in head's way, perhaps, instead."""
        return self._closer.gave_up_on_head
