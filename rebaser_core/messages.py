"""Every message in every version that was ever released.

A client speaks `EnqueueUpdatesRequest` and hears `EnqueueUpdatesResponse`;
`UpdatesBatch` is what an address leads to. `Commit` is an entry of a change set's
commit log (`commits.py`).
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final

from pydantic import Discriminator, Field, StringConstraints, Tag

from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.plain_updates import UpdateSequence
from rebaser_core.updates import Update
from rebaser_core.versioning import MessageType, Versioned, downgrade_to
from rebaser_core.wire_model import ParseFromJson, WireModel

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
    """In a branch's log, at a merge of head: what head has where the branch differs."""


class UpdatesBatchV1(Versioned):
    """A batch on its own. Its id is its request's, so no two requests share an address."""

    VERSION: ClassVar = 1
    updates: UpdateSequence
    computed: DvuResultInfo | None = None

    def upgrade(self) -> "UpdatesBatchV2":
        return UpdatesBatchV2.model_construct(
            id=self.id, updates=self.updates, computed=self.computed, under=None, results=None
        )


class ResultFile(WireModel):
    """Results of a dependent values update, in a file beside the batch: too many for a message."""

    name: Annotated[str, StringConstraints(pattern=r"^[0-9a-f-]{1,200}$")]
    values: Annotated[int, Field(ge=0)]
    """How many results are in it."""


class UpdatesBatchV2(Versioned):
    """Version 1, results in files, and `under` as in `InlineBatch`."""

    VERSION: ClassVar = 2
    updates: UpdateSequence
    computed: DvuResultInfo | None = None
    under: list[Update] | None = None
    results: Annotated[tuple[ResultFile, ...], ParseFromJson] | None = None
    """Only with `computed`: what the batch sets besides `updates`. Not for clients."""

    def to_oldest_version(self) -> Versioned:
        if self.under is not None or self.results is not None:
            return self
        return downgrade_to(self, UpdatesBatchV1)

    def upgrade(self) -> "UpdatesBatchV3":
        fields = {name: getattr(self, name) for name in UpdatesBatchV2.model_fields}
        return UpdatesBatchV3.model_construct(**fields, table=None)


class UpdatesBatchV3(UpdatesBatchV2):
    """Version 2, and puts and sets of values in a table, which follow `updates`."""

    VERSION: ClassVar = 3
    table: str | None = None
    """An Arrow IPC stream in base64: see `table_updates`."""

    def to_oldest_version(self) -> Versioned:
        if self.table is not None:
            return self
        return downgrade_to(self, UpdatesBatchV2).to_oldest_version()


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
    """How pydantic tells externally tagged shapes apart, on the wire and as classes."""
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


_STATUS_MESSAGE: Final = "a status is an object with one key: success or error"


class SuccessStatusV1(WireModel):
    success: SuccessV1


StatusV1 = Annotated[
    Annotated[SuccessStatusV1, Tag("success")] | Annotated[ErrorStatus, Tag("error")],
    Discriminator(
        _tag_of(success=SuccessStatusV1, error=ErrorStatus),
        custom_error_type="status",
        custom_error_message=_STATUS_MESSAGE,
    ),
]


class EnqueueUpdatesResponseV1(Versioned):
    """The outcome of a request: the batch as performed, or why there is none."""

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
    """How a batch was changed so that it fits the change set; the same for the same state."""

    index: Annotated[int, Field(ge=0)]
    """Position of the update in the batch as sent, from 0."""
    code: str
    """Constant per kind of correction: see `docs/wire.md`."""
    detail: str
    """For people."""


class SuccessV2(WireModel):
    updates_performed: UpdatesAddress
    commit: Annotated[int, Field(ge=0)] | None = None
    """The commit's sequence in the log; None where a version 1 server answered."""
    corrections: Annotated[tuple[Correction, ...], ParseFromJson] = ()


class SuccessStatusV2(WireModel):
    success: SuccessV2


StatusV2 = Annotated[
    Annotated[SuccessStatusV2, Tag("success")] | Annotated[ErrorStatus, Tag("error")],
    Discriminator(
        _tag_of(success=SuccessStatusV2, error=ErrorStatus),
        custom_error_type="status",
        custom_error_message=_STATUS_MESSAGE,
    ),
]


class EnqueueUpdatesResponseV2(Versioned):
    """Version 1, and where in the log the batch is and what was corrected."""

    VERSION: ClassVar = 2
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: StatusV2


EnqueueUpdatesRequest: Final = MessageType(
    "EnqueueUpdatesRequest", current=EnqueueUpdatesRequestV1, from_clients=True
)
EnqueueUpdatesResponse: Final = MessageType(
    "EnqueueUpdatesResponse", EnqueueUpdatesResponseV1, current=EnqueueUpdatesResponseV2
)
UpdatesBatch: Final = MessageType(
    "UpdatesBatch", UpdatesBatchV1, UpdatesBatchV2, current=UpdatesBatchV3
)
