"""Arbitrary messages, and what may be wrong with them."""

from datetime import UTC
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

from rebaser_core import codecs
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import (
    BranchState,
    ClosedState,
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
    CorrectionsV1,
    DvuResultInfo,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponseV1,
    EnqueueUpdatesResponseV2,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    ObjectRef,
    OutcomeQueryV1,
    OutcomeReplyV1,
    RequestState,
    StoreRef,
    SuccessStatusV1,
    SuccessStatusV2,
    SuccessV1,
    SuccessV2,
    UpdatesBatchV1,
)
from rebaser_core.queries import (
    ChangedDefinition,
    ColumnTotal,
    ComputedDifference,
    DefinitionChange,
    DifferenceQueryV1,
    DifferenceReplyV1,
    DueUpdate,
    FailedInput,
    FunctionSnapshot,
    ProvenanceEdit,
    ProvenanceQueryV1,
    ProvenanceReplyV1,
    ResultlessValues,
    RevertQueryV1,
    RevertReplyV1,
    RowDifference,
    TableColumn,
    TableDifferenceQueryV1,
    TableDifferenceReplyV1,
    TableQueryV1,
    TableReplyV1,
    TableSnapshot,
    ValueSnapshot,
    ValuesQueryV2,
    ValuesReplyV2,
)
from rebaser_core.records import (
    ApplyAttempt,
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetRequestV1,
    ChangeSetStatus,
    CommentRecordV1,
    PauseRecordV1,
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

unhurried: Final = settings(deadline=None, max_examples=50)

content_types = st.sampled_from(sorted(codecs.CONTENT_TYPES))

_text = st.text(max_size=12)
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(codecs.INT_MIN, codecs.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text
)


def _made(shape: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """As `st.builds`, which would guess what pydantic's signatures leave open."""
    return st.fixed_dictionaries(fields).map(lambda values: shape(**values))


def _wrapped(leaf: Any, depth: int, lists: int) -> Any:
    for bit in range(depth):
        leaf = [leaf] if lists >> bit & 1 else {"in": leaf}
    return leaf


def nested(depth: int) -> st.SearchStrategy[Any]:
    """A leaf in exactly so many lists and objects."""
    return st.builds(_wrapped, _leaves, st.just(depth), st.integers(0, 2**depth - 1))


json_values = (
    st.recursive(
        _leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
        max_leaves=12,
    )
    | st.integers(1, codecs.MAX_DEPTH).flatmap(nested)
    | nested(codecs.MAX_DEPTH)
)


def _ids(kind: Any) -> st.SearchStrategy[Any]:
    return st.binary(min_size=16, max_size=16).map(kind.from_bytes)


request_ids, workspace_ids, change_set_ids = map(_ids, (RequestId, WorkspaceId, ChangeSetId))
ids = request_ids.map(str)
_names = st.text(min_size=1, max_size=20)
_counts = st.integers(0, codecs.INT_MAX)
_digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
_inputs = st.dictionaries(_names, ids | st.lists(ids, max_size=3), max_size=3)
_maybe = st.none().__or__

updates = st.one_of(
    _made(
        PutFunc,
        func_id=ids,
        name=_names,
        runtime=st.sampled_from(["python", "cel", "sql", "arrow", "pyspark"]),
    ),
    _made(PutFunc, func_id=ids, name=_names, runtime=st.just("builtin"), code=_text),
    _made(RemoveFunc, func_id=ids),
    _made(PutValue, value_id=ids, name=_maybe(_names), value=json_values),
    _made(PutValue, value_id=ids, func_id=ids, inputs=_maybe(_inputs)),
    _made(SetValue, value_id=ids, value=json_values),
    _made(SetInputs, value_id=ids, inputs=_inputs),
    _made(RemoveValue, value_id=ids),
    _made(SetComputed, value_id=ids, value=json_values),
    _made(SetComputed, value_id=ids, failed=_maybe(_text), blocked_by=_maybe(ids)),
)
_lists = st.lists(updates, max_size=3)
_computed = _maybe(_made(DvuResultInfo, claim=request_ids, covers=_counts, commit=_counts))
addresses = st.one_of(
    _made(
        Inline, inline=_made(InlineBatch, updates=_lists, computed=_computed, under=_maybe(_lists))
    ),
    _made(ObjectRef, object=_digests),
    _made(StoreRef, store=_digests),
)
_corrections = st.lists(_made(Correction, index=_counts, code=_text, detail=_text), max_size=2).map(
    tuple
)
_errors = _made(ErrorStatus, error=_made(ErrorDetail, message=_text))
_successes = _made(
    SuccessStatusV2,
    success=_made(
        SuccessV2, updates_performed=addresses, commit=_maybe(_counts), corrections=_corrections
    ),
)
_where = {"id": request_ids, "workspace_id": workspace_ids, "change_set_id": change_set_ids}
_settled = _made(
    SettledRequest,
    id=request_ids,
    sequence=_counts,
    outcome=st.sampled_from(RequestOutcome),
    updates=_maybe(addresses),
    corrections=_corrections,
    covers=_maybe(_counts),
    message=_maybe(_text),
)
_bases = _made(ForkPoint, change_set_id=change_set_ids, commit=_counts)
_controls = _made(
    ControlState,
    epoch=_counts,
    owner=_text,
    claim=_maybe(_made(DvuClaim, id=request_ids, covers=_counts)),
    attempts=_maybe(_made(FailedAttempts, sequence=_counts, count=_counts, deaths=_counts)),
    branch=_maybe(_made(BranchState, base=_bases, head=change_set_ids, cursor=_maybe(_counts))),
    closing=_maybe(
        _made(
            ClosedState,
            status=st.sampled_from(ChangeSetStatus).map(str),
            request=request_ids,
            reason=_maybe(_text),
            difference=_maybe(addresses),
            commit=_maybe(_counts),
        )
    ),
)

_moments = st.datetimes(timezones=st.just(UTC)).map(
    lambda moment: moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
)
_comments = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_record_names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)

_responses = _made(EnqueueUpdatesResponseV2, **_where, status=_successes | _errors)

_tables = _made(
    TableSnapshot,
    id=ids,
    name=_maybe(_names),
    columns=st.lists(
        _made(TableColumn, name=_text, type=_text, nullable=st.booleans()), max_size=3
    ),
    rows=_counts,
    size=_counts,
    files=_counts,
)

messages = {
    "EnqueueUpdatesRequest": _made(
        EnqueueUpdatesRequestV1,
        **_where,
        updates_address=addresses,
        from_change_set_id=_maybe(change_set_ids),
    ),
    "EnqueueUpdatesResponse": _responses,
    "UpdatesBatch": _made(UpdatesBatchV1, id=request_ids, updates=_lists, computed=_computed),
    "Corrections": _made(CorrectionsV1, id=request_ids, corrections=_corrections.map(list)),
    "Commit": _made(
        CommitV1, id=request_ids, previous=_counts, control=_controls, settled=_maybe(_settled)
    ),
    "Activity": _made(
        ActivityV1,
        **_where,
        kind=st.sampled_from(ActivityKind),
        request_id=_maybe(request_ids),
        details=st.dictionaries(_text, json_values, max_size=3),
    ),
    "ChangeSetRequest": _made(
        ChangeSetRequestV1,
        **_where,
        action=st.sampled_from(
            ["refresh", "apply", "abandon", "delete", "checkpoint", "recompute"]
        ),
        reviewed=_maybe(_text),
        by=_maybe(_text),
        values=_maybe(st.lists(_text, max_size=3)),
    ),
    "CommentRecord": _made(
        CommentRecordV1,
        **_where,
        text=_comments,
        created_at=_moments,
        by=_maybe(_text),
    ),
    "PauseRecord": _made(
        PauseRecordV1,
        id=request_ids,
        workspace_id=_maybe(workspace_ids),
        change_set_id=_maybe(change_set_ids),
        since=_moments,
        by=_maybe(_text),
        reason=_maybe(_text),
    ),
    "ChangeSetRecord": _made(
        ChangeSetRecordV1,
        **_where,
        name=_record_names,
        kind=st.sampled_from(ChangeSetKind),
        status=st.sampled_from(ChangeSetStatus),
        head=change_set_ids,
        base=_maybe(_bases),
        created_at=_moments,
        by=_maybe(_text),
        closed_at=_maybe(_moments),
        application=_maybe(
            _made(ApplyAttempt, request=request_ids, at_head=request_ids, commit=_maybe(_counts))
        ),
        problem=_maybe(_text),
    ),
    "WorkspaceRecord": _made(
        WorkspaceRecordV1,
        id=request_ids,
        workspace_id=workspace_ids,
        name=_record_names,
        head=change_set_ids,
        created_at=_moments,
        by=_maybe(_text),
    ),
    "DifferenceQuery": _made(DifferenceQueryV1, **_where, computed=st.booleans()),
    "DifferenceReply": _made(
        DifferenceReplyV1,
        id=request_ids,
        commit=_counts,
        digest=_text,
        updates=_lists,
        changes=st.lists(
            _made(
                ChangedDefinition,
                id=ids,
                name=_maybe(_text),
                what=_text,
                head=json_values,
                branch=json_values,
                base=json_values,
                both=st.booleans(),
            ),
            max_size=2,
        ),
        computed=_maybe(
            st.lists(
                _made(
                    ComputedDifference,
                    id=ids,
                    name=_maybe(_text),
                    head=json_values,
                    branch=json_values,
                    head_status=_maybe(_text),
                    branch_status=_maybe(_text),
                ),
                max_size=2,
            )
        ),
        error=_maybe(_text),
        behind=_maybe(_counts),
        uncomputed=_maybe(_counts),
    ),
    "RevertQuery": _made(RevertQueryV1, **_where, commit=_counts, force=st.booleans()),
    "RevertReply": _made(
        RevertReplyV1,
        id=request_ids,
        now=_counts,
        updates=_lists,
        skipped=st.lists(ids, max_size=3),
        error=_maybe(_text),
    ),
    "ProvenanceQuery": _made(ProvenanceQueryV1, **_where, value=_text, at=_maybe(_counts)),
    "ProvenanceReply": _made(
        ProvenanceReplyV1,
        id=request_ids,
        commit=_counts,
        edits=st.lists(
            _made(
                ProvenanceEdit,
                change_set_id=change_set_ids,
                commit=_counts,
                time=_moments,
                request=request_ids,
                author=_maybe(_text),
                trace=_maybe(_text),
                changes=st.lists(
                    _made(
                        DefinitionChange,
                        id=ids,
                        what=_text,
                        path=st.lists(_text, max_size=3),
                        before=_maybe(_text),
                        after=_maybe(_text),
                    ),
                    max_size=2,
                ),
                omitted=_counts,
            ),
            max_size=2,
        ),
        older=_counts,
        kept_from=_counts,
        is_whole=st.booleans(),
        failed=st.lists(
            _made(FailedInput, id=ids, path=st.lists(_text, max_size=3), message=_text), max_size=2
        ),
        waits=_maybe(
            _made(
                DueUpdate,
                commit=_maybe(_counts),
                since=_maybe(_moments),
                update=_maybe(request_ids),
                failures=_counts,
            )
        ),
        error=_maybe(_text),
        is_missing=st.booleans(),
    ),
    "TableQuery": _made(
        TableQueryV1,
        **_where,
        value=_text,
        at=_maybe(_counts),
        columns=st.lists(_text, max_size=3),
        rows=st.booleans(),
        offset=_counts,
        limit=_maybe(_counts),
    ),
    "TableReply": _made(
        TableReplyV1,
        id=request_ids,
        commit=_counts,
        table=_maybe(_tables),
        rows=_maybe(_text),
        more=st.booleans(),
        error=_maybe(_text),
        is_missing=st.booleans(),
    ),
    "TableDifferenceQuery": _made(
        TableDifferenceQueryV1,
        **_where,
        value=_text,
        at=_maybe(_counts),
        since=_maybe(_counts),
        key=_maybe(st.lists(_text, max_size=3)),
    ),
    "TableDifferenceReply": _made(
        TableDifferenceReplyV1,
        id=request_ids,
        commit=_counts,
        since=_counts,
        before=_maybe(_tables),
        after=_maybe(_tables),
        due=st.booleans(),
        rows=_maybe(
            _made(
                RowDifference,
                key=st.lists(_text, max_size=3),
                compared=st.lists(_text, max_size=3),
                added=_counts,
                removed=_counts,
                changed=_maybe(_counts),
                totals=st.lists(
                    _made(ColumnTotal, name=_text, before=_maybe(_text), after=_maybe(_text)),
                    max_size=3,
                ),
                added_rows=_maybe(_text),
                removed_rows=_maybe(_text),
                changed_before=_maybe(_text),
                changed_after=_maybe(_text),
            )
        ),
        more=st.booleans(),
        error=_maybe(_text),
        is_missing=st.booleans(),
    ),
    "ValuesQuery": _made(
        ValuesQueryV2,
        **_where,
        which=st.lists(_text, max_size=3),
        inputs=st.integers(0, 1_000_000),
        dependents=st.integers(0, 1_000_000),
        at=_maybe(_counts),
        functions=st.booleans(),
        after=_maybe(_text),
        without_result=st.booleans(),
        changed_by=_maybe(st.integers(1, 2**40)),
    ),
    "ValuesReply": _made(
        ValuesReplyV2,
        id=request_ids,
        commit=_counts,
        values=st.lists(
            _made(
                ValueSnapshot,
                id=ids,
                value=json_values,
                status=st.sampled_from(["ok", "failed", "blocked", "pending"]),
                name=_maybe(_names),
                message=_maybe(_text),
                func_id=_maybe(ids),
                inputs=_maybe(_inputs),
            ),
            max_size=3,
        ),
        missing=st.lists(_text, max_size=3),
        more=st.booleans(),
        error=_maybe(_text),
        due=_maybe(st.booleans()),
        functions=_maybe(
            st.lists(
                _made(
                    FunctionSnapshot,
                    id=ids,
                    name=_text,
                    runtime=st.sampled_from(
                        ["builtin", "cel", "python", "sql", "arrow", "pyspark"]
                    ),
                    code=_text,
                    users=_counts,
                ),
                max_size=3,
            )
        ),
        next=_maybe(ids),
        without_result=_maybe(
            st.lists(
                _made(
                    ResultlessValues,
                    status=st.sampled_from(["failed", "blocked"]),
                    affected=_maybe(st.booleans()),
                    count=_counts,
                    values=st.just([]),
                ),
                max_size=3,
            )
        ),
    ),
    "OutcomeQuery": _made(OutcomeQueryV1, **_where),
    "OutcomeReply": _made(
        OutcomeReplyV1,
        id=request_ids,
        state=st.sampled_from(RequestState),
        response=_maybe(_responses),
    ),
}
old_responses = _made(
    EnqueueUpdatesResponseV1,
    **_where,
    status=_made(SuccessStatusV1, success=_made(SuccessV1, updates_performed=addresses)) | _errors,
)
