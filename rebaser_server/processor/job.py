"""A background job as the core sees it: planned under a claim, run, and its results stored."""

from collections.abc import Callable
from typing import Protocol

from rebaser_core.commits import DvuClaim
from rebaser_core.messages import UpdatesAddress
from rebaser_server.commit_log.content import Batch, Content

OnProgress = Callable[[int, int], None]
"""Values done, at least, and values in all."""


class JobResult(Protocol):
    """What a job found; its length is the number of values that changed."""

    @property
    def recomputed(self) -> int:
        """Values that were computed."""

    def __len__(self) -> int: ...

    @property
    def batch(self) -> Batch:
        """What the content applies."""

    async def store(self, claim: DvuClaim, base: int, max_bytes: int) -> UpdatesAddress:
        """Store the batch where a commit can refer to it.

        Args:
            claim: under which it was computed.
            base: the commit that made the claim.
            max_bytes: that it may take in a commit.

        Raises:
            OSError: the store failed; nothing was changed.
        """

    def clear(self) -> None:
        """Delete what no commit refers to, now that this result is committed. Blocks."""


class Job(Protocol):
    """One attempt at the work that a claim covers."""

    @property
    def affected(self) -> int:
        """Values that may be recomputed."""

    async def run(self, *, is_suspect: bool, on_progress: OnProgress) -> JobResult:
        """Compute. Cancelled at any await, it stops; repeated, it goes on where it was.

        Args:
            is_suspect: one of the values may have ended the process that computed it.
            on_progress: called on the event loop, now and then.

        Raises:
            JobFailed: there are no results.
        """

    async def give_up(self, message: str) -> JobResult:
        """What was computed; all else fails with this message."""


class JobPlanner(Protocol):
    """Plans the jobs of one run. All calls block; the caller holds the lock."""

    def plan(self, content: Content, after: int, *, is_repeated: bool) -> Job:
        """Plan all that is left to do.

        Args:
            content: as of the claim.
            after: the sequence up to which everything is done. Attempts behind the same
                sequence share what they left in the store.
            is_repeated: whether the job was attempted before, maybe by another process.
        """

    def fail_all(self, content: Content, after: int, message: str) -> JobResult:
        """The result of a job that cannot be planned: whatever is left to do fails."""
