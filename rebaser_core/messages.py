"""Every message in every version that was ever released.

A client sends `EnqueueUpdatesRequest` and receives `EnqueueUpdatesResponse`; `UpdatesBatch` is what
an address leads to. `Commit` is an entry of a change set's commit log (`commits.py`).
`OutcomeQuery` asks later, by its id, what became of a request.

If there are too many corrections for a message, it has the first ones, and an object has all.
Requests that hold their batches, as nearly all do, are encoded without an object for each part.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import Discriminator, Field, StringConstraints, Tag, ValidationError

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId, are_ulid_texts
from rebaser_core.updates import AnyUpdate, Update, UpdateSequence, list_to_wire
from rebaser_core.versioning import (
    MESSAGE_ID,
    ContentInfo,
    JsonValue,
    MessageType,
    ParseFromJson,
    Versioned,
    WireModel,
)

Blake3 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class DvuResultInfo(WireModel):
    """Marks a batch as the result of a dependent values update."""

    claim: RequestId
    """The claim under which it ran (D2); it applies only while that claim is current."""
    covers: Annotated[int, Field(ge=0)]
    """Roots up to this sequence are cleared once it applies (D5)."""
    commit: Annotated[int, Field(ge=0)]
    """The commit that it was computed from."""


class InlineBatch(WireModel):
    """A batch inside its request."""

    updates: UpdateSequence
    computed: DvuResultInfo | None = None
    under: list[Update] | None = None
    """Values of head where the branch differs, in a branch's log at a merge of head."""


class ResultFile(WireModel):
    """Results of a dependent values update, in a file beside the batch: too many for a message."""

    name: Annotated[str, StringConstraints(pattern=r"^[0-9a-f-]{1,200}$")]
    values: Annotated[int, Field(ge=0)]
    """Number of results in the file."""


class UpdatesBatchV1(Versioned):
    """A batch on its own. Its id is its request's, so no two requests share an address."""

    VERSION: ClassVar = 1
    updates: UpdateSequence
    computed: DvuResultInfo | None = None
    under: list[Update] | None = None
    """Values of head where the branch differs, as in `InlineBatch`."""
    results: Annotated[tuple[ResultFile, ...], ParseFromJson] | None = None
    """Further results of the batch, beside `updates`; only with `computed`. Not for clients."""
    table: str | None = None
    """Puts and sets of values, which follow `updates`: an Arrow IPC stream in base64, see
    `table_updates`."""


class Inline(WireModel):
    """The batch itself: for small ones."""

    inline: InlineBatch


class ObjectRef(WireModel):
    """The BLAKE3 of an encoded `UpdatesBatch`, which is its name in the bucket of batches."""

    object: Blake3


class StoreRef(WireModel):
    """The key of an encoded `UpdatesBatch` in the store that all Rebasers share."""

    store: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]


def _tag_of(**shapes: type[WireModel]) -> Callable[[Any], str | None]:
    """Return pydantic's discriminator of externally tagged shapes, on the wire and as classes."""
    tags = {shape: tag for tag, shape in shapes.items()}

    def tag_of(data: Any) -> str | None:
        if isinstance(data, dict):
            return next(iter(data)) if len(data) == 1 else None
        return tags.get(type(data))

    return tag_of


UpdatesAddress = Annotated[
    Annotated[Inline, Tag("inline")]
    | Annotated[ObjectRef, Tag("object")]
    | Annotated[StoreRef, Tag("store")],
    Discriminator(
        _tag_of(inline=Inline, object=ObjectRef, store=StoreRef),
        custom_error_type="updates_address",
        custom_error_message="an address is an object with one key: inline, object or store",
    ),
]


class EnqueueUpdatesRequestV1(Versioned):
    """Apply a batch of updates to a change set."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    updates_address: UpdatesAddress
    from_change_set_id: ChangeSetId | None = None
    """The change set that the batch was taken from, if it comes from another one."""


class SuccessV1(WireModel):
    updates_performed: UpdatesAddress


ID_USED: Final = "refused: the id was another request's"
"""Beginning of the error for a request under the id of another one."""


class ErrorDetail(WireModel):
    message: str


class ErrorStatus(WireModel):
    error: ErrorDetail


def _status_of(success: type[WireModel]) -> Discriminator:
    return Discriminator(
        _tag_of(success=success, error=ErrorStatus),
        custom_error_type="status",
        custom_error_message="a status is an object with one key: success or error",
    )


class SuccessStatusV1(WireModel):
    success: SuccessV1


StatusV1 = Annotated[
    Annotated[SuccessStatusV1, Tag("success")] | Annotated[ErrorStatus, Tag("error")],
    _status_of(SuccessStatusV1),
]


class EnqueueUpdatesResponseV1(Versioned):
    """The outcome of a request: the batch as performed, or the reason for none."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: StatusV1

    def upgrade(self) -> "EnqueueUpdatesResponseV2":
        status: StatusV2
        if isinstance(self.status, ErrorStatus):
            status = self.status
        else:
            performed = self.status.success.updates_performed
            status = SuccessStatusV2(success=SuccessV2(updates_performed=performed))
        return EnqueueUpdatesResponseV2(
            id=self.id,
            workspace_id=self.workspace_id,
            change_set_id=self.change_set_id,
            status=status,
        )


class Correction(WireModel):
    """A change to a batch so that it fits the change set; equal for an equal state."""

    index: Annotated[int, Field(ge=0)]
    """Position of the update in the batch as sent, from 0."""
    code: str
    """Constant per kind of correction: see docs/wire.md."""
    detail: str
    """Explanation for people."""


class SuccessV2(WireModel):
    updates_performed: UpdatesAddress
    commit: Annotated[int, Field(ge=0)] | None = None
    """The commit's sequence in the log; None where a version 1 server answered."""
    corrections: Annotated[tuple[Correction, ...], ParseFromJson] = ()


class SuccessStatusV2(WireModel):
    success: SuccessV2


StatusV2 = Annotated[
    Annotated[SuccessStatusV2, Tag("success")] | Annotated[ErrorStatus, Tag("error")],
    _status_of(SuccessStatusV2),
]


class EnqueueUpdatesResponseV2(Versioned):
    """Version 1, and where in the log the batch is and what was corrected."""

    VERSION: ClassVar = 2
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: StatusV2

    def upgrade(self) -> "EnqueueUpdatesResponseV3":
        status: StatusV3
        if isinstance(self.status, ErrorStatus):
            status = self.status
        else:
            done = self.status.success
            status = SuccessStatusV3(
                success=SuccessV3(
                    updates_performed=done.updates_performed,
                    commit=done.commit,
                    corrections=done.corrections,
                )
            )
        return EnqueueUpdatesResponseV3(
            id=self.id,
            workspace_id=self.workspace_id,
            change_set_id=self.change_set_id,
            status=status,
        )


class SuccessV3(WireModel):
    updates_performed: UpdatesAddress | None = None
    """The batch as performed; None for a call."""
    commit: Annotated[int, Field(ge=0)] | None = None
    """The commit's sequence in the log; None where a version 1 server answered."""
    corrections: Annotated[tuple[Correction, ...], ParseFromJson] = ()
    result: JsonValue = None
    """Result of a call."""


class SuccessStatusV3(WireModel):
    success: SuccessV3


StatusV3 = Annotated[
    Annotated[SuccessStatusV3, Tag("success")] | Annotated[ErrorStatus, Tag("error")],
    _status_of(SuccessStatusV3),
]


class EnqueueUpdatesResponseV3(Versioned):
    """Version 2, which answers a call, too: it has a result, and no batch as performed."""

    VERSION: ClassVar = 3
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: StatusV3

    def to_oldest_version(self) -> "EnqueueUpdatesResponseV2 | EnqueueUpdatesResponseV3":
        status: StatusV2
        if isinstance(self.status, ErrorStatus):
            status = self.status
        else:
            done, performed = self.status.success, self.status.success.updates_performed
            if performed is None or done.result is not None:
                return self
            status = SuccessStatusV2.model_construct(
                success=SuccessV2.model_construct(
                    updates_performed=performed,
                    commit=done.commit,
                    corrections=done.corrections,
                )
            )
        return EnqueueUpdatesResponseV2.model_construct(
            id=self.id,
            workspace_id=self.workspace_id,
            change_set_id=self.change_set_id,
            status=status,
        )


EnqueueUpdatesRequest: Final = MessageType(
    "EnqueueUpdatesRequest", current=EnqueueUpdatesRequestV1, from_clients=True
)
EnqueueUpdatesResponse: Final = MessageType(
    "EnqueueUpdatesResponse",
    EnqueueUpdatesResponseV1,
    EnqueueUpdatesResponseV2,
    current=EnqueueUpdatesResponseV3,
)
UpdatesBatch: Final = MessageType("UpdatesBatch", current=UpdatesBatchV1)


MAX_INLINE_CORRECTIONS: Final = 100
"""Maximum number of corrections in a commit and in a reply."""

DETAIL_LENGTH: Final = 400
"""Maximum number of characters of a correction's detail."""

MORE: Final = "more"
"""Code of the last entry where corrections are left out: it stands for these."""

CUT: Final = "cut"
"""Code of the one entry of an answer that was too large for a message."""


class CorrectionsV1(Versioned):
    """All corrections of one request, whose id is its id."""

    VERSION: ClassVar = 1
    corrections: list[Correction]


Corrections: Final = MessageType("Corrections", current=CorrectionsV1)


class OmittedCorrections(WireModel):
    """Content of the detail of an entry with the code `MORE`, as JSON."""

    counts: dict[str, int]
    """Numbers of all corrections, by code."""
    object: Blake3
    """BLAKE3 of the encoded `Corrections`, which is its name in the bucket of batches."""


def abbreviate(corrections: Sequence[Correction], name: str) -> tuple[Correction, ...]:
    """Return the first corrections, and an entry for the others, which lie in the object `name`."""
    counts = dict(Counter(correction.code for correction in corrections))
    detail = OmittedCorrections(counts=counts, object=name).model_dump_json(by_alias=True)
    following = corrections[MAX_INLINE_CORRECTIONS].index
    return (
        *corrections[:MAX_INLINE_CORRECTIONS],
        Correction(index=following, code=MORE, detail=detail),
    )


def omitted(corrections: Sequence[Correction]) -> OmittedCorrections | None:
    """Return what the last entry says of corrections that are left out; None if all are there."""
    if not corrections or corrections[-1].code != MORE:
        return None
    try:
        return OmittedCorrections.model_validate_json(corrections[-1].detail)
    except ValidationError:
        return None


def total_count(corrections: Sequence[Correction]) -> int:
    """Return the number of corrections, those included that are left out."""
    more = omitted(corrections)
    return len(corrections) if more is None else sum(more.counts.values())


def truncate_detail(detail: str) -> str:
    """Return a detail that has names in it, cut to the length that it may have."""
    return detail if len(detail) <= DETAIL_LENGTH else detail[: DETAIL_LENGTH - 1] + "…"


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


class RequestState(StrEnum):
    SETTLED = "settled"  # it is final: applied or dead
    WAITING = "waiting"  # stored, not handled yet
    UNKNOWN = "unknown"  # never stored, or settled long ago and forgotten


class OutcomeQueryV1(Versioned):
    """Asks for the outcome of the request with this id."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId


class OutcomeReplyV1(Versioned):
    """Place of the request and, if it is settled, its response; or the reason for no answer."""

    VERSION: ClassVar = 1
    state: Annotated[RequestState | None, ParseFromJson] = None
    """Place of the request; None: see `error`."""
    response: EnqueueUpdatesResponseV2 | None = None
    error: str | None = None
    """Reason for no answer; then there is neither state nor response."""

    def upgrade(self) -> "OutcomeReplyV2":
        response = None if self.response is None else self.response.upgrade()
        return OutcomeReplyV2(id=self.id, state=self.state, response=response, error=self.error)


class OutcomeReplyV2(Versioned):
    """Version 1, whose response may be that of a call."""

    VERSION: ClassVar = 2
    state: Annotated[RequestState | None, ParseFromJson] = None
    """Place of the request; None: see `error`."""
    response: EnqueueUpdatesResponseV3 | None = None
    error: str | None = None
    """Reason for no answer; then there is neither state nor response."""

    def to_oldest_version(self) -> "OutcomeReplyV1 | OutcomeReplyV2":
        response = None if self.response is None else self.response.to_oldest_version()
        if isinstance(response, EnqueueUpdatesResponseV3):
            return self
        return OutcomeReplyV1(id=self.id, state=self.state, response=response, error=self.error)


OutcomeQuery: Final = MessageType("OutcomeQuery", current=OutcomeQueryV1, from_clients=True)
OutcomeReply: Final = MessageType("OutcomeReply", OutcomeReplyV1, current=OutcomeReplyV2)
