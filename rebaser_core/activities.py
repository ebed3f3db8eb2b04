"""What a Rebaser tells watchers while it works. Plain NATS messages: losing one harms nothing."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.versioned import MessageType, Plain, Read, Versioned


class ActivityKind(StrEnum):
    """What happened to the change set."""

    TAKEN = "taken"
    REQUEST_APPLIED = "requestApplied"
    REQUEST_DEAD = "requestDead"
    REQUEST_REFUSED = "requestRefused"
    DVU_STARTED = "dvuStarted"
    DVU_PROGRESS = "dvuProgress"
    DVU_FINISHED = "dvuFinished"
    DVU_FAILED = "dvuFailed"
    DVU_CANCELLED = "dvuCancelled"
    QUIET = "quiet"


class ActivityV1(Versioned):
    """One thing that happened; `details` are for people and dashboards and differ by kind."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    kind: Annotated[ActivityKind, Read]
    request_id: RequestId | None = None
    details: dict[str, Plain] = Field(default_factory=dict)


Activity: Final = MessageType("Activity", current=ActivityV1)
