"""Asking later what became of a request, by its id."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from rebaser_core.ids import ChangeSetId, WorkspaceId
from rebaser_core.messages import EnqueueUpdatesResponseV2
from rebaser_core.versioning import MessageType, Versioned, downgrade_to
from rebaser_core.wire_model import ParseFromJson


class RequestState(StrEnum):
    """Where a request is."""

    HANDLED = "handled"  # it is final: applied or dead
    WAITING = "waiting"  # stored, not handled yet
    UNKNOWN = "unknown"  # never stored, or handled so long ago that it is forgotten


class OutcomeQueryV1(Versioned):
    """Asks what became of the request of this id."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId


class OutcomeReplyV1(Versioned):
    """Where the request is and, if it is handled, its response."""

    VERSION: ClassVar = 1
    state: Annotated[RequestState, ParseFromJson]
    response: EnqueueUpdatesResponseV2 | None = None

    def upgrade(self) -> "OutcomeReplyV2":
        return OutcomeReplyV2.model_construct(**self.__dict__, error=None)


class OutcomeReplyV2(Versioned):
    """Version 1, or why there is no answer."""

    VERSION: ClassVar = 2
    state: Annotated[RequestState | None, ParseFromJson] = None
    """None: see `error`."""
    response: EnqueueUpdatesResponseV2 | None = None
    error: str | None = None
    """Why there is no answer; then there is neither state nor response."""

    def to_oldest_version(self) -> "OutcomeReplyV1 | OutcomeReplyV2":
        return self if self.state is None else downgrade_to(self, OutcomeReplyV1)


OutcomeQuery: Final = MessageType("OutcomeQuery", current=OutcomeQueryV1, from_clients=True)
OutcomeReply: Final = MessageType("OutcomeReply", OutcomeReplyV1, current=OutcomeReplyV2)
