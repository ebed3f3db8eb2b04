"""Asking which batch undoes a commit: any Rebaser answers, and the asker enqueues the batch."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, UlidText, WorkspaceId
from rebaser_core.updates import Update
from rebaser_core.versioning import MessageType, Versioned

_Count = Annotated[int, Field(ge=0)]


class RevertQueryV1(Versioned):
    """Asks for the batch that undoes a commit, except what a later commit changed again."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    commit: _Count
    force: bool = False
    """Whether to undo what a later commit changed, too."""


class RevertReplyV1(Versioned):
    """The batch, as of one commit; its id is the query's. Nothing was changed."""

    VERSION: ClassVar = 1
    now: _Count
    """The commit as of which the batch undoes the other."""
    updates: list[Update] = Field(default_factory=list)
    """None if there is nothing to undo."""
    skipped: list[UlidText] = Field(default_factory=list)
    """Values and functions that a later commit changed, and that stay as they are."""
    error: str | None = None
    """Why there is no answer."""


RevertQuery: Final = MessageType("RevertQuery", current=RevertQueryV1, from_clients=True)
RevertReply: Final = MessageType("RevertReply", current=RevertReplyV1)
