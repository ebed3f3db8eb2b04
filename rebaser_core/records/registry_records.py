"""What is known of workspaces and change sets by name, and what can be asked of a change set.

Records lie in the bucket `REBASER_CHANGE_SETS`, under `<workspace>` and
`<workspace>.<change set>`. They are an index: what a change set is and whether it
is closed stands in its own commit log, which its record follows.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from rebaser_core.commits import ForkPoint
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.versioning import MessageType, Versioned, downgrade_to
from rebaser_core.wire_model import ParseFromJson, WireModel

RecordName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")
]
"""For people; several may have the same."""


Timestamp = Annotated[
    str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")
]
"""UTC, in ISO 8601."""


def now() -> Timestamp:
    return utc_text(datetime.now(UTC))


def utc_text(moment: datetime) -> Timestamp:
    """The moment, which has a zone, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ChangeSetKind(StrEnum):
    """What a change set is to its workspace."""

    HEAD = "head"
    BRANCH = "branch"


class ChangeSetStatus(StrEnum):
    """Whether a change set takes requests."""

    OPEN = "open"
    APPLYING = "applying"  # its difference is on its way to head
    APPLIED = "applied"
    ABANDONED = "abandoned"
    DELETED = "deleted"  # its data goes once the retention time is over


class WorkspaceRecordV1(Versioned):
    """A workspace. `id` is that of the write, so that an own one is recognised."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    name: RecordName
    head: ChangeSetId
    created_at: Timestamp
    by: str | None = None


class ApplyAttempt(WireModel):
    """An attempt to apply a branch."""

    request: RequestId
    """The one that asked for it."""
    at_head: RequestId
    """The request to head with the difference; head's log has its outcome."""
    commit: Annotated[int, Field(ge=0)] | None = None
    """The commit of head's log; None if there is none yet, or if nothing was to apply."""


class ChangeSetRecordV1(Versioned):
    """A change set. `id` is that of the write, so that an own one is recognised."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    name: RecordName
    kind: Annotated[ChangeSetKind, ParseFromJson]
    standing: Annotated[ChangeSetStatus, ParseFromJson] = ChangeSetStatus.OPEN
    head: ChangeSetId
    """The workspace's head; of the head itself its own id."""
    base: ForkPoint | None = None
    """Of a branch: what it was forked from."""
    created_at: Timestamp
    by: str | None = None
    closed_at: Timestamp | None = None
    application: ApplyAttempt | None = None
    """The last one."""
    problem: str | None = None
    """Why that came to nothing, or why it is closed."""


class ChangeSetRequestV1(Versioned):
    """A command to a change set as a whole, queued with its batches."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    action: Literal["refresh", "apply", "abandon", "delete"]
    reviewed: str | None = None
    by: str | None = None

    def upgrade(self) -> "ChangeSetRequestV2":
        return ChangeSetRequestV2.model_construct(
            id=self.id,
            workspace_id=self.workspace_id,
            change_set_id=self.change_set_id,
            action=self.action,
            reviewed=self.reviewed,
            by=self.by,
            values=None,
        )


class ChangeSetRequestV2(Versioned):
    """Version 1, and what an operator asks: save it now, compute values again."""

    VERSION: ClassVar = 2
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    action: Literal["refresh", "apply", "abandon", "delete", "checkpoint", "recompute"]
    reviewed: str | None = None
    """Of `apply`: digest of the difference that was reviewed; no other is applied."""
    by: str | None = None
    values: list[str] | None = None
    """Of `recompute`: names or ids; None: all that failed."""

    def to_oldest_version(self) -> "ChangeSetRequestV1 | ChangeSetRequestV2":
        if self.action in ("checkpoint", "recompute") or self.values is not None:
            return self
        return downgrade_to(self, ChangeSetRequestV1)


WorkspaceRecord: Final = MessageType("WorkspaceRecord", current=WorkspaceRecordV1)
ChangeSetRecord: Final = MessageType("ChangeSetRecord", current=ChangeSetRecordV1)
ChangeSetRequest: Final = MessageType(
    "ChangeSetRequest", ChangeSetRequestV1, current=ChangeSetRequestV2, from_clients=True
)
