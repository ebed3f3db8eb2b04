"""Messages as they were released, one or more of each version of each type, and parts of some."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rebaser_core import codecs
from rebaser_core.activities import Activity
from rebaser_core.calls import CallRequest, ServiceRecord, StateQuery, StateReply
from rebaser_core.commits import (
    Commit,
    ControlState,
    DvuClaim,
    FailedAttempts,
)
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.messages import (
    Corrections,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponse,
    EnqueueUpdatesResponseV3,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    ObjectRef,
    OutcomeQuery,
    OutcomeReply,
    SuccessStatusV3,
    SuccessV3,
    UpdatesBatch,
)
from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceReply,
    ProvenanceQuery,
    ProvenanceReply,
    RevertQuery,
    RevertReply,
    TableDifferenceQuery,
    TableDifferenceReply,
    TableQuery,
    TableReply,
    ValuesQuery,
    ValuesReply,
)
from rebaser_core.records import (
    ChangeSetRecord,
    ChangeSetRequest,
    CommentRecord,
    PauseRecord,
    WorkspaceRecord,
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
        CallRequest,
        ServiceRecord,
        StateQuery,
        StateReply,
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
DIGEST: Final = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"

INLINE: Final = Inline(inline=InlineBatch(updates=EVERY_UPDATE))
OBJECT: Final = ObjectRef(object=DIGEST)
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


def request(address: Any, **more: Any) -> EnqueueUpdatesRequestV1:
    return EnqueueUpdatesRequestV1(id=REQUEST, **WHERE, updates_address=address, **more)


def response(status: Any) -> EnqueueUpdatesResponseV3:
    return EnqueueUpdatesResponseV3(id=REQUEST, **WHERE, status=status)


def success(address: Any, **more: Any) -> SuccessStatusV3:
    return SuccessStatusV3(success=SuccessV3(updates_performed=address, **more))


@dataclass(frozen=True)
class Sample:
    """A message as it was written in some version: files under `golden`, which never change."""

    type_name: str
    name: str
    """Its version first, then what it shows."""

    def __str__(self) -> str:
        return f"{self.type_name}-{self.name}"

    @property
    def version(self) -> int:
        return int(self.name.partition("-")[0].removeprefix("v"))

    @property
    def read(self) -> Versioned:
        """The message as it reads today."""
        message: Versioned = TYPES[self.type_name].decode_stored(self.payload(codecs.JSON))
        return message

    def path(self, content_type: str) -> Path:
        return GOLDEN / self.type_name / f"{self.name}.{ENDINGS[content_type]}"

    def payload(self, content_type: str) -> bytes:
        return self.path(content_type).read_bytes()

    def headers(self, content_type: str) -> dict[str, str]:
        return {
            CONTENT_TYPE: content_type,
            MESSAGE_TYPE: self.type_name,
            MESSAGE_VERSION: str(self.version),
        }


SAMPLES: Final = [Sample(path.parent.name, path.stem) for path in sorted(GOLDEN.glob("*/*.json"))]
TABLE: Final = Path(__file__).with_name("table.base64").read_text()
"""A put with a name, a put with two arguments, a put of nothing, and a set."""
