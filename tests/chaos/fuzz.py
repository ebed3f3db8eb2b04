"""Request messages damaged at random: bytes, headers, ids, and what an address leads to."""

import json
import random
from collections.abc import Callable
from typing import Any

import cbor2

from rebaser_core import codecs
from rebaser_core.ids import ChangeSet
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_ID, MESSAGE_TYPE, MESSAGE_VERSION
from tests.chaos.workload import Values, new_id

Message = tuple[dict[str, str], bytes]

_AN_ID = "an id"
"""Stands for a new one: one that is always the same would be a retry, in many change sets."""

_NONSENSE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 1.5, 1e308, "", "x" * 5000, "\0", "🦊", [], [[]], {}, {"": {}},
    {"v2": {}}, _AN_ID, "O1ARZ3NDEKTSV4RRFFQ69G5FAV", {"inline": {}},
)  # fmt: skip
_HEADER_NONSENSE = ("", "0", "-1", "1.0", "+1", "application/CBOR", "text/plain", "x" * 3000, "é")


def fuzzed(rng: random.Random, change_set: ChangeSet, values: Values) -> Message:
    """A request damaged in one to three places. Never of a newer version: such a one is parked."""
    content_type = rng.choice((codecs.CBOR, codecs.JSON))
    request = {
        "id": new_id(rng),
        "workspaceId": str(change_set.workspace_id),
        "changeSetId": str(change_set.change_set_id),
        "updatesAddress": {"inline": {"updates": values.batch(rng)[:20]}},
    }
    headers = {
        CONTENT_TYPE: content_type,
        MESSAGE_TYPE: "EnqueueUpdatesRequest",
        MESSAGE_VERSION: "1",
        MESSAGE_ID: request["id"],
    }
    body: Any = {"v1": request}
    for _ in range(rng.randrange(3)):
        body = _misplaced(rng, body)
    payload = cbor2.dumps(body) if content_type == codecs.CBOR else json.dumps(body).encode()
    message = headers, payload
    for _ in range(rng.randrange(3)):
        message = rng.choice(_DAMAGE)(rng, message)
    return message


def _misplaced(rng: random.Random, data: Any) -> Any:
    """`data` with nonsense, or something less, somewhere in it."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != key}
        if rng.random() < 0.1:
            return data | {"more": rng.choice(_NONSENSE)}
        return data | {key: _misplaced(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.9:
        index = rng.randrange(len(data))
        return [*data[:index], _misplaced(rng, data[index]), *data[index + 1 :]]
    nonsense = rng.choice(_NONSENSE)
    return new_id(rng) if nonsense is _AN_ID else nonsense


def _flip(rng: random.Random, message: Message) -> Message:
    headers, payload = message
    damaged = bytearray(payload)
    for _ in range(rng.randrange(1, 4)):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return headers, bytes(damaged)


def _splice(rng: random.Random, message: Message) -> Message:
    headers, payload = message
    start = rng.randrange(len(payload) + 1)
    end = min(len(payload), start + rng.randrange(20))
    return headers, payload[:start] + rng.randbytes(rng.randrange(20)) + payload[end:]


def _header(rng: random.Random, message: Message) -> Message:
    headers, payload = message
    name = rng.choice((CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, MESSAGE_ID))
    if rng.random() < 0.3:
        return {k: v for k, v in headers.items() if k != name}, payload
    return headers | {name: rng.choice(_HEADER_NONSENSE)}, payload


_DAMAGE: tuple[Callable[[random.Random, Message], Message], ...] = (_flip, _splice, _header)
