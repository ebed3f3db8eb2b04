"""The protocol of an application: what requests do, and the background job they leave.

The core knows requests, commits and one background job at a time, the dependent values update
(DVU). What a batch of updates does to a change set, what the job computes, and what a checkpoint
holds, is the application's: see `graph_application` for Rebaser's own.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Never, Protocol

from rebaser_core.commits import CallEffect, DvuClaim, SettledRequest
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import UpdatesAddress
from rebaser_core.records import ChangeSetRequestV1
from rebaser_server.commit_log.garbage_collection import Holdings
from rebaser_server.commit_log.state import Batch, Content, StateMachine
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.dead_letters import reject
from rebaser_server.processor.ownership import CommittedEntry, Ownership
from rebaser_server.runtime.progress import JobProgress

Changes = dict[str, Any]
"""New values of fields of the control record."""


class RequestMessage(Protocol):
    @property
    def id(self) -> RequestId: ...

    @property
    def workspace_id(self) -> WorkspaceId: ...

    @property
    def change_set_id(self) -> ChangeSetId: ...


class Unprocessable(RebaserError):
    """The request can never take effect."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of a request, and what its commit says of it."""

    settled: SettledRequest
    is_edit: bool = False
    """Whether the content was changed."""
    is_dirty: bool = False
    """Whether it left work to the background job."""
    call: CallEffect | None = None
    unused: UpdatesAddress | None = None
    """Address of the batch as the client sent it, if nothing refers to it behind the commit."""


POLL_EVERY: Final = 1.0
"""Seconds between two looks whether the work that keeps a change set from being idle is done."""


class Companion(Protocol):
    """Work beside the requests of a branch, or of a change set that is being closed."""

    async def start(self) -> None:
        """Do the work that comes before the first request.

        Raises:
            RetryLater: the work cannot be done now.
        """

    async def run(self) -> Never:
        """Work beside the requests until cancelled."""

    def on_commit(self, committed: CommittedEntry) -> None:
        """Note a commit of the run."""

    def is_own(self, request: SettledRequest) -> bool:
        """Whether it sent the request itself, which then does not keep the change set awake."""

    @property
    def busy(self) -> bool:
        """Whether the run must go on although no request comes."""

    @property
    def patience(self) -> float:
        """Seconds after which a busy run asks whether it must yield."""

    @property
    def awaits_another(self) -> bool:
        """Whether it waits for another change set's work, for which that has a task."""

    @property
    def must_yield(self) -> bool:
        """Whether that other change set may be waiting for the slot that the run holds."""


class JobResult(Protocol):
    """Result of a job; its length is the number of values that are to be committed."""

    @property
    def recomputed(self) -> int:
        """Number of values that were computed."""

    @property
    def changed(self) -> int:
        """Number of values that changed, also of those in parts that were committed before."""

    def __len__(self) -> int: ...

    def code(self, before: str, *, is_last: bool) -> str:
        """The code that values were computed with, now that these are; see `State.code`.

        `is_last`: nothing is left to do for the next job.
        """

    @property
    def batch(self) -> Batch:
        """Batch that the content applies."""

    async def store(self, claim: DvuClaim, base: int, max_bytes: int) -> UpdatesAddress:
        """Store the batch where a commit can refer to it.

        Args:
            claim: the claim under which it was computed.
            base: the commit that made the claim.
            max_bytes: bytes that it may take in a commit.

        Raises:
            OSError: the store failed; nothing was changed.
        """

    def clear(self) -> None:
        """Delete files that no commit refers to, now that this result is committed. Blocks."""


CommitPart = Callable[[JobResult], Awaitable[bool]]
"""Function that commits some results before the others are there; False: no result is wanted any
more. A cancellation of it ends the run."""


class Job(Protocol):
    @property
    def affected(self) -> int:
        """Number of values that may be recomputed."""

    async def run(
        self, *, is_suspect: bool, progress: JobProgress, commit_part: CommitPart
    ) -> JobResult:
        """Compute; return what was not committed in parts. A cancellation stops it at any await.

        Args:
            is_suspect: one of the values may have ended the process that computed it.
            progress: of the job, recorded now and then; its `total` follows `affected`.

        Raises:
            JobFailed: the job has no results.
        """

    async def give_up(self, message: str) -> JobResult:
        """Return the values computed so far; all others fail with this message."""


class JobPlanner(Protocol):
    """Plans the jobs of one run. All calls block; the caller holds the lock."""

    def prepare(
        self, content: Content, after: int, *, is_repeated: bool
    ) -> Job | Callable[[], Job]:
        """Copy from the content, for which requests wait, the data for a plan of all that is left.

        Returns the job if planning takes no longer than copying, else a function that plans it.
        That blocks, too; it may take long, and the content may change meanwhile.

        Args:
            content: as of the claim.
            after: the sequence up to which everything is done. Attempts behind one sequence share
                their files in the store.
            is_repeated: whether the job was attempted before, maybe by another process.
        """

    def fail_all(self, content: Content, after: int, message: str) -> JobResult:
        """Return the result of a job that cannot be planned: all that is left to do fails."""


class Application(StateMachine, Protocol):
    @property
    def holdings(self) -> Holdings:
        return Holdings()

    async def execute(
        self, ownership: Ownership, message: ChangeSetRequestV1, settled: SettledRequest
    ) -> tuple[SettledRequest, Changes]:
        """Carry out an action of the application on the change set as a whole.

        The caller holds the lock, and has refused actions that a closed change set does not take.
        Returns `settled` with the outcome or the reason for a refusal, and the changes of the
        control record. The content is changed as a replay will change it.
        """
        del ownership
        return reject(settled, f"there is no action {message.action!r}"), {}

    def read(self, request: Delivery) -> RequestMessage:
        """Read a request that asks for something within the change set.

        Raises:
            MalformedMessage, UnsupportedMessage: it can never take effect.
            NewerVersion: this build cannot read it.
        """

    def is_batchable(self, message: RequestMessage) -> bool:
        """Whether the request may be committed together with others.

        It is small then, and to apply it nothing else is looked at.
        """

    async def apply(
        self, ownership: Ownership, request: Delivery, message: RequestMessage
    ) -> Applied:
        """Carry out a request within the change set.

        The caller holds the lock, and has appended all staged commits unless the request is
        batchable. No commit settled its id before.

        Raises:
            MessageError, Unprocessable: it can never take effect; the content is as before.
            RunEnded, OSError, JetStreamError: nothing is known about it; try again.
            Exception: an attempt failed; the content may hold half of it, and is worthless.
        """

    async def prepare(self) -> None:
        """Do what comes before the process takes its first task.

        Raises:
            JetStreamError: NATS did not answer; `run` does it.
        """

    async def run(self) -> Never:
        """Work beside all change sets of the process, until cancelled."""

    async def outdated_codes(self, codes: Collection[str]) -> Collection[str]:
        """Return those of the codes in commits with which values are not to be computed any more.

        See `State.code`.
        """
        del codes
        return ()

    async def renew(self, change_set: ChangeSet, code: str, stored: float) -> None:
        """Ask for values to be computed anew that were computed with outdated code.

        Idempotent. `code` and `stored`, in seconds since 1970, are those of the last commit.
        """
        del change_set, code, stored

    def on_commit(self, loader: StateLoader) -> None:
        """Note that a run has written commits, or has begun, of the change set that `loader` reads.

        Called under the lock: `run` does what there is to do about it.
        """
        del loader

    def on_begin(self, ownership: Ownership) -> None:
        """Note that a run begins."""
        del ownership

    def companion(self, ownership: Ownership, checkpointer: Checkpointer) -> Companion | None:
        """Return the work beside the requests of a branch, or of a change set that closes."""
        del ownership, checkpointer
        return None

    def planner(self, change_set: ChangeSet) -> JobPlanner:
        """Return the planner of one run's jobs."""
