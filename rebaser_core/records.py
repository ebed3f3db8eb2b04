"""Records in NATS buckets: names of workspaces and change sets, comments, and pauses.

Workspaces and change sets lie in the bucket `REBASER_CHANGE_SETS`, under `<workspace>` and
`<workspace>.<change set>`. They are an index: what a change set is and whether it is closed stands
in its own commit log, which its record follows. `ChangeSetRequest` asks a change set for something.

A comment on a change set lies there under `<workspace>.<change set>.<id>`. It is created once and
never changed; it goes with the change set's record. Nothing follows from it.

A pause lies in the bucket `REBASER_PAUSES`, under what it is of: `<workspace>.<change set>`,
`<workspace>` or `all`.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints

from rebaser_core.commits import ForkPoint
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.versioning import MessageType, ParseFromJson, Versioned, WireModel

RecordName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")
]
"""Name for people; several records may have it."""


Timestamp = Annotated[
    str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")
]
"""UTC, in ISO 8601."""


def now() -> Timestamp:
    return utc_text(datetime.now(UTC))


def utc_text(moment: datetime) -> Timestamp:
    """Return the moment, which has a zone, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_since(moment: datetime) -> float:
    """Return the seconds since the moment, by this machine's clock, to a tenth; none below 0."""
    return round(max(0.0, (datetime.now(UTC) - moment).total_seconds()), 1)


class ChangeSetKind(StrEnum):
    """Role of a change set in its workspace."""

    HEAD = "head"
    BRANCH = "branch"
    KEY = "key"  # of a service, which has no head


class ChangeSetStatus(StrEnum):
    OPEN = "open"
    APPLYING = "applying"  # its difference is on its way to head
    APPLIED = "applied"
    ABANDONED = "abandoned"
    DELETED = "deleted"  # its data goes once the retention time is over


class WorkspaceRecordV1(Versioned):
    """A workspace. `id` is that of the write, so that the writer recognises it."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    name: RecordName
    head: ChangeSetId
    created_at: Timestamp
    by: str | None = None


class ApplyAttempt(WireModel):
    request: RequestId
    """The request that asked for it."""
    at_head: RequestId
    """The request to head with the difference; head's log has its outcome."""
    commit: Annotated[int, Field(ge=0)] | None = None
    """The commit of head's log; None if there is none yet, or if nothing was to apply."""


class ChangeSetRecordV1(Versioned):
    """A change set. `id` is that of the write, so that the writer recognises it."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    name: RecordName
    kind: Annotated[ChangeSetKind, ParseFromJson]
    status: Annotated[ChangeSetStatus, ParseFromJson] = ChangeSetStatus.OPEN
    head: ChangeSetId
    """The workspace's head; in the head's own record, its id."""
    base: ForkPoint | None = None
    """Place that a branch was forked from."""
    created_at: Timestamp
    by: str | None = None
    closed_at: Timestamp | None = None
    application: ApplyAttempt | None = None
    """The last attempt to apply it."""
    problem: str | None = None
    """Reason why that attempt came to nothing, or why the change set is closed."""


class ChangeSetRequestV1(Versioned):
    """A command to a change set as a whole, queued with its batches."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    action: Literal["refresh", "apply", "abandon", "delete", "checkpoint", "recompute"]
    reviewed: str | None = None
    """Digest of the difference that was reviewed, for `apply`; no other difference is applied."""
    by: str | None = None
    values: list[str] | None = None
    """Names or ids for `recompute`; None: all values that failed."""


WorkspaceRecord: Final = MessageType("WorkspaceRecord", current=WorkspaceRecordV1)
ChangeSetRecord: Final = MessageType("ChangeSetRecord", current=ChangeSetRecordV1)
ChangeSetRequest: Final = MessageType(
    "ChangeSetRequest", current=ChangeSetRequestV1, from_clients=True
)


CommentText = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)
]


class CommentRecordV1(Versioned):
    """A comment. `id` is part of its key."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    text: CommentText
    created_at: Timestamp
    by: str | None = None

    @property
    def key(self) -> str:
        return f"{self.workspace_id}.{self.change_set_id}.{self.id}"


CommentRecord: Final = MessageType("CommentRecord", current=CommentRecordV1)


ALL: Final = "all"


class PauseScope(NamedTuple):
    """Scope of a pause: a change set, with None for it a workspace, with None for both all."""

    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None

    @property
    def key(self) -> str:
        return ".".join(str(each) for each in self if each is not None) or ALL

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Return the scope that a key names; raise `ValueError` if it names none."""
        if key == ALL:
            return cls()
        workspace, dot, change_set = key.partition(".")
        return cls(
            WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set) if dot else None
        )


def enclosing_scopes(change_set: ChangeSet) -> tuple[PauseScope, ...]:
    """Return the scopes whose pause pauses the change set; the narrowest first."""
    return PauseScope(*change_set), PauseScope(change_set.workspace_id), PauseScope()


class PauseRecordV1(Versioned):
    """A pause, which holds as long as the record exists. `id` is that of the write."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None
    since: Timestamp
    by: str | None = None
    reason: str | None = None

    @property
    def scope(self) -> PauseScope:
        return PauseScope(self.workspace_id, self.change_set_id)


PauseRecord: Final = MessageType("PauseRecord", current=PauseRecordV1)

_UNREADABLE: Final = "this release cannot read the record of the pause"


def decode_pause(key: str, payload: bytes, stored: datetime) -> PauseRecordV1:
    """Return the pause under the key, which alone says what is paused.

    A record that cannot be read, one of a newer release for example, pauses as well: to
    work on what an operator may have paused is worse than to wait for `rebaser resume`.

    Raises:
        ValueError: the key is of nothing that can be paused.
    """
    scope = PauseScope.of_key(key)
    try:
        record = PauseRecord.decode_stored(payload)
        if record.scope == scope:
            return record
    except MessageError:
        pass
    return PauseRecordV1(
        id=RequestId.from_int(0),
        workspace_id=scope.workspace_id,
        change_set_id=scope.change_set_id,
        since=stored.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        reason=_UNREADABLE,
    )
