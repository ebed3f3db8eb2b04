"""The queries that any Rebaser answers: values, tables, differences, edits behind a value, reverts.

Each is asked over NATS and answered as of one commit. A difference is what a branch would change in
head if it were applied now. Provenance is the edits that made a value, and the failures that keep
it back. A revert is the batch that undoes a commit; the asker enqueues it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import Field

from rebaser_core.ids import ChangeSetId, FuncId, RequestId, UlidText, ValueId, WorkspaceId
from rebaser_core.updates import Inputs, Update
from rebaser_core.versioning import JsonValue, MessageType, Versioned, WireModel


class DifferenceQueryV1(Versioned):
    """Asks for the difference of a branch to head, after a merge of all that head has changed."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    computed: bool = False
    """Whether results that differ are wanted, too: for them both change sets are read whole."""


class ChangedDefinition(WireModel):
    """A branch's edits of one value or function, and what head has there."""

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
    """A value, computed on one side at least, whose result applying the branch changes."""

    id: UlidText
    name: str | None
    head: JsonValue
    branch: JsonValue
    head_status: str | None = None
    """Status in head: `ok`, `failed` or `blocked`; None: head has no such value."""
    branch_status: str | None = None


class DifferenceReplyV1(Versioned):
    """The difference as of one commit of the branch; its id is the query's."""

    VERSION: ClassVar = 1
    commit: Annotated[int, Field(ge=0)]
    digest: str = ""
    """Digest of the updates and of what head has in their place. A request to apply the branch that
    names it applies this difference only."""
    updates: list[Update] = Field(default_factory=list)
    """The difference as a batch: applied to head, it makes head equal to the branch."""
    changes: list[ChangedDefinition] = Field(default_factory=list)
    computed: list[ComputedDifference] | None = None
    """The results that applying the branch now would change, as far as they are known; None if
    they were not wanted."""
    error: str | None = None
    """Reason for no answer."""
    behind: Annotated[int, Field(ge=0)] | None = None
    """Batches of head that the branch has not followed yet; None: more than head's log holds."""
    uncomputed: Annotated[int, Field(ge=0)] | None = None
    """Values that applying the branch reaches, and whose result is not known yet because the
    branch or head has it to compute. None: not wanted."""


DifferenceQuery: Final = MessageType(
    "DifferenceQuery", current=DifferenceQueryV1, from_clients=True
)
DifferenceReply: Final = MessageType("DifferenceReply", current=DifferenceReplyV1)


_Levels = Annotated[int, Field(ge=0, le=1_000_000)]


class ValuesQueryV1(Versioned):
    """Asks for values, and for those around them; or for functions."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    which: list[str] = Field(default_factory=list)
    """Names or ids; all values if it is empty."""
    inputs: _Levels = 0
    """Levels of values that they are computed from."""
    dependents: _Levels = 0
    """Levels of values that are computed from them."""
    at: Annotated[int, Field(ge=0)] | None = None
    """Commit as of which to answer; None for the last."""
    functions: bool = False
    """Whether functions are asked for in place of values: those with the names or ids in `which`,
    all if it is empty."""

    def upgrade(self) -> "ValuesQueryV2":
        return ValuesQueryV2(**dict(self))


class ValuesQueryV2(ValuesQueryV1):
    """Asks for values or functions, also in pages; or for the values without a result."""

    VERSION: ClassVar = 2
    after: str | None = None
    """Id behind which a page of the values begins, in the order of ids; empty for the first page,
    which has all values if they fit. None: an answer in pages is not understood."""
    without_result: bool = False
    """Whether failed and blocked values alone are asked for: their numbers, and the first ones."""
    changed_by: Annotated[int, Field(ge=1)] | None = None
    """Commit by which to split the values without a result: did it change them, or one that they
    depend on? `which` has names and ids of further values and functions that it changed."""

    def to_oldest_version(self) -> Versioned:
        if self.after is not None or self.without_result or self.changed_by is not None:
            return self
        return ValuesQueryV1(**{name: getattr(self, name) for name in ValuesQueryV1.model_fields})


class ValueSnapshot(WireModel):
    """A value as of the commit that the reply names."""

    id: ValueId
    value: JsonValue
    status: str
    """`ok`, `failed`, `blocked` or `pending`."""
    name: str | None = None
    message: str | None = None
    """Reason why it has no value."""
    func_id: FuncId | None = None
    inputs: Inputs | None = None

    def input_ids(self) -> list[ValueId]:
        """The ids of all its inputs, in order; one that is taken twice comes twice."""
        given = (self.inputs or {}).values()
        return [each for one in given for each in ([one] if isinstance(one, str) else one)]


class FunctionSnapshot(WireModel):
    """A function as of the commit that the reply names."""

    id: FuncId
    name: str
    runtime: str
    code: str
    users: Annotated[int, Field(ge=0)]
    """Number of values that it computes."""


class ValuesReplyV1(Versioned):
    """Part of the answer; its id is the query's. All replies to a query are of one commit."""

    VERSION: ClassVar = 1
    commit: Annotated[int, Field(ge=0)]
    values: list[ValueSnapshot]
    missing: list[str] = Field(default_factory=list)
    """Names and ids that were asked for and do not exist. In the last reply."""
    more: bool = False
    """Whether another reply follows."""
    error: str | None = None
    """Reason for no answer; then there are no values."""
    due: bool | None = None
    """Whether an update of computed values was due or running as of the commit, so that computed
    values may be of earlier inputs. None: there is no answer."""
    functions: list[FunctionSnapshot] | None = None
    """Functions that were asked for; None if values were."""

    def upgrade(self) -> "ValuesReplyV2":
        return ValuesReplyV2(**dict(self))


_Count = Annotated[int, Field(ge=0)]


class ResultlessValues(WireModel):
    """Values of one status without a result."""

    status: str
    """`failed` or `blocked`."""
    affected: bool | None = None
    """Whether the commit of the query affects them. None: it names none, or that is not kept."""
    count: _Count
    values: list[ValueSnapshot]
    """The first of them, at most a thousand, without their inputs."""


class ValuesReplyV2(ValuesReplyV1):
    """Part of the answer, which may be one page of it."""

    VERSION: ClassVar = 2
    next: ValueId | None = None
    """Id behind which the next page begins; None: there is none. In the last reply."""
    without_result: list[ResultlessValues] | None = None
    """The values without a result, if they were asked for; then `values` is empty."""

    def to_oldest_version(self) -> Versioned:
        if self.next is not None or self.without_result is not None:
            return self
        return ValuesReplyV1(**{name: getattr(self, name) for name in ValuesReplyV1.model_fields})


ValuesQuery: Final = MessageType(
    "ValuesQuery", ValuesQueryV1, current=ValuesQueryV2, from_clients=True
)
ValuesReply: Final = MessageType("ValuesReply", ValuesReplyV1, current=ValuesReplyV2)


class TableQueryV1(Versioned):
    """Asks for a value that is a table: what it has, and rows of it."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    value: str
    """Name or id of the value."""
    at: _Count | None = None
    """Commit as of which to answer; None for the last."""
    columns: list[str] = Field(default_factory=list)
    """Columns of the rows, in their order; all if it is empty."""
    rows: bool = False
    """Whether rows are wanted, too."""
    offset: _Count = 0
    """Number of rows before the first one."""
    limit: _Count | None = None
    """Maximum number of rows; None: as many as one answer takes."""


class TableColumn(WireModel):
    """A column of a table."""

    name: str
    type: str
    """Type in SQL."""
    nullable: bool


class TableSnapshot(WireModel):
    """A table as of the commit that the reply names."""

    id: ValueId
    name: str | None = None
    columns: list[TableColumn]
    rows: _Count
    size: _Count
    """Bytes of its files."""
    files: _Count


class TableReplyV1(Versioned):
    """Part of the answer; its id is the query's. All replies to a query are of one commit.

    The first reply has the table, each further one rows that follow those before.
    """

    VERSION: ClassVar = 1
    commit: _Count
    table: TableSnapshot | None = None
    rows: str | None = None
    """Rows as a stream of Arrow's IPC, compressed, in base64."""
    more: bool = False
    """Whether another reply follows."""
    error: str | None = None
    """Reason for no answer."""
    is_missing: bool = False
    """Whether `error` says that there is no such value."""


TableQuery: Final = MessageType("TableQuery", current=TableQueryV1, from_clients=True)
TableReply: Final = MessageType("TableReply", current=TableReplyV1)


class TableDifferenceQueryV1(Versioned):
    """Asks which rows of a table differ: from those of head, or of another commit."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    value: str
    """Name or id of the value."""
    at: _Count | None = None
    """Commit of the change set as of which to answer; None for the last."""
    since: _Count | None = None
    """Commit of the change set to compare with; None for the last one of head."""
    key: list[str] | None = None
    """Columns that identify a row, none to compare whole rows. None: those that the
    value's function declares."""


class ColumnTotal(WireModel):
    """The sum of a numeric column on each side, in decimal digits; None: it has no such column."""

    name: str
    before: str | None
    after: str | None


class RowDifference(WireModel):
    """Rows of a table that differ. Samples are as `TableReply.rows`, None if there are none."""

    key: list[str]
    """Columns that identify a row; empty if whole rows were compared."""
    compared: list[str]
    """Columns that both have in one type, which were compared."""
    added: _Count = 0
    removed: _Count = 0
    changed: _Count | None = None
    """Rows with equal keys; None if whole rows were compared."""
    totals: list[ColumnTotal] = Field(default_factory=list)
    """Totals of numeric columns that are not in the key; empty if the tables are equal."""
    added_rows: str | None = None
    removed_rows: str | None = None
    changed_before: str | None = None
    """Changed rows as they were, in the order of `changed_after`."""
    changed_after: str | None = None


class TableDifferenceReplyV1(Versioned):
    """Part of the answer; its id is the query's. The first has the tables, the second the rows."""

    VERSION: ClassVar = 1
    commit: _Count
    since: _Count
    """Commit that it is compared with, of head or of the change set."""
    before: TableSnapshot | None = None
    after: TableSnapshot | None = None
    due: bool = False
    """Whether an update of computed values was due or running on a side, so that the table may be
    of earlier inputs. In the first reply."""
    rows: RowDifference | None = None
    more: bool = False
    """Whether another reply follows."""
    error: str | None = None
    """Reason for no answer."""
    is_missing: bool = False
    """Whether `error` says that there is no such value."""


TableDifferenceQuery: Final = MessageType(
    "TableDifferenceQuery", current=TableDifferenceQueryV1, from_clients=True
)
TableDifferenceReply: Final = MessageType("TableDifferenceReply", current=TableDifferenceReplyV1)


class ProvenanceQueryV1(Versioned):
    """Asks for the reasons why a value is what it is."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    value: str
    """Name or id of the value."""
    at: _Count | None = None
    """Commit as of which to answer; None for the last."""


class DefinitionChange(WireModel):
    """An edit's change to the value, or to what it is computed from."""

    id: UlidText
    """Id of a value or a function."""
    what: str
    """`definition`, `value`, `inputs`, `input` (one was removed), `function` or `removal`."""
    path: list[str]
    """Names, or ids, from it to the value that was asked about, both included."""
    before: str | None = None
    """Former content, as text; None if there was nothing."""
    after: str | None = None


class ProvenanceEdit(WireModel):
    """A commit without which the value would be another."""

    change_set_id: ChangeSetId
    """Change set whose log it is in: a branch has edits of head, too."""
    commit: _Count
    time: str
    """Time at which NATS stored the request, in ISO 8601."""
    request: RequestId
    author: str | None = None
    """Author, as the client names it."""
    trace: str | None = None
    """The trace of the request, in hexadecimal digits, if the log names it."""
    changes: list[DefinitionChange]
    """The nearest to the value first, at most twenty."""
    omitted: _Count = 0
    """Number of changes that are not listed."""


class FailedInput(WireModel):
    """A failed value that keeps the value from having a result; it may be the value itself."""

    id: UlidText
    path: list[str]
    """Names, or ids, from it to the value that was asked about."""
    message: str


class DueUpdate(WireModel):
    """The update of dependent values that the value waits for."""

    commit: _Count | None = None
    """The first commit that it has to cover; None if that is not kept."""
    since: str | None = None
    """Time at which NATS stored the request of that commit."""
    update: RequestId | None = None
    """Id of the update, if it has begun; the log has its result under this id."""
    failures: _Count = 0
    """Attempts in a row that failed."""


class ProvenanceReplyV1(Versioned):
    """Reasons why a value is what it is, as of one commit; its id is the query's."""

    VERSION: ClassVar = 1
    commit: _Count
    value: ValueSnapshot | None = None
    """The value; None if there is none. If it was removed, `edits` has the removal."""
    edits: list[ProvenanceEdit] = Field(default_factory=list)
    """Edits, the latest first, at most a thousand. All of them, and no others, made the value."""
    omitted: _Count = 0
    """Number of edits that are not listed."""
    older: _Count = 0
    """Number of definitions that are, at least in part, older than the commits that are kept."""
    kept_from: _Count = 0
    """The commit behind which commits are kept; 0 if all are."""
    is_whole: bool = True
    """Whether all that the value is computed from was looked at: up to 100,000 values."""
    failed: list[FailedInput] = Field(default_factory=list)
    """Failed values, at most twenty."""
    waits: DueUpdate | None = None
    """The update that the value waits for; None if the value is up to date."""
    error: str | None = None
    """Reason for no answer."""
    is_missing: bool = False
    """Whether `error` says that there is no such value."""


ProvenanceQuery: Final = MessageType(
    "ProvenanceQuery", current=ProvenanceQueryV1, from_clients=True
)
ProvenanceReply: Final = MessageType("ProvenanceReply", current=ProvenanceReplyV1)


class RevertQueryV1(Versioned):
    """Asks for the batch that undoes a commit, except what a later commit changed again."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    commit: _Count
    force: bool = False
    """Whether to undo what a later commit changed, too."""


class RevertReplyV1(Versioned):
    """The batch, as of one commit; its id is the query's. The query changes nothing."""

    VERSION: ClassVar = 1
    now: _Count
    """The commit as of which the batch undoes the other."""
    updates: list[Update] = Field(default_factory=list)
    """Updates of the batch; empty if there is nothing to undo."""
    skipped: list[UlidText] = Field(default_factory=list)
    """Values and functions that a later commit changed or uses, and that stay as they are."""
    error: str | None = None
    """Reason for no answer."""


RevertQuery: Final = MessageType("RevertQuery", current=RevertQueryV1, from_clients=True)
RevertReply: Final = MessageType("RevertReply", current=RevertReplyV1)


QueryT = TypeVar("QueryT", bound=Versioned)
ReplyT = TypeVar("ReplyT", bound=Versioned)


@dataclass(frozen=True, slots=True)
class Question(Generic[QueryT, ReplyT]):
    """A kind of query, for who asks and who answers."""

    name: str
    """Name in its subjects: `values` for `rebaser.values.<ws>.<cs>`."""
    query: MessageType[QueryT]
    reply: MessageType[ReplyT]
    blank: Mapping[str, Any]
    """Fields that a reply without an answer has in addition to the reason."""

    def refusal(self, query_id: RequestId, why: str) -> ReplyT:
        """Return a reply with the reason for no answer."""
        return self.reply.current(id=query_id, **{"error": why, **self.blank})


VALUES: Final = Question("values", ValuesQuery, ValuesReply, {"commit": 0, "values": []})
TABLES: Final = Question("tables", TableQuery, TableReply, {"commit": 0})
TABLE_DIFFERENCES: Final = Question(
    "table-differences", TableDifferenceQuery, TableDifferenceReply, {"commit": 0, "since": 0}
)
DIFFERENCES: Final = Question("differences", DifferenceQuery, DifferenceReply, {"commit": 0})
PROVENANCE: Final = Question("provenance", ProvenanceQuery, ProvenanceReply, {"commit": 0})
REVERTS: Final = Question("reverts", RevertQuery, RevertReply, {"now": 0})
