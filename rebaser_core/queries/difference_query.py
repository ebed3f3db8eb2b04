"""Asking what a branch would change in head if it were applied now: any Rebaser answers."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, UlidText, WorkspaceId
from rebaser_core.updates import Update
from rebaser_core.versioning import MessageType, Versioned, downgrade_to
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


class ComputedDifferenceV1(WireModel):
    """A dependent value whose result differs."""

    id: UlidText
    name: str | None
    head: JsonValue
    branch: JsonValue


class ComputedDifference(WireModel):
    """A value, computed on one side at least, whose result applying the branch changes."""

    id: UlidText
    name: str | None
    head: JsonValue
    branch: JsonValue
    head_status: str | None = None
    """`ok`, `failed` or `blocked`; None: there is no such value, or a Rebaser of an older release
    does not say."""
    branch_status: str | None = None


class DifferenceReplyV1(Versioned):
    """The difference as of one commit of the branch; its id is the query's."""

    VERSION: ClassVar = 1
    commit: Annotated[int, Field(ge=0)]
    digest: str = ""
    """Of the updates. A request to apply the branch that names it applies this difference only."""
    updates: list[Update] = Field(default_factory=list)
    """The difference as a batch: applied to head, it makes head equal to the branch."""
    changes: list[ChangedDefinition] = Field(default_factory=list)
    computed: list[ComputedDifferenceV1] | None = None
    """The results that differ, as far as they are computed; None if they were not wanted."""
    error: str | None = None
    """Why there is no answer."""

    def upgrade(self) -> "DifferenceReplyV2":
        fields: dict[str, Any] = {**self.__dict__, "computed": None}
        if self.computed is not None:
            fields["computed"] = [ComputedDifference(**each.__dict__) for each in self.computed]
        return DifferenceReplyV2.model_construct(**fields, behind=None, uncomputed=None)


class DifferenceReplyV2(Versioned):
    """Version 1, with the status of each result, and with what is not known yet."""

    VERSION: ClassVar = 2
    commit: Annotated[int, Field(ge=0)]
    digest: str = ""
    """Digest of the updates and of what head has in their place. A request to apply the branch that
    names it applies this difference only."""
    updates: list[Update] = Field(default_factory=list)
    changes: list[ChangedDefinition] = Field(default_factory=list)
    computed: list[ComputedDifference] | None = None
    """The results that applying the branch now would change, as far as they are known."""
    error: str | None = None
    behind: Annotated[int, Field(ge=0)] | None = None
    """Batches of head that the branch has not followed yet; None: more than head's log holds."""
    uncomputed: Annotated[int, Field(ge=0)] | None = None
    """Values that applying the branch reaches, and whose result is not known yet because the
    branch or head has it to compute. None: not wanted, or an older release did not say."""

    def to_oldest_version(self) -> "DifferenceReplyV1 | DifferenceReplyV2":
        said: list[int | str | None] = [self.behind, self.uncomputed]
        for each in self.computed or ():
            said += each.head_status, each.branch_status
        if any(part is not None for part in said):
            return self
        downgraded = downgrade_to(self, DifferenceReplyV1)
        if self.computed is None:
            return downgraded
        computed = [
            ComputedDifferenceV1.model_construct(
                id=each.id, name=each.name, head=each.head, branch=each.branch
            )
            for each in self.computed
        ]
        return downgraded.model_copy(update={"computed": computed})


DifferenceQuery: Final = MessageType(
    "DifferenceQuery", current=DifferenceQueryV1, from_clients=True
)
DifferenceReply: Final = MessageType(
    "DifferenceReply", DifferenceReplyV1, current=DifferenceReplyV2
)
