"""Reading values and functions over NATS: any Rebaser answers, as of one commit."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, FuncId, ValueId, WorkspaceId
from rebaser_core.updates import Inputs
from rebaser_core.versioning import MessageType, Versioned, downgrade_to
from rebaser_core.wire_model import JsonValue, WireModel

_Levels = Annotated[int, Field(ge=0, le=1_000_000)]


class ValuesQueryV1(Versioned):
    """Asks for values, and for those around them."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    which: list[str] = Field(default_factory=list)
    """Names or ids; all values if it is empty."""
    inputs: _Levels = 0
    """So many levels of what they are computed from."""
    dependents: _Levels = 0
    """So many levels of what is computed from them."""
    at: Annotated[int, Field(ge=0)] | None = None
    """As of this commit; None for the last."""

    def upgrade(self) -> "ValuesQueryV2":
        return ValuesQueryV2.model_construct(**self.__dict__, functions=False)


class ValuesQueryV2(Versioned):
    """Version 1, or the same about functions. Rebasers of older releases refuse this version."""

    VERSION: ClassVar = 2
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    which: list[str] = Field(default_factory=list)
    inputs: _Levels = 0
    dependents: _Levels = 0
    at: Annotated[int, Field(ge=0)] | None = None
    functions: bool = False
    """Whether functions are asked for in place of values: those with the names or ids in `which`,
    all if it is empty. The answer is of version 3."""

    def to_oldest_version(self) -> "ValuesQueryV1 | ValuesQueryV2":
        return self if self.functions else downgrade_to(self, ValuesQueryV1)


class ValueSnapshot(WireModel):
    """A value as of the commit that the reply names."""

    id: ValueId
    value: JsonValue
    status: str
    """`ok`, `failed`, `blocked` or `pending`."""
    name: str | None = None
    message: str | None = None
    """Why it has no value."""
    func_id: FuncId | None = None
    inputs: Inputs | None = None


class FunctionSnapshot(WireModel):
    """A function as of the commit that the reply names."""

    id: FuncId
    name: str
    runtime: str
    code: str
    users: Annotated[int, Field(ge=0)]
    """Number of values that it computes."""


class ValuesReplyV1(Versioned):
    """Some of what was asked for; its id is the query's. All replies to one are of one commit."""

    VERSION: ClassVar = 1
    commit: Annotated[int, Field(ge=0)]
    values: list[ValueSnapshot]
    missing: list[str] = Field(default_factory=list)
    """Of what was asked for, the names and ids that there are not. In the last reply."""
    more: bool = False
    """Whether another reply follows."""
    error: str | None = None
    """Why there is no answer; then there are no values."""

    def upgrade(self) -> "ValuesReplyV2":
        return ValuesReplyV2.model_construct(**self.__dict__, due=None)


class ValuesReplyV2(Versioned):
    """Version 1, and whether what is computed is up to date."""

    VERSION: ClassVar = 2
    commit: Annotated[int, Field(ge=0)]
    values: list[ValueSnapshot]
    missing: list[str] = Field(default_factory=list)
    more: bool = False
    error: str | None = None
    due: bool | None = None
    """Whether an update of computed values was due or running as of the commit: what they are may
    be of earlier inputs then. None: a Rebaser of an older release does not say."""

    def upgrade(self) -> "ValuesReplyV3":
        return ValuesReplyV3.model_construct(**self.__dict__, functions=None)

    def to_oldest_version(self) -> "ValuesReplyV1 | ValuesReplyV2":
        if self.due is not None:
            return self
        return downgrade_to(self, ValuesReplyV1)


class ValuesReplyV3(Versioned):
    """Version 2, or functions in place of values."""

    VERSION: ClassVar = 3
    commit: Annotated[int, Field(ge=0)]
    values: list[ValueSnapshot]
    missing: list[str] = Field(default_factory=list)
    more: bool = False
    error: str | None = None
    due: bool | None = None
    functions: list[FunctionSnapshot] | None = None
    """Functions that were asked for; None if values were."""

    def to_oldest_version(self) -> "ValuesReplyV1 | ValuesReplyV2 | ValuesReplyV3":
        if self.functions is not None:
            return self
        return downgrade_to(self, ValuesReplyV2).to_oldest_version()


ValuesQuery: Final = MessageType(
    "ValuesQuery", ValuesQueryV1, current=ValuesQueryV2, from_clients=True
)
ValuesReply: Final = MessageType("ValuesReply", ValuesReplyV1, ValuesReplyV2, current=ValuesReplyV3)
