"""Asking which edits made a value what it is, and what keeps it back: any Rebaser answers."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rebaser_core.ids import ChangeSetId, RequestId, UlidText, WorkspaceId
from rebaser_core.queries.value_query import ValueSnapshot
from rebaser_core.versioning import MessageType, Versioned
from rebaser_core.wire_model import WireModel

_Count = Annotated[int, Field(ge=0)]


class ProvenanceQueryV1(Versioned):
    """Asks why a value is what it is."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    value: str
    """Its name or id."""
    at: _Count | None = None
    """As of this commit; None for the last."""


class DefinitionChange(WireModel):
    """What an edit changed of the value, or of what it is computed from."""

    id: UlidText
    """Of a value or a function."""
    what: str
    """`definition`, `value`, `inputs`, `input` (one was removed), `function` or `removal`."""
    path: list[str]
    """Names, or ids, from it to the value that was asked about, both included."""
    before: str | None = None
    """As text; None if there was nothing."""
    after: str | None = None


class ProvenanceEdit(WireModel):
    """A commit without which the value would be another."""

    change_set_id: ChangeSetId
    """Whose log it is in: a branch has edits of head, too."""
    commit: _Count
    time: str
    """When NATS stored the request, in ISO 8601."""
    request: RequestId
    author: str | None = None
    """As the client named it."""
    trace: str | None = None
    """The trace of the request, in hexadecimal digits, if the log names it."""
    changes: list[DefinitionChange]
    """The nearest to the value first, at most twenty."""
    omitted: _Count = 0
    """How many changes are not listed."""


class FailedInput(WireModel):
    """A failed value because of which the value has no result; it may be the value itself."""

    id: UlidText
    path: list[str]
    """Names, or ids, from it to the value that was asked about."""
    message: str


class DueUpdate(WireModel):
    """The update of dependent values that the value waits for."""

    commit: _Count | None = None
    """The first commit that it has to cover; None if that is not kept."""
    since: str | None = None
    """When NATS stored the request of that commit."""
    update: RequestId | None = None
    """Its id, if it has begun; the log has its result under this id."""
    failures: _Count = 0
    """Attempts in a row that failed."""


class ProvenanceReplyV1(Versioned):
    """Why a value is what it is, as of one commit; its id is the query's."""

    VERSION: ClassVar = 1
    commit: _Count
    value: ValueSnapshot | None = None
    """None if there is no such value; of one that was removed, `edits` has the removal."""
    edits: list[ProvenanceEdit] = Field(default_factory=list)
    """The latest first, at most a thousand. All that are named, and no others, made the value."""
    omitted: _Count = 0
    """How many edits are not listed."""
    older: _Count = 0
    """How many of the definitions are, at least in part, older than the commits that are kept."""
    kept_from: _Count = 0
    """The commit behind which commits are kept; 0 if all are."""
    is_whole: bool = True
    """Whether all that the value is computed from was looked at: up to 100,000 values."""
    failed: list[FailedInput] = Field(default_factory=list)
    """At most twenty."""
    waits: DueUpdate | None = None
    """None if the value is up to date."""
    error: str | None = None
    """Why there is no answer."""
    is_missing: bool = False
    """Whether `error` says that there is no such value."""


ProvenanceQuery: Final = MessageType(
    "ProvenanceQuery", current=ProvenanceQueryV1, from_clients=True
)
ProvenanceReply: Final = MessageType("ProvenanceReply", current=ProvenanceReplyV1)
