"""Questions that no client of ours would ask: pure, for a given chance."""

import random
from dataclasses import dataclass
from typing import Any

from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.query_protocol import ACCEPTS_PIECES, REPLY_TIMEOUT
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import (
    CONTENT_TYPE,
    MESSAGE_ID,
    MESSAGE_TYPE,
    MESSAGE_VERSION,
)


@dataclass(frozen=True, slots=True)
class PoisonQuestion:
    """A message for a subject of questions."""

    subject: str
    headers: dict[str, str]
    payload: bytes


KINDS = {
    "values": "ValuesQuery",
    "tables": "TableQuery",
    "table-differences": "TableDifferenceQuery",
    "outcomes": "OutcomeQuery",
    "provenance": "ProvenanceQuery",
    "differences": "DifferenceQuery",
    "reverts": "RevertQuery",
}
_WORDS = ("", "0", "1", "-1", "9" * 30, "nan", "1e9", "é", "x" * 3000, "1/1", "a b", "\x7f")
_NUMBERS = (0, 1, -1, 2**63 - 1, 2**63, 1.5, None, True, "1", [], {})


def _ulid(rng: random.Random, kind: Any) -> Any:
    return kind.from_bytes(rng.randbytes(16))


def _body(rng: random.Random, kind: str, change_set: ChangeSet) -> dict[str, Any]:
    other = ChangeSet(_ulid(rng, WorkspaceId), _ulid(rng, ChangeSetId))
    about = rng.choice((change_set, change_set, other))
    body: dict[str, Any] = {
        "id": str(_ulid(rng, RequestId)),
        "workspaceId": str(about.workspace_id),
        "changeSetId": str(about.change_set_id),
    }
    if kind == "values":
        body["which"] = rng.choice(([], ["x"] * rng.randrange(20_000), ["\x00", "a" * 9999], "x"))
        body["inputs"], body["dependents"] = rng.choice(_NUMBERS), rng.choice(_NUMBERS)
        body["at"] = rng.choice(_NUMBERS)
    if kind == "tables":
        body["value"], body["at"] = rng.choice(("", "x", 7)), rng.choice(_NUMBERS)
        body["rows"] = rng.choice((True, False, 1))
        body["offset"], body["limit"] = rng.choice(_NUMBERS), rng.choice(_NUMBERS)
        body["columns"] = rng.choice(([], ["x"] * rng.randrange(20_000), "x"))
    if kind == "table-differences":
        body["value"], body["at"] = rng.choice(("", "x", 7)), rng.choice(_NUMBERS)
        body["since"] = rng.choice(_NUMBERS)
        body["key"] = rng.choice((None, [], ["x"] * rng.randrange(20_000), "x"))
    if kind == "provenance":
        body["value"], body["at"] = rng.choice(("", "x", 7)), rng.choice(_NUMBERS)
    if kind == "differences":
        body["computed"] = rng.choice((True, False, 1, "true"))
    if kind == "reverts":
        body["commit"], body["force"] = rng.choice(_NUMBERS), rng.choice((True, False, 0))
    if rng.random() < 0.2:
        body[rng.choice([*body, "more", ""])] = rng.choice(_NUMBERS)
    return body


def _payload(rng: random.Random, kind: str, change_set: ChangeSet, content_type: str) -> bytes:
    bombs = (b"\x80", b"\x81", b"\xa0", b"\x9f", b"\xa1\x60", b"[", b"[],", b'{"":', b"\xff")
    if rng.random() < 0.2:
        return b"\x9a\x00\x07\x00\x00" + rng.choice(bombs) * rng.randrange(400_000 // 3)
    try:
        payload = codecs.dumps(content_type, {"v1": _body(rng, kind, change_set)})
    except codecs.MalformedMessage:
        return b""
    if rng.random() < 0.2:
        at = rng.randrange(len(payload))
        payload = payload[:at] + rng.randbytes(rng.randrange(4)) + payload[at + 1 :]
    return payload


def poison_question(
    rng: random.Random, change_set: ChangeSet, subjects: Subjects
) -> PoisonQuestion:
    """A question that is wrong in some ways, or in none, about `change_set` or another."""
    kind = rng.choice([*KINDS])
    content_type = rng.choice(sorted(codecs.CONTENT_TYPES))
    payload = _payload(rng, kind, change_set, content_type)
    headers = {
        CONTENT_TYPE: content_type,
        MESSAGE_TYPE: KINDS[kind],
        MESSAGE_VERSION: "1",
        MESSAGE_ID: str(_ulid(rng, RequestId)),
    }
    for name in (REPLY_TIMEOUT, ACCEPTS_PIECES):
        headers[name] = rng.choice(("1", "2", *_WORDS))
    for name in [*headers]:
        if rng.random() < 0.1:
            headers[name] = rng.choice(_WORDS)
        elif rng.random() < 0.2:
            del headers[name]
    where = rng.choice((str(change_set), str(change_set), "a.b", "A" * 26 + "." + "0" * 26))
    return PoisonQuestion(subjects.join("rebaser", kind, where), headers, payload)
