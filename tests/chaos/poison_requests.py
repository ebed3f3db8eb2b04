"""Messages that no client of ours would send, and what must become of each."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.messages import (
    DvuResultInfo,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    ObjectRef,
    StoreRef,
    UpdatesAddress,
)
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_ID, MESSAGE_TYPE, REPLY_INBOX
from tests.chaos.workload import new_id

DEAD = ("dead",)


@dataclass(frozen=True, slots=True)
class Poison:
    """A message for a request subject."""

    name: str
    headers: dict[str, str]
    payload: bytes
    expected: tuple[str, ...] = DEAD
    batch: list[dict[str, Any]] = field(default_factory=list)
    """What it does to the values, if it is applied."""

    @property
    def request(self) -> str | None:
        return self.headers.get(MESSAGE_ID)


def poison(rng: random.Random, change_set: ChangeSet) -> Poison:
    return rng.choice(_KINDS)(rng, change_set)


def _request(
    rng: random.Random,
    change_set: ChangeSet,
    address: UpdatesAddress | None = None,
    content_type: str = codecs.CBOR,
) -> tuple[dict[str, str], bytes]:
    request = EnqueueUpdatesRequestV1(
        id=RequestId.from_str(new_id(rng)),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=address or Inline(inline=InlineBatch(updates=[])),
    )
    return EnqueueUpdatesRequest.encode(request, content_type)


def _garbage(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, _ = _request(rng, change_set)
    return Poison("garbage", headers, rng.randbytes(rng.randrange(200)))


def _truncated(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set)
    return Poison("truncated", headers, payload[: rng.randrange(len(payload))])


def _headerless(rng: random.Random, change_set: ChangeSet) -> Poison:
    return Poison("headerless", {}, _request(rng, change_set)[1])


def _other_type(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set)
    header = rng.choice((MESSAGE_TYPE, CONTENT_TYPE))
    return Poison("other type", headers | {header: "something/else"}, payload)


def _missing_batch(rng: random.Random, change_set: ChangeSet) -> Poison:
    addresses = (
        ObjectRef(object=rng.randbytes(32).hex()),
        StoreRef(store=rng.randbytes(32).hex()),
        StoreRef(store=".."),
    )
    return Poison("missing batch", *_request(rng, change_set, rng.choice(addresses)))


def _wrong_change_set(rng: random.Random, change_set: ChangeSet) -> Poison:
    other = change_set._replace(change_set_id=ChangeSetId.from_str(new_id(rng)))
    return Poison("wrong change set", *_request(rng, other))


def _other_id(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set)
    return Poison("other id", headers | {MESSAGE_ID: new_id(rng)}, payload)


def _no_ulid(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set)
    return Poison("id that is no ULID", headers | {MESSAGE_ID: rng.randbytes(8).hex()}, payload)


def _forged_result(rng: random.Random, change_set: ChangeSet) -> Poison:
    computed = DvuResultInfo(claim=RequestId.from_str(new_id(rng)), covers=2**40, commit=0)
    address = Inline(inline=InlineBatch(updates=[], computed=computed))
    return Poison("forged result", *_request(rng, change_set, address), expected=("stale",))


def _set_computed(rng: random.Random, change_set: ChangeSet) -> Poison:
    updates = InlineBatch.model_validate(
        {"updates": [{"setComputed": {"valueId": new_id(rng), "value": 1}}]}
    )
    headers, payload = _request(rng, change_set, Inline(inline=updates))
    return Poison("computed by a client", headers, payload, expected=("applied",))


def _too_deep(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set, content_type=codecs.JSON)
    deep = b'{"setValue":{"valueId":"%s","value":' % new_id(rng).encode()
    deep += b"[" * 5000 + b"]" * 5000 + b"}}"
    return Poison("too deep", headers, payload.replace(b'"updates":[]', b'"updates":[%s]' % deep))


def _not_plain(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set, content_type=codecs.JSON)
    value = rng.choice((b"NaN", b"1e999", b"9" * 5000, b'"\\ud800"'))
    update = b'{"setValue":{"valueId":"%s","value":%s}}' % (new_id(rng).encode(), value)
    return Poison("not JSON", headers, payload.replace(b'"updates":[]', b'"updates":[%s]' % update))


def _hostile_inbox(rng: random.Random, change_set: ChangeSet) -> Poison:
    headers, payload = _request(rng, change_set)
    inbox = rng.choice(
        (
            "$JS.API.STREAM.DELETE.REBASER_COMMITS",
            f"rebaser.requests.{change_set}",
            f"rebaser.tasks.{change_set}.process",
            "a b", "x.*", ">", "é", "." * 9,
        )
    )  # fmt: skip
    return Poison("hostile inbox", headers | {REPLY_INBOX: inbox}, payload, expected=("applied",))


_KINDS: tuple[Callable[[random.Random, ChangeSet], Poison], ...] = (
    _garbage,
    _truncated,
    _headerless,
    _other_type,
    _missing_batch,
    _wrong_change_set,
    _other_id,
    _no_ulid,
    _forged_result,
    _set_computed,
    _too_deep,
    _not_plain,
    _hostile_inbox,
)
