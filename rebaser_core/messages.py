"""Every message in every version that was ever released.

A client speaks `EnqueueUpdatesRequest` and hears `EnqueueUpdatesResponse`;
`UpdatesBatch` is what an address leads to. `Commit` is a line of a change set's
commit log (`commits.py`).
"""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Discriminator, Field, StringConstraints, Tag

from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.updates import Update
from rebaser_core.versioned import MessageType, Shape, Versioned

Blake3 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Computed(Shape):
    """Marks a batch as the result of a dependent values update."""

    claim: RequestId
    """The claim under which it ran (D2); it applies only while that claim stands."""
    covers: Annotated[int, Field(ge=0)]
    """Roots up to this sequence are done with once it applies (D5)."""
    commit: Annotated[int, Field(ge=0)]
    """The commit that it was computed from."""


class Updates(Shape):
    """A batch where it travels inside its request."""

    updates: list[Update]
    computed: Computed | None = None


class UpdatesBatchV1(Versioned):
    """A batch on its own. Its id is its request's, so no two requests share an address."""

    VERSION: ClassVar = 1
    updates: list[Update]
    computed: Computed | None = None


class Inline(Shape):
    """The batch itself: for small ones."""

    inline: Updates


class InObjectStore(Shape):
    """The BLAKE3 of an encoded `UpdatesBatch`, which is its name in the bucket of batches."""

    object: Blake3


class InStore(Shape):
    """The key of an encoded `UpdatesBatch` in the store that all Rebasers share."""

    store: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]


def _address_kind(data: Any) -> str | None:
    if isinstance(data, dict):
        return next(iter(data)) if len(data) == 1 else None
    kinds: dict[type, str] = {Inline: "inline", InObjectStore: "object", InStore: "store"}
    return kinds.get(type(data))


UpdatesAddress = Annotated[
    Annotated[Inline, Tag("inline")]
    | Annotated[InObjectStore, Tag("object")]
    | Annotated[InStore, Tag("store")],
    Discriminator(
        _address_kind,
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


class SuccessV1(Shape):
    updates_performed: UpdatesAddress


class Failure(Shape):
    message: str


class ErrorStatus(Shape):
    error: Failure


class SuccessStatusV1(Shape):
    success: SuccessV1


class EnqueueUpdatesResponseV1(Versioned):
    """What became of a request: the batch as performed, or why there was none."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: SuccessStatusV1 | ErrorStatus

    def upgrade(self) -> "EnqueueUpdatesResponseV2":
        status: SuccessStatusV2 | ErrorStatus
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


class Correction(Shape):
    """How a batch was changed so that it fits the change set; the same for the same state."""

    index: int
    """Position of the update in the batch as sent, from 0."""
    code: str
    """Constant per kind of correction: see `docs/wire.md`."""
    detail: str
    """For people."""


class SuccessV2(Shape):
    updates_performed: UpdatesAddress
    commit: int | None = None
    """The commit's sequence in the log; None where a version 1 server answered."""
    corrections: tuple[Correction, ...] = ()


class SuccessStatusV2(Shape):
    success: SuccessV2


class EnqueueUpdatesResponseV2(Versioned):
    """Version 1, and where in the log the batch is and what was corrected."""

    VERSION: ClassVar = 2
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    status: SuccessStatusV2 | ErrorStatus


EnqueueUpdatesRequest: Final = MessageType("EnqueueUpdatesRequest", current=EnqueueUpdatesRequestV1)
EnqueueUpdatesResponse: Final = MessageType(
    "EnqueueUpdatesResponse", EnqueueUpdatesResponseV1, current=EnqueueUpdatesResponseV2
)
UpdatesBatch: Final = MessageType("UpdatesBatch", current=UpdatesBatchV1)
