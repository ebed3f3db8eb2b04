"""Fixed messages, one or more for each version of each message type that was ever released."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rebaser_core import codecs
from rebaser_core.activities import Activity, ActivityKind, ActivityV1
from rebaser_core.commits import (
    BranchState,
    ClosedState,
    Commit,
    CommitV1,
    ControlState,
    DvuClaim,
    FailedAttempts,
    ForkPoint,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.messages import (
    Correction,
    Corrections,
    CorrectionsV1,
    DvuResultInfo,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponse,
    EnqueueUpdatesResponseV1,
    EnqueueUpdatesResponseV2,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    ObjectRef,
    OutcomeQuery,
    OutcomeQueryV1,
    OutcomeReply,
    OutcomeReplyV1,
    RequestState,
    ResultFile,
    StoreRef,
    SuccessStatusV1,
    SuccessStatusV2,
    SuccessV1,
    SuccessV2,
    UpdatesBatch,
    UpdatesBatchV1,
)
from rebaser_core.queries import (
    ChangedDefinition,
    ColumnTotal,
    ComputedDifference,
    DefinitionChange,
    DifferenceQuery,
    DifferenceQueryV1,
    DifferenceReply,
    DifferenceReplyV1,
    DueUpdate,
    FailedInput,
    FunctionSnapshot,
    ProvenanceEdit,
    ProvenanceQuery,
    ProvenanceQueryV1,
    ProvenanceReply,
    ProvenanceReplyV1,
    ResultlessValues,
    RevertQuery,
    RevertQueryV1,
    RevertReply,
    RevertReplyV1,
    RowDifference,
    TableColumn,
    TableDifferenceQuery,
    TableDifferenceQueryV1,
    TableDifferenceReply,
    TableDifferenceReplyV1,
    TableQuery,
    TableQueryV1,
    TableReply,
    TableReplyV1,
    TableSnapshot,
    ValueSnapshot,
    ValuesQuery,
    ValuesQueryV1,
    ValuesQueryV2,
    ValuesReply,
    ValuesReplyV1,
    ValuesReplyV2,
)
from rebaser_core.records import (
    ApplyAttempt,
    ChangeSetKind,
    ChangeSetRecord,
    ChangeSetRecordV1,
    ChangeSetRequest,
    ChangeSetRequestV1,
    ChangeSetStatus,
    CommentRecord,
    CommentRecordV1,
    PauseRecord,
    PauseRecordV1,
    WorkspaceRecord,
    WorkspaceRecordV1,
)
from rebaser_core.updates import (
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, Versioned

GOLDEN: Final = Path(__file__).parent / "golden"
ENDINGS: Final = {codecs.CBOR: "cbor", codecs.JSON: "json"}
TYPES: Final = {
    kind.name: kind
    for kind in (
        EnqueueUpdatesRequest,
        EnqueueUpdatesResponse,
        UpdatesBatch,
        Corrections,
        Commit,
        Activity,
        OutcomeQuery,
        OutcomeReply,
        WorkspaceRecord,
        ChangeSetRecord,
        ChangeSetRequest,
        PauseRecord,
        CommentRecord,
        ProvenanceQuery,
        ProvenanceReply,
        ValuesQuery,
        ValuesReply,
        TableQuery,
        TableReply,
        TableDifferenceQuery,
        TableDifferenceReply,
        DifferenceQuery,
        DifferenceReply,
        RevertQuery,
        RevertReply,
    )
}

REQUEST: Final = RequestId.from_str("01JZ8M3Q7V0000000000000001")
CLAIM: Final = RequestId.from_str("01JZ8M3Q7V0000000000000002")
WHERE: Final = {
    "workspace_id": WorkspaceId.from_str("01JZ8M3Q7V0000000000000003"),
    "change_set_id": ChangeSetId.from_str("01JZ8M3Q7V0000000000000004"),
}
FUNC: Final = "01JZ8M3Q7V000000000000000A"
ONE: Final = "01JZ8M3Q7V000000000000000B"
TWO: Final = "01JZ8M3Q7V000000000000000C"
SUM: Final = "01JZ8M3Q7V000000000000000D"

JSON_OF_EVERY_KIND: Final = {
    "text": 'Grüße, 世界 🌍 "\\\n\x00',
    "integers": [0, -1, codecs.INT_MIN, codecs.INT_MAX],
    "floats": [0.0, -0.0, 0.1, 1.0, 1e300, 5e-324],
    "others": [True, False, None, [], {}, ""],
}
EVERY_UPDATE: Final = [
    PutFunc(func_id=FUNC, name="sum", runtime="python", code="sum"),
    PutFunc(func_id=FUNC, name="sum", runtime="builtin"),
    PutValue(value_id=ONE, name="one", value=1),
    PutValue(value_id=TWO),
    PutValue(value_id=SUM, name="Σ", func_id=FUNC, inputs={"a": ONE, "rest": [TWO, ONE], "no": []}),
    SetValue(value_id=TWO, value=JSON_OF_EVERY_KIND),
    SetValue(value_id=TWO, value=None),
    SetInputs(value_id=SUM, inputs={"a": TWO}),
    RemoveValue(value_id=ONE),
    RemoveFunc(func_id=FUNC),
]
RESULTS: Final = [
    SetComputed(value_id=SUM, value=[1, {"a": None}]),
    SetComputed(value_id=ONE, failed="ZeroDivisionError: division by zero"),
    SetComputed(value_id=TWO, blocked_by=ONE),
]
COMPUTED: Final = DvuResultInfo(claim=CLAIM, covers=41, commit=17)
DIGEST: Final = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"

INLINE: Final = Inline(inline=InlineBatch(updates=EVERY_UPDATE))
OBJECT: Final = ObjectRef(object=DIGEST)
STORE: Final = StoreRef(store=DIGEST)
CORRECTIONS: Final = (
    Correction(index=0, code="missing-value", detail=f"value {ONE} does not exist"),
    Correction(index=3, code="cycle", detail=f"{SUM}: input {SUM} depends on it; dropped"),
)
FAILED: Final = ErrorStatus(error=ErrorDetail(message="MalformedMessage: not application/cbor"))
HEAD: Final = ControlState(
    epoch=3,
    owner="rebaser-1/7f3a",
    last_sequence=40,
    dirty_sequence=39,
    clean_sequence=30,
    claim=DvuClaim(id=CLAIM, covers=39),
    dvu_failures=1,
    attempts=FailedAttempts(sequence=40, count=2, deaths=1),
)

PARENT: Final = ChangeSetId.from_str("01JZ8M3Q7V0000000000000005")
BASE: Final = ForkPoint(change_set_id=PARENT, commit=12)
BRANCHED: Final = ControlState(
    epoch=1,
    branch=BranchState(base=BASE, head=PARENT, cursor=14),
    closing=ClosedState(
        status="applying", request=CLAIM, reason="why", difference=OBJECT, commit=15
    ),
)
RECORD: Final = ChangeSetRecordV1(
    id=REQUEST,
    **WHERE,
    name="Grüße",
    kind=ChangeSetKind.BRANCH,
    status=ChangeSetStatus.APPLIED,
    head=PARENT,
    base=BASE,
    created_at="2026-07-01T09:30:00.000Z",
    by="ada",
    closed_at="2026-07-02T09:30:00.125Z",
    application=ApplyAttempt(request=REQUEST, at_head=CLAIM, commit=15),
    problem="none",
)

DIFFERENCE: Final = DifferenceReplyV1(
    id=REQUEST,
    commit=17,
    digest=DIGEST,
    updates=EVERY_UPDATE,
    changes=[
        ChangedDefinition(
            id=ONE, name="net", what="value", head=100, branch=None, base={"a": []}, both=True
        ),
        ChangedDefinition(
            id=TWO, name=None, what="added", head=None, branch=1, base=None, both=False
        ),
    ],
    computed=[ComputedDifference(id=SUM, name="gross", head=119, branch=JSON_OF_EVERY_KIND)],
)
RESULTS_THAT_DIFFER: Final = [
    ComputedDifference(
        id=SUM,
        name="gross",
        head=119,
        branch=JSON_OF_EVERY_KIND,
        head_status="ok",
        branch_status="ok",
    ),
    ComputedDifference(
        id=TWO, name=None, head=None, branch=None, head_status=None, branch_status="failed"
    ),
]
REVERT: Final = RevertReplyV1(id=REQUEST, now=17, updates=EVERY_UPDATE, skipped=[FUNC, ONE])

PROVENANCE: Final = ProvenanceReplyV1(
    id=REQUEST,
    commit=17,
    value=ValueSnapshot(id=SUM, name="gross", value=119, status="ok", func_id=FUNC),
    edits=[
        ProvenanceEdit(
            change_set_id=WHERE["change_set_id"],
            commit=12,
            time="2026-11-22T12:53:17.954Z",
            request=REQUEST,
            author="ada",
            trace="4bf92f3577b34da6a3ce929d0e0e4736",
            changes=[
                DefinitionChange(
                    id=ONE, what="value", path=["net", "gross"], before="90", after="100"
                )
            ],
        ),
        ProvenanceEdit(
            change_set_id=WHERE["change_set_id"],
            commit=3,
            time="2026-11-22T12:50:00.000Z",
            request=CLAIM,
            changes=[DefinitionChange(id=SUM, what="definition", path=["gross"], after="add()")],
            omitted=2,
        ),
    ],
    omitted=1,
    older=4,
    kept_from=2,
    is_whole=False,
    failed=[FailedInput(id=TWO, path=["rate", "gross"], message="ValueError: no")],
    waits=DueUpdate(commit=12, since="2026-11-22T12:53:17.954Z", update=CLAIM, failures=1),
)
VALUES_READ: Final = {
    "id": REQUEST,
    "commit": 17,
    "values": [
        ValueSnapshot(id=ONE, name="net", value=JSON_OF_EVERY_KIND, status="ok"),
        ValueSnapshot(
            id=SUM,
            value=None,
            status="blocked",
            message=ONE,
            func_id=FUNC,
            inputs={"a": ONE, "rest": [TWO, ONE]},
        ),
    ],
    "missing": ["nobody"],
    "more": True,
}


def request(address: Any, **more: Any) -> EnqueueUpdatesRequestV1:
    return EnqueueUpdatesRequestV1(id=REQUEST, **WHERE, updates_address=address, **more)


def response(status: Any) -> EnqueueUpdatesResponseV2:
    return EnqueueUpdatesResponseV2(id=REQUEST, **WHERE, status=status)


def old_response(status: Any) -> EnqueueUpdatesResponseV1:
    return EnqueueUpdatesResponseV1(id=REQUEST, **WHERE, status=status)


def success(address: Any, **more: Any) -> SuccessStatusV2:
    return SuccessStatusV2(success=SuccessV2(updates_performed=address, **more))


def commit(settled: SettledRequest | None) -> CommitV1:
    return CommitV1(id=REQUEST, previous=16, control=HEAD, settled=settled)


@dataclass(frozen=True)
class Sample:
    """A message as it was written in some version, and how it reads today."""

    type_name: str
    name: str
    written: Versioned
    read: Versioned

    def __str__(self) -> str:
        return f"{self.type_name}-{self.name}"

    def path(self, content_type: str) -> Path:
        return GOLDEN / self.type_name / f"{self.name}.{ENDINGS[content_type]}"

    def headers(self, content_type: str) -> dict[str, str]:
        return {
            CONTENT_TYPE: content_type,
            MESSAGE_TYPE: self.type_name,
            MESSAGE_VERSION: str(self.written.VERSION),
        }

    def payload(self, content_type: str) -> bytes:
        return codecs.dumps(content_type, {f"v{self.written.VERSION}": self.written.to_wire()})


def _sample(type_name: str, name: str, written: Versioned, read: Versioned | None = None) -> Sample:
    if read is None and written.VERSION < TYPES[type_name].current.VERSION:
        read = written.upgrade()
    return Sample(type_name, name, written, read or written)


OUTCOME: Final = {
    "id": REQUEST,
    "state": RequestState.SETTLED,
    "response": response(success(OBJECT, commit=18, corrections=CORRECTIONS)),
}
"""The outcome of a request that is handled."""

RESULT_FILES: Final = (
    ResultFile(name="5f0c-0-4096-a1", values=4000),
    ResultFile(name="e", values=0),
)
TABLE: Final = Path(__file__).with_name("table.base64").read_text()
"""A put with a name, a put with two arguments, a put of nothing, and a set."""

ORDERS: Final = TableSnapshot(
    id=SUM,
    name="orders",
    columns=[
        TableColumn(name="id", type="bigint", nullable=False),
        TableColumn(name="net", type="decimal(12,2)", nullable=True),
    ],
    rows=1000,
    size=8192,
    files=2,
)

SAMPLES: Final = (
    _sample("EnqueueUpdatesRequest", "v1", request(INLINE)),
    _sample("EnqueueUpdatesRequest", "v1-object", request(OBJECT)),
    _sample(
        "EnqueueUpdatesRequest",
        "v1-store",
        request(STORE, from_change_set_id=WHERE["change_set_id"]),
    ),
    _sample(
        "EnqueueUpdatesResponse",
        "v1",
        old_response(SuccessStatusV1(success=SuccessV1(updates_performed=INLINE))),
        response(success(INLINE)),
    ),
    _sample("EnqueueUpdatesResponse", "v1-error", old_response(FAILED), response(FAILED)),
    _sample(
        "EnqueueUpdatesResponse",
        "v2",
        response(success(INLINE, commit=18, corrections=CORRECTIONS)),
    ),
    _sample("EnqueueUpdatesResponse", "v2-error", response(FAILED)),
    _sample("Corrections", "v1", CorrectionsV1(id=REQUEST, corrections=list(CORRECTIONS))),
    _sample("UpdatesBatch", "v1", UpdatesBatchV1(id=REQUEST, updates=EVERY_UPDATE)),
    _sample(
        "UpdatesBatch", "v1-computed", UpdatesBatchV1(id=CLAIM, updates=RESULTS, computed=COMPUTED)
    ),
    _sample(
        "UpdatesBatch",
        "v1-results",
        UpdatesBatchV1(id=CLAIM, updates=[], computed=COMPUTED, results=RESULT_FILES),
    ),
    _sample(
        "UpdatesBatch",
        "v1-under",
        UpdatesBatchV1(id=REQUEST, updates=EVERY_UPDATE, under=EVERY_UPDATE),
    ),
    _sample(
        "UpdatesBatch",
        "v1-runtimes",
        UpdatesBatchV1(
            id=REQUEST,
            updates=[
                PutFunc(func_id=FUNC, name="by day", runtime="sql", code="SELECT day FROM orders"),
                PutFunc(func_id=FUNC, name="by day", runtime="arrow", code="by_day@2"),
            ],
        ),
    ),
    _sample(
        "UpdatesBatch",
        "v1-pyspark",
        UpdatesBatchV1(
            id=REQUEST,
            updates=[PutFunc(func_id=FUNC, name="by day", runtime="pyspark", code="by_day@2")],
        ),
    ),
    _sample(
        "UpdatesBatch",
        "v1-table",
        UpdatesBatchV1(id=REQUEST, updates=EVERY_UPDATE[:1], table=TABLE),
    ),
    _sample(
        "Commit",
        "v1",
        commit(
            SettledRequest(
                id=CLAIM,
                sequence=40,
                outcome=RequestOutcome.APPLIED,
                updates=STORE,
                corrections=CORRECTIONS,
                covers=39,
            )
        ),
    ),
    _sample(
        "Commit",
        "v1-dead",
        commit(
            SettledRequest(
                id=CLAIM, sequence=40, outcome=RequestOutcome.DEAD, message="no such thing"
            )
        ),
    ),
    _sample(
        "Commit",
        "v1-branch",
        CommitV1(
            id=REQUEST,
            previous=16,
            control=BRANCHED,
            settled=SettledRequest(
                id=CLAIM,
                sequence=40,
                outcome=RequestOutcome.REFUSED,
                updates=Inline(inline=InlineBatch(updates=EVERY_UPDATE, under=EVERY_UPDATE)),
                message="refused: change set is applied",
            ),
        ),
    ),
    _sample("ChangeSetRecord", "v1", RECORD),
    _sample(
        "ChangeSetRecord",
        "v1-head",
        ChangeSetRecordV1(
            id=REQUEST,
            **WHERE,
            name="head",
            kind=ChangeSetKind.HEAD,
            head=WHERE["change_set_id"],
            created_at="2026-07-01T09:30:00Z",
        ),
    ),
    _sample(
        "WorkspaceRecord",
        "v1",
        WorkspaceRecordV1(
            id=REQUEST,
            workspace_id=WHERE["workspace_id"],
            name="prices",
            head=PARENT,
            created_at="2026-07-01T09:30:00.000Z",
            by="ada",
        ),
    ),
    _sample(
        "ChangeSetRequest",
        "v1",
        ChangeSetRequestV1(id=REQUEST, **WHERE, action="apply", reviewed=DIGEST, by="ada"),
    ),
    _sample(
        "ChangeSetRequest", "v1-refresh", ChangeSetRequestV1(id=REQUEST, **WHERE, action="refresh")
    ),
    _sample(
        "ChangeSetRequest",
        "v1-recompute",
        ChangeSetRequestV1(
            id=REQUEST, **WHERE, action="recompute", by="ada", values=["Σ", str(SUM)]
        ),
    ),
    _sample(
        "ChangeSetRequest",
        "v1-checkpoint",
        ChangeSetRequestV1(id=REQUEST, **WHERE, action="checkpoint"),
    ),
    _sample(
        "PauseRecord",
        "v1",
        PauseRecordV1(
            id=REQUEST, **WHERE, since="2026-07-01T09:30:00.000Z", by="ada", reason="moving"
        ),
    ),
    _sample(
        "CommentRecord",
        "v1",
        CommentRecordV1(
            id=REQUEST, **WHERE, text="why?\nΣ", created_at="2026-07-01T09:30:00.000Z", by="ada"
        ),
    ),
    _sample("PauseRecord", "v1-all", PauseRecordV1(id=REQUEST, since="2026-07-01T09:30:00.000Z")),
    _sample("Commit", "v1-head", CommitV1(id=REQUEST, previous=0, control=ControlState())),
    _sample(
        "Activity",
        "v1",
        ActivityV1(
            id=REQUEST,
            **WHERE,
            kind=ActivityKind.REQUEST_APPLIED,
            request_id=CLAIM,
            details={"commit": 18, "outcome": "applied", "nothing": None},
        ),
    ),
    _sample("OutcomeQuery", "v1", OutcomeQueryV1(id=REQUEST, **WHERE)),
    _sample("OutcomeReply", "v1", OutcomeReplyV1(**OUTCOME)),
    _sample("OutcomeReply", "v1-unknown", OutcomeReplyV1(id=REQUEST, state=RequestState.UNKNOWN)),
    _sample("OutcomeReply", "v1-error", OutcomeReplyV1(id=REQUEST, error="ask again later")),
    _sample(
        "ValuesQuery",
        "v1",
        ValuesQueryV1(id=REQUEST, **WHERE, which=["net", SUM], inputs=3, dependents=1, at=17),
    ),
    _sample("ValuesQuery", "v1-all", ValuesQueryV1(id=REQUEST, **WHERE)),
    _sample(
        "ValuesQuery",
        "v1-functions",
        ValuesQueryV1(id=REQUEST, **WHERE, which=["gross", FUNC], at=17, functions=True),
    ),
    _sample("ValuesReply", "v1", ValuesReplyV1(**VALUES_READ)),
    _sample("ValuesReply", "v1-error", ValuesReplyV1(id=REQUEST, commit=0, values=[], error="no")),
    _sample("ValuesReply", "v1-due", ValuesReplyV1(**VALUES_READ, due=True)),
    _sample("ValuesReply", "v1-current", ValuesReplyV1(**VALUES_READ, due=False)),
    _sample(
        "ValuesReply",
        "v1-functions",
        ValuesReplyV1(
            id=REQUEST,
            commit=17,
            values=[],
            missing=["nobody"],
            due=False,
            functions=[
                FunctionSnapshot(id=FUNC, name="gross", runtime="cel", code="net * 1.19", users=2)
            ],
        ),
    ),
    _sample("ValuesQuery", "v2", ValuesQueryV2(id=REQUEST, **WHERE, at=17, after=SUM)),
    _sample(
        "ValuesQuery",
        "v2-without-result",
        ValuesQueryV2(id=REQUEST, **WHERE, which=["net"], without_result=True, changed_by=17),
    ),
    _sample("ValuesReply", "v2", ValuesReplyV2(**VALUES_READ, due=True, next=SUM)),
    _sample(
        "ValuesReply",
        "v2-without-result",
        ValuesReplyV2(
            id=REQUEST,
            commit=17,
            values=[],
            due=False,
            without_result=[
                ResultlessValues(
                    status="failed",
                    affected=True,
                    count=1_001,
                    values=[ValueSnapshot(id=SUM, value=None, status="failed", message="no")],
                ),
                ResultlessValues(status="blocked", count=0, values=[]),
            ],
        ),
    ),
    _sample("TableQuery", "v1", TableQueryV1(id=REQUEST, **WHERE, value="orders")),
    _sample(
        "TableQuery",
        "v1-rows",
        TableQueryV1(
            id=REQUEST,
            **WHERE,
            value=SUM,
            at=17,
            columns=["day", "net"],
            rows=True,
            offset=500,
            limit=100,
        ),
    ),
    _sample(
        "TableReply",
        "v1",
        TableReplyV1(
            id=REQUEST,
            commit=17,
            table=ORDERS,
            more=True,
        ),
    ),
    _sample("TableReply", "v1-rows", TableReplyV1(id=REQUEST, commit=17, rows="QUJD")),
    _sample("TableReply", "v1-error", TableReplyV1(id=REQUEST, commit=0, error="no table")),
    _sample(
        "TableReply",
        "v1-missing",
        TableReplyV1(id=REQUEST, commit=0, error="no such value", is_missing=True),
    ),
    _sample(
        "TableDifferenceQuery", "v1", TableDifferenceQueryV1(id=REQUEST, **WHERE, value="orders")
    ),
    _sample(
        "TableDifferenceQuery",
        "v1-since",
        TableDifferenceQueryV1(
            id=REQUEST, **WHERE, value="orders", at=17, since=11, key=["day", "shop"]
        ),
    ),
    _sample(
        "TableDifferenceReply",
        "v1",
        TableDifferenceReplyV1(
            id=REQUEST, commit=17, since=11, before=ORDERS, after=ORDERS, due=True, more=True
        ),
    ),
    _sample(
        "TableDifferenceReply",
        "v1-rows",
        TableDifferenceReplyV1(
            id=REQUEST,
            commit=17,
            since=11,
            rows=RowDifference(
                key=["id"],
                compared=["id", "net"],
                added=3,
                removed=1,
                changed=1204,
                totals=[
                    ColumnTotal(name="net", before="10.50", after="10.75"),
                    ColumnTotal(name="tax", before=None, after="0.5"),
                ],
                added_rows="QUJD",
                removed_rows="REVG",
                changed_before="R0hJ",
                changed_after="SktM",
            ),
        ),
    ),
    _sample(
        "TableDifferenceReply",
        "v1-whole-rows",
        TableDifferenceReplyV1(
            id=REQUEST, commit=17, since=11, rows=RowDifference(key=[], compared=["id"])
        ),
    ),
    _sample(
        "TableDifferenceReply",
        "v1-error",
        TableDifferenceReplyV1(
            id=REQUEST, commit=0, since=0, error="no such value", is_missing=True
        ),
    ),
    _sample("DifferenceQuery", "v1", DifferenceQueryV1(id=REQUEST, **WHERE, computed=True)),
    _sample("DifferenceQuery", "v1-edits", DifferenceQueryV1(id=REQUEST, **WHERE)),
    _sample("DifferenceReply", "v1", DIFFERENCE),
    _sample("DifferenceReply", "v1-none", DifferenceReplyV1(id=REQUEST, commit=17, digest=DIGEST)),
    _sample(
        "DifferenceReply",
        "v1-behind",
        DifferenceReplyV1(
            id=REQUEST,
            commit=17,
            digest=DIGEST,
            updates=DIFFERENCE.updates,
            changes=DIFFERENCE.changes,
            computed=RESULTS_THAT_DIFFER,
            behind=3,
            uncomputed=1,
        ),
    ),
    _sample(
        "DifferenceReply",
        "v1-edits",
        DifferenceReplyV1(id=REQUEST, commit=17, digest=DIGEST, behind=0),
    ),
    _sample(
        "DifferenceReply", "v1-error", DifferenceReplyV1(id=REQUEST, commit=0, error="no branch")
    ),
    _sample("RevertQuery", "v1", RevertQueryV1(id=REQUEST, **WHERE, commit=9, force=True)),
    _sample("RevertQuery", "v1-careful", RevertQueryV1(id=REQUEST, **WHERE, commit=9)),
    _sample("RevertReply", "v1", REVERT),
    _sample("RevertReply", "v1-error", RevertReplyV1(id=REQUEST, now=0, error="no commit")),
    _sample("ProvenanceQuery", "v1", ProvenanceQueryV1(id=REQUEST, **WHERE, value="gross", at=17)),
    _sample("ProvenanceQuery", "v1-now", ProvenanceQueryV1(id=REQUEST, **WHERE, value=SUM)),
    _sample("ProvenanceReply", "v1", PROVENANCE),
    _sample(
        "ProvenanceReply",
        "v1-missing",
        ProvenanceReplyV1(id=REQUEST, commit=17, error="no such value", is_missing=True),
    ),
    _sample("Activity", "v1-quiet", ActivityV1(id=REQUEST, **WHERE, kind=ActivityKind.QUIET)),
    _sample(
        "Activity",
        "v1-functionImpure",
        ActivityV1(
            id=REQUEST,
            **WHERE,
            kind=ActivityKind.FUNCTION_IMPURE,
            details={"function": "noise", "value": SUM, "before": "1", "now": "2"},
        ),
    ),
)
