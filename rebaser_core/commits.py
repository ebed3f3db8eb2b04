"""A change set's commit log: each commit writes its control record, under compare-and-swap.

Every commit carries the whole control record, so the last commit has the one in force (protocol
4.1). The state results from the commits' updates, in order, applied to an empty change set or
to a checkpoint.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple, Self

from pydantic import PrivateAttr, StringConstraints

from rebaser_core.ids import ChangeSetId, RequestId
from rebaser_core.messages import Correction, UpdatesAddress
from rebaser_core.versioning import (
    CODE,
    EDITED,
    REQUEST_DIGEST,
    JsonValue,
    MessageType,
    ParseFromJson,
    Versioned,
    WireModel,
)

AUTHOR_LENGTH: Final = 200
"""Maximum number of characters of an author; the rest is cut off."""

_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
"""Number of a message in the atomic batch that it was stored with, from 1 (ADR-50)."""

NO_REQUEST: Final = 0
"""The sequence in a commit that settles no request, but holds an update's results (D4)."""


class RequestOutcome(StrEnum):
    APPLIED = "applied"
    DUPLICATE = "duplicate"  # its id was handled under an earlier sequence
    STALE = "stale"  # it claims to be a DVU's result: no request is (D5)
    DEAD = "dead"  # in the dead letters
    REFUSED = "refused"  # the change set takes no such request; nothing is wrong with it


class DvuClaim(WireModel):
    """The one dependent values update that may commit (D2)."""

    id: RequestId
    covers: int


class FailedAttempts(WireModel):
    """The failures so far of the request at the head of the queue (L1)."""

    sequence: int
    count: int = 0
    """Attempts that failed."""
    deaths: int = 0
    """Runs that died while it was at the head of the queue."""


class ForkPoint(WireModel):
    """The change set and the commit that a change set was forked from."""

    change_set_id: ChangeSetId
    commit: int
    """Sequence of a commit of its log; 0 for an empty change set."""


class BranchState(WireModel):
    """State of a branch: where it began, and how far it has merged head."""

    base: ForkPoint
    head: ChangeSetId
    cursor: int | None = None
    """Last commit of head's log that it has merged; None until the branch is started."""


class ClosedState(WireModel):
    """The closing of a change set, after which it takes no requests."""

    status: str
    """Status, as in the registry: applying, applied, abandoned or deleted."""
    request: RequestId
    """The request that closed it."""
    reason: str | None = None
    """Reason; only for a branch that lost its base."""
    author: str | None = None
    difference: UpdatesAddress | None = None
    """The difference to head, while it is being applied."""
    commit: int | None = None
    """The commit of head's log, once the branch is applied."""


class ControlState(WireModel):
    """The control record of a change set: its owner, and how far it is."""

    epoch: int = 0
    """Grows by one each time a run takes the change set over (W2)."""
    owner: str = ""
    """Instance, start of its process, and run; empty once the run has released it."""
    last_sequence: int = 0
    """Stream sequence of the last request handled; never falls (I2)."""
    dirty_sequence: int = 0
    """Sequence of the last request applied that left roots."""
    clean_sequence: int = 0
    """Highest dirty sequence that a committed DVU covers."""
    claim: DvuClaim | None = None
    dvu_failures: int = 0
    """DVUs in a row that failed."""
    attempts: FailedAttempts | None = None
    branch: BranchState | None = None
    """State as a branch; None for a change set that is no branch."""
    closing: ClosedState | None = None

    @property
    def dvu_due(self) -> bool:
        """Whether a dependent values update is due (D1)."""
        return self.dirty_sequence > self.clean_sequence

    @property
    def deleted(self) -> bool:
        """Whether the change set is deleted, so that its data may be gone."""
        return self.closing is not None and self.closing.status == "deleted"

    @property
    def unfinished(self) -> bool:
        """Whether a run has work to do, even without a request in the queue."""
        return self.dvu_due or (self.closing is not None and self.closing.status == "applying")


class SettledRequest(WireModel):
    """The request that a commit settles, or the result of an update under its claim's id."""

    id: RequestId
    sequence: int
    """The request's in its stream; `NO_REQUEST` for an update's result."""
    outcome: Annotated[RequestOutcome, ParseFromJson]
    updates: UpdatesAddress | None = None
    """The batch as performed, that is after corrections; None if nothing was."""
    corrections: Annotated[tuple[Correction, ...], ParseFromJson] = ()
    covers: int | None = None
    """Sequence up to which the result of a DVU covers the roots; None for other commits (D5)."""
    message: str | None = None
    """Reason why it is dead or refused; of a duplicate, that its id was another request's."""
    author: Annotated[str, StringConstraints(max_length=AUTHOR_LENGTH)] | None = None
    """The author, as the request names it."""


class CallEffect(WireModel):
    """Effect of a call. A replay takes it over, and calls no handler again."""

    handler: str | None = None
    """Handler that was called; None: a timer was set, or came."""
    result: JsonValue = None
    """Result that the handler returned, for the caller."""
    effect: JsonValue = None
    """Change of the application's content, which alone knows its shape."""


class CommitV1(Versioned):
    """A commit that settles no call."""

    VERSION: ClassVar = 1
    previous: int
    control: ControlState
    settled: SettledRequest | None = None

    def upgrade(self) -> "CommitV2":
        return CommitV2.model_construct(
            id=self.id, previous=self.previous, control=self.control, settled=self.settled
        )


class CommitV2(Versioned):
    """A commit. Its id is always new, so that its writer recognises it in the log.

    The time in the id of a commit that settles a request is when NATS stored the request, by
    the clock of NATS, so that every reader of the log forgets the request at the same place.
    """

    VERSION: ClassVar = 2
    previous: int
    """Sequence of the commit before this one; 0 for the first. Readers detect a hole by it."""
    control: ControlState
    settled: SettledRequest | None = None
    call: CallEffect | None = None
    """Effect of the call that it settles."""
    _request_digest: str = PrivateAttr("")
    _code: str = PrivateAttr("")
    _edited: str = PrivateAttr("")

    @property
    def request_digest(self) -> str:
        """The digest of the request that it settles, from its header; empty if that is unknown."""
        return self._request_digest

    def with_digest(self, digest: str) -> Self:
        self._request_digest = digest
        return self

    @property
    def code(self) -> str:
        """The code that values were computed with, from its header; empty: as before."""
        return self._code

    def with_code(self, code: str) -> Self:
        self._code = code
        return self

    @property
    def edited(self) -> str:
        """Time of the last edit, from the header; empty: this commit's, as far as is known."""
        return self._edited

    def without_edit(self, last: Self | None) -> Self:
        """Note that this commit, which follows `last`, is no edit."""
        if last is not None:
            self._edited = last.edited or last.id.datetime.isoformat(timespec="milliseconds")
        return self

    def to_oldest_version(self) -> "CommitV1 | CommitV2":
        if self.call is not None:
            return self
        return CommitV1.model_construct(
            id=self.id, previous=self.previous, control=self.control, settled=self.settled
        )


class CodeEntry(NamedTuple):
    """The code that values of one distribution's functions were computed with."""

    version: str
    digest: str
    before: str = ""
    """The version before, while values are due because of this one."""


def read_code(text: str) -> dict[str, CodeEntry]:
    """Read `CommitV2.code`: by the name of the distribution."""
    rows = (entry.split(" ") for entry in text.split(",") if entry)
    return {name: CodeEntry(*rest[:3]) for name, *rest in rows if len(rest) > 1}


def write_code(entries: Mapping[str, CodeEntry]) -> str:
    """Write what `read_code` reads."""
    return ",".join(" ".join(filter(None, (name, *each))) for name, each in entries.items())


def code_reason(text: str) -> str | None:
    """Return why values are due, for people; None if that is for no change of code."""
    changes = [(name, each) for name, each in read_code(text).items() if each.before]
    said = ", ".join(
        f"{name} {each.before} → {each.version}"
        if each.before != each.version
        else f"{name} {each.version} is not what it was"
        for name, each in changes
    )
    return f"new code: {said}" if said else None


Commit: Final = MessageType("Commit", CommitV1, current=CommitV2)


def decode_commit_at(sequence: int, headers: Mapping[str, str], payload: bytes) -> CommitV2:
    """Read the commit that a log has at `sequence`.

    Its `previous` is set to the commit before it: commits of an atomic batch are written before
    their sequences are known, with a `previous` that their writer expected, and stored without a
    gap. Raises as `Commit.decode`.
    """
    commit = Commit.decode(headers, payload).with_digest(headers.get(REQUEST_DIGEST, ""))
    commit.with_code(headers.get(CODE, ""))._edited = headers.get(EDITED, "")  # noqa: SLF001
    if headers.get(_BATCH_SEQUENCE, "1") == "1":
        return commit
    return commit.model_copy(update={"previous": sequence - 1})
