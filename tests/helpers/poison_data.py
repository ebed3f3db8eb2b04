"""Stored things that no program of ours writes: what a Rebaser may meet and must survive.

Each function makes one of `rng`, so that a fuzzer can go on for as long as it likes and a
seed says again what it made.
"""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ulid import ULID

from tests.helpers.raw_client import RawClient

_OCTETS: Final = (b"\xff", b"\x00", b"\x0b", b"\x1b[31m", b"\xed\xa0\x80", "ä".encode(), b"a")


def new_ulid(rng: random.Random) -> str:
    return str(ULID(rng.randbytes(16)))


def poison_text(rng: random.Random) -> bytes:
    """Octets that are no JSON object, or a strange one."""
    return rng.choice(
        (
            b"",
            b"this is no JSON",
            b"\xff\xfe",
            b"[" * 5_000,
            b"null",
            b"17",
            b'"text"',
            b"[]",
            b"{}",
            b'{"v1": null}',
            b'{"v999999999": {}}',
            b'{"v2": {}}',
            b'{"v0": {}}',
            b'{"\\ud800": 1}',
            b"NaN",
            b"1e999",
            rng.randbytes(rng.randrange(1, 200)),
        )
    )


def poison_meta(rng: random.Random, name: str) -> bytes:
    """What lies in the bucket of batches as the description of object `name`."""
    sound: dict[str, Any] = {
        "name": name,
        "bucket": "REBASER_BATCHES",
        "nuid": rng.randbytes(16).hex(),
        "size": 3,
        "chunks": 1,
        "digest": "SHA-256=AAAA",
    }
    wrong: tuple[Any, ...] = (None, -1, 10**30, 1.5, True, [], {}, "", "\x00", "a b", ">", "*")
    made: dict[str, Callable[[], bytes]] = {
        "text": lambda: poison_text(rng),
        "one field wrong": lambda: json.dumps(
            {**sound, rng.choice(list(sound)): rng.choice(wrong)}
        ).encode(),
        "one field missing": lambda: json.dumps(_without(sound, rng.choice(list(sound)))).encode(),
        "no chunks": lambda: json.dumps(sound).encode(),
        "deleted and strange": lambda: json.dumps(
            {**sound, "deleted": rng.choice(wrong), "nuid": rng.choice(wrong)}
        ).encode(),
    }
    return made[rng.choice(list(made))]()


def _without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def poison_record(rng: random.Random) -> bytes:
    """What lies in a bucket of records, of pauses or of change sets."""
    fields = ("id", "workspaceId", "changeSetId", "since", "name", "kind", "status", "createdAt")
    strange = (None, 1, "", "no id", [], {}, "\ud800", new_ulid(rng))
    body = {field: rng.choice(strange) for field in rng.sample(fields, rng.randrange(len(fields)))}
    version = rng.choice((1, 2, 3, 999_999_999))
    return rng.choice((poison_text(rng), json.dumps({f"v{version}": body}).encode()))


def poison_key(rng: random.Random) -> str:
    """The key of such a record."""
    ids = new_ulid(rng), new_ulid(rng)
    return rng.choice(
        ("all", ids[0], ".".join(ids), ids[0].lower(), "x", "a.b.c", f"{ids[0]}.x", f"x.{ids[1]}")
    )


def poison_heartbeat(rng: random.Random) -> bytes:
    """What comes on a member's subject."""
    digits = b"9" * rng.choice((1, 400, 5_000))  # `int` refuses the last
    return rng.choice((b"left", b"", digits, "²".encode(), b"-1", rng.randbytes(20)))


def poison_subject(
    rng: random.Random, kind: str, end: Sequence[str] = (), *, octets: bool = True
) -> bytes:
    """A subject of that kind, `requests` say, whose two ids are not all as they should be.

    `octets`: some of them with such as no text has, or as no client library sends.
    """
    ids = [new_ulid(rng).encode(), new_ulid(rng).encode()]
    strange: tuple[Callable[[bytes], bytes], ...] = (
        bytes.lower,
        lambda _: b"x",
        lambda each: each[:-1],
        lambda each: b"Z" + each[1:],  # above 128 bits
    )
    if octets:
        strange += (
            lambda _: b"\xff\xfe",
            lambda each: each + rng.choice(_OCTETS),
            lambda each: rng.choice(_OCTETS) + each,
        )
    place = rng.randrange(2)
    ids[place] = rng.choice(strange)(ids[place])
    return b".".join((b"rebaser", kind.encode(), *ids, *(each.encode() for each in end)))


def poison_line(rng: random.Random) -> tuple[dict[str, str], bytes]:
    """Headers and payload of a line of a commit log that this release cannot read."""
    headers = {
        "X-CONTENT-TYPE": rng.choice(("application/json", "application/cbor", "x")),
        "X-MESSAGE-TYPE": rng.choice(("Commit", "Activity", "")),
        "X-MESSAGE-VERSION": rng.choice(("1", "2", "999999999", "-1", "x")),
    }
    if rng.random() < 0.5:
        headers["X-DVU-DUE"] = "1"
    kept = {name: value for name, value in headers.items() if value and rng.random() < 0.9}
    return kept, poison_text(rng)


def meta_subject(name: str, bucket: str = "REBASER_BATCHES") -> str:
    """Where the description of an object lies."""
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


async def publish_raw(port: int, messages: Sequence[tuple[bytes, bytes]]) -> None:
    """Publish subjects and payloads as they are, with octets that no client library sends."""
    async with RawClient(port) as client:
        for subject, payload in messages:
            client.publish(subject, payload)
        await client.arrived()
