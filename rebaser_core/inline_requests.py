"""Requests that hold their batches, as nearly all do, encoded without an object for each part."""

from collections.abc import Sequence
from typing import Any, Final

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, are_ulid_texts
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.plain_updates import list_to_wire
from rebaser_core.updates import AnyUpdate
from rebaser_core.versioning import MESSAGE_ID, ContentInfo

_VERSION: Final = EnqueueUpdatesRequestV1.VERSION


def encode_inline_request(
    request_id: RequestId,
    change_set: ChangeSet,
    origin: ChangeSetId | None,
    updates: Sequence[AnyUpdate],
    content_type: str,
) -> tuple[dict[str, str], bytes]:
    """Encode a request, as `EnqueueUpdatesRequest.encode` would; `updates` are not checked.

    Raises:
        MalformedMessage: an id is none, or a text is none that UTF-8 can say.
    """
    ids = [str(request_id), *map(str, change_set)]
    if not are_ulid_texts(ids if origin is None else [*ids, str(origin)]):
        raise MalformedMessage(f"no ULIDs: request {request_id} of {change_set} from {origin}")
    body: dict[str, Any] = {
        "id": ids[0],
        "workspaceId": ids[1],
        "changeSetId": ids[2],
        "updatesAddress": {"inline": {"updates": list_to_wire(updates)}},
    }
    if origin is not None:
        body["fromChangeSetId"] = str(origin)
    headers = ContentInfo(content_type, EnqueueUpdatesRequest.name, _VERSION).headers()
    headers[MESSAGE_ID] = ids[0]
    return headers, codecs.dumps(content_type, {f"v{_VERSION}": body})
