"""What is in a stream: messages as they were stored, and the receipt for storing one."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class PubAck:
    """The message is stored, at `sequence`; a duplicate was there before, and is there once."""

    stream: str
    sequence: int
    duplicate: bool = False
    domain: str = ""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "PubAck":
        return cls(
            reply["stream"],
            reply["seq"],
            duplicate=reply.get("duplicate", False),
            domain=reply.get("domain", ""),
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    subject: str
    sequence: int
    time: datetime
    headers: Mapping[str, str]
    payload: bytes

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "StoredMessage":
        return cls(
            message["subject"],
            message["seq"],
            datetime.fromisoformat(message["time"]),
            parsed_headers(base64.b64decode(message.get("hdrs", ""))),
            base64.b64decode(message.get("data", "")),
        )


def parsed_headers(block: bytes) -> dict[str, str]:
    """Read a header block: a version line, then `Name: value` lines. Of equal names, the last."""
    lines = block.split(b"\r\n")[1:]
    pairs = (line.partition(b":") for line in lines if b":" in line)
    return {
        name.strip().decode(): value.strip().decode(errors="replace") for name, _, value in pairs
    }
