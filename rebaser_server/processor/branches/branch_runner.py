"""The work of a branch's run beside its requests: start the branch, follow head, close it."""

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
"""Seconds between two checks whether the branch is still busy."""


class BranchRunner:
    """The branch work of one run; it does nothing for a change set that is no branch."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        ownership: Ownership,
        outcomes: OutcomeLookup,
        checkpointer: Checkpointer,
        every: float,
    ) -> None:
        """`every`: seconds between two reads of head's log if no activity of head comes."""
        self._ownership = ownership
        self._checkpointer = checkpointer
        self._follower = HeadFollower(js, subjects, ownership, every)
        self._closer = BranchCloser(js, subjects, ownership, outcomes)
        self._clock = asyncio.get_running_loop().time
        self._last_request = self._clock()

    async def start(self) -> None:
        """Start a branch that is not started: write its base into a checkpoint, then commit that.

        After that commit the branch needs no base, so the checkpoint comes first.

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
            assert branch is not None  # noqa: S101 - an unstarted branch is a branch
            started = branch.model_copy(update={"cursor": origin.cursor})
            if origin.lost is not None:
                reason = f"its base cannot be had any more: {origin.lost}"
                lost = ClosedState(
                    standing=ChangeSetStatus.ABANDONED,
                    request=RequestId(),
                    reason=reason[:REASON_LENGTH],
                )
                await ownership.write(branch=started, closing=lost)
            else:  # the base's roots are the branch's roots, too
                dirty = max(ownership.state.graph.roots.values(), default=0)
                await ownership.write(branch=started, dirty_sequence=dirty)

    async def run(self) -> Never:
        """Follow head and finish closings until cancelled."""
        async with background(self._closer.run()):
            await self._follower.run()
        raise AssertionError("it follows until it is cancelled")

    def handled(self, sequence: int) -> None:
        """Note that the request of this sequence was handled."""
        if not self._follower.is_own_refresh(sequence):
            self._last_request = self._clock()
        self._follower.notify()
        self._closer.notify()

    def idle_timeout(self, period: float, *, unfinished: bool) -> float:
        """Return the seconds until the branch is idle: head's changes do not delay that.

        Or the seconds until the next check of a closing.
        """
        least = POLL_EVERY if unfinished or self.busy else 0.0
        left = max(least, self._last_request + period - self._clock())
        return min(left, HEAD_PATIENCE) if self.busy else left

    @property
    def busy(self) -> bool:
        """Whether the branch is being applied to head, or the registry is not updated yet."""
        return self._closer.busy

    @property
    def gave_up_on_head(self) -> bool:
        """Whether the branch has waited so long for head that it may be blocking head's slot."""
        return self._closer.gave_up_on_head
