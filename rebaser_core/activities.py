"""Activities, which a Rebaser publishes while it works.

They are plain NATS messages: a lost one does no harm.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.versioning import (
    MESSAGE_ID,
    ContentInfo,
    JsonValue,
    MessageType,
    ParseFromJson,
    Versioned,
)


class ActivityKind(StrEnum):
    TAKEN = "taken"
    REQUEST_APPLIED = "requestApplied"
    REQUEST_DEAD = "requestDead"
    REQUEST_REFUSED = "requestRefused"
    DVU_STARTED = "dvuStarted"
    DVU_PROGRESS = "dvuProgress"
    DVU_FINISHED = "dvuFinished"
    DVU_FAILED = "dvuFailed"
    DVU_CANCELLED = "dvuCancelled"
    FUNCTION_IMPURE = "functionImpure"
    QUIET = "quiet"


class ActivityV1(Versioned):
    """An event of a change set; `details` are for people and dashboards and differ by kind."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    kind: Annotated[ActivityKind, ParseFromJson]
    request_id: RequestId | None = None
    details: dict[str, JsonValue] = Field(default_factory=dict)


Activity: Final = MessageType("Activity", current=ActivityV1)

_HEADERS: Final = ContentInfo(codecs.CBOR, Activity.name, ActivityV1.VERSION).headers()


def encode_activity(
    change_set: ChangeSet, kind: ActivityKind, request_id: RequestId | None, details: dict[str, Any]
) -> tuple[dict[str, str], bytes]:
    """Encode an activity, as `Activity.encode` would, without an object for each request.

    The content is not checked: it is our own, and its readers check it.
    """
    its_id = str(RequestId())
    body: dict[str, Any] = {
        "id": its_id,
        "workspaceId": str(change_set.workspace_id),
        "changeSetId": str(change_set.change_set_id),
        "kind": kind.value,
        "details": details,
    }
    if request_id is not None:
        body["requestId"] = str(request_id)
    payload = codecs.dumps(codecs.CBOR, {f"v{ActivityV1.VERSION}": body})
    return {**_HEADERS, MESSAGE_ID: its_id}, payload
