"""Asking what a branch would change in head if it were applied now: any Rebaser answers."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, UlidText, WorkspaceId
from rebaser_core.updates import Update
from rebaser_core.versioning import MessageType, Versioned
from rebaser_core.wire_model import JsonValue, WireModel


class DifferenceQueryV1(Versioned):
    """Asks for the difference of a branch to head, after a merge of all that head has changed."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    computed: bool = False
    """Whether results that differ are wanted, too: for them both change sets are read whole."""


class ChangedDefinition(WireModel):
    """What the branch edited of one value or function, and what head has there."""

    id: UlidText
    name: str | None
    what: str
    """`added`, `removed`, `value`, `inputs`, `name`, `definition` or `function`."""
    head: JsonValue
    branch: JsonValue
    base: JsonValue
    """Head's definition when the branch first edited it."""
    both: bool
    """Whether head has changed it, too, since then."""


class ComputedDifference(WireModel):
    """A dependent value whose result differs."""

    id: UlidText
    name: str | None
    head: JsonValue
    branch: JsonValue


class DifferenceReplyV1(Versioned):
    """The difference as of one commit of the branch; its id is the query's."""

    VERSION: ClassVar = 1
    commit: Annotated[int, Field(ge=0)]
    digest: str = ""
    """Of the updates. A request to apply the branch that names it applies this difference only."""
    updates: list[Update] = Field(default_factory=list)
    """The difference as a batch: applied to head, it makes head equal to the branch."""
    changes: list[ChangedDefinition] = Field(default_factory=list)
    computed: list[ComputedDifference] | None = None
    """The results that differ, as far as they are computed; None if they were not wanted."""
    error: str | None = None
    """Why there is no answer."""


DifferenceQuery: Final = MessageType(
    "DifferenceQuery", current=DifferenceQueryV1, from_clients=True
)
DifferenceReply: Final = MessageType("DifferenceReply", current=DifferenceReplyV1)
