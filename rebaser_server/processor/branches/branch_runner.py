"""What a run does for a branch beside its requests: begin it, follow head, bring it to an end."""

import asyncio
from typing import Final, Never

from rebaser_core.commits import ClosedState
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.registry_records import ChangeSetStatus
from rebaser_core.subjects import Subjects
from rebaser_server.processor.branches.branch_closer import PATIENCE, Closer
from rebaser_server.processor.branches.head_follower import Following
from rebaser_server.processor.checkpointer import Checkpointing
from rebaser_server.processor.outcome_lookup import Outcomes
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import REASON_LENGTH
from rebaser_server.runtime.concurrency import background

LOOK_EVERY: Final = 1.0
"""Seconds between two looks whether what keeps a branch from being quiet is done."""


class Branching:
    """One run's; for a change set that is no branch it does nothing."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        own: Ownership,
        outcomes: Outcomes,
        checkpointing: Checkpointing,
        every: float,
    ) -> None:
        """`every`: seconds between two looks at head if nothing is heard of it."""
        self._own = own
        self._checkpointing = checkpointing
        self._following = Following(js, subjects, own, every)
        self._closer = Closer(js, subjects, own, outcomes)
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    async def begin(self) -> None:
        """Take over the base that a branch was forked from, if that is still to be done.

        Once the log says so the branch needs its base no more, so a checkpoint comes first.

        Raises:
            RetryLater: the store did not take the checkpoint; the branch has not begun.
        """
        own, origin = self._own, self._own.state.origin
        if origin is None or not own.state.begins:
            return
        if origin.lost is None:
            await self._checkpointing.require()
        async with own.lock:
            branch = own.state.head.branch
            assert branch is not None  # noqa: S101 - it begins
            begun = branch.model_copy(update={"cursor": origin.cursor})
            if origin.lost is not None:
                reason = f"its base cannot be had any more: {origin.lost}"
                lost = ClosedState(
                    standing=ChangeSetStatus.ABANDONED,
                    request=RequestId(),
                    reason=reason[:REASON_LENGTH],
                )
                await own.write(branch=begun, closing=lost)
            else:  # what was to be recomputed there is to be recomputed here
                dirty = max(own.state.graph.roots.values(), default=0)
                await own.write(branch=begun, dirty_sequence=dirty)

    async def run(self) -> Never:
        """Follow and finish until cancelled."""
        async with background(self._closer.run()):
            await self._following.run()
        raise AssertionError("it follows until it is cancelled")

    def handled(self, sequence: int) -> None:
        """That request was handled."""
        if not self._following.asked(sequence):
            self._since = self._clock()
        self._following.handled()
        self._closer.ask()

    def quiet(self, period: float, *, unfinished: bool) -> float:
        """Seconds until it is quiet: head's changes keep no branch awake.

        Or until it is to be seen whether head does anything about what it brings.
        """
        least = LOOK_EVERY if unfinished or self.busy else 0.0
        left = max(least, self._since + period - self._clock())
        return min(left, PATIENCE) if self.busy else left

    @property
    def busy(self) -> bool:
        """Whether it is on its way to head, or the registry has still to be told."""
        return self._closer.busy

    @property
    def in_vain(self) -> bool:
        """Whether it is in head's way, perhaps, instead."""
        return self._closer.in_vain
