"""The work of a branch's run beside its requests: start the branch, follow head, close it."""

from typing import Never

from rebaser_core.commits import ClosedState
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.records import ChangeSetStatus
from rebaser_core.subjects import Subjects
from rebaser_server.graph_application.branches.branch_closer import HEAD_PATIENCE, BranchCloser
from rebaser_server.graph_application.branches.head_follower import HeadFollower
from rebaser_server.graph_application.content import content_of, require
from rebaser_server.processor.application import Companion
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.dead_letters import REASON_LENGTH
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.slot_lease import CommittedEntry
from rebaser_server.runtime.tasks import background


class BranchRunner(Companion):
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
        super().__init__()
        self._ownership = ownership
        self._checkpointer = checkpointer
        self._follower = HeadFollower(js, subjects, ownership, every)
        self._closer = BranchCloser(js, subjects, ownership, outcomes)

    async def start(self) -> None:
        """Start a branch that is not started: write its base into a checkpoint, then commit that.

        After that commit the branch needs no base, so the checkpoint comes first.

        Raises:
            RetryLater: the store did not take the checkpoint; the branch has not begun.
        """
        ownership, content = self._ownership, content_of(self._ownership.state)
        origin = content.origin
        if ownership.state.control.branch is not None or self.busy:
            self.needed.set()
        if origin is None or not content.is_unstarted_branch(ownership.state.control):
            return
        if origin.lost is None:
            await self._checkpointer.require()
        async with ownership.lock:
            branch = require(ownership.state.control.branch, "a base")
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
                dirty = max(content.graph.roots.values(), default=0)
                await ownership.write(branch=started, dirty_sequence=dirty)

    async def run(self) -> Never:
        """Follow head and finish closings until cancelled."""
        async with background(self._closer.run()):
            await self._follower.run()
        raise AssertionError("it follows until it is cancelled")

    def on_commit(self, committed: CommittedEntry) -> None:
        """Note what was committed; own refreshes do not keep the branch awake."""
        request = committed.request
        if request is None or not self._follower.is_own_refresh(request.sequence):
            super().on_commit(committed)
        self._follower.notify()
        self._closer.notify()
        if self.busy:
            self.needed.set()

    def idle_timeout(self, period: float, *, unfinished: bool) -> float:
        """Return the seconds until it is idle, or until the run checks whether head applies it."""
        left = super().idle_timeout(period, unfinished=unfinished)
        return min(left, HEAD_PATIENCE) if self.busy else left

    @property
    def busy(self) -> bool:
        """Whether the branch is being applied to head, or the registry is not updated yet."""
        return self._closer.busy

    @property
    def awaits_another(self) -> bool:
        """Whether head has to handle the branch's difference next."""
        return self._closer.awaits_head

    @property
    def must_yield(self) -> bool:
        """Whether the branch has waited so long for head that it may be blocking head's slot."""
        return self._closer.gave_up_on_head
