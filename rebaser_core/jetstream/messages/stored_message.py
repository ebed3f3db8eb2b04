"""What is in a stream: messages as they were stored, and the receipt for storing one."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from rebaser_core.jetstream.connection.headers import parse_headers
from rebaser_core.jetstream.errors import NotJetStream, StatusError


class PubAck(NamedTuple):
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
            reply.get("duplicate", False),
            reply.get("domain", ""),
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
        """Read what the server says of a message.

        Raises:
            NotJetStream: something is missing, or of another kind.
        """
        try:
            return cls(
                message["subject"],
                message["seq"],
                datetime.fromisoformat(message["time"]),
                parse_headers(base64.b64decode(message.get("hdrs", ""))) or {},
                base64.b64decode(message.get("data", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotJetStream(f"no stored message: {error!r}") from error

    @classmethod
    def of_direct(cls, reply: Msg) -> "StoredMessage | None":
        """Read the reply to a direct get (ADR-31); None if there is no message.

        Raises:
            StatusError: the server refused.
            NotJetStream: something is missing, or of another kind.
        """
        headers = reply.headers or {}
        try:
            if (sequence := headers.get("Nats-Sequence")) is None:
                code = int(headers["Status"])
                if code == HTTPStatus.NOT_FOUND:
                    return None
                raise StatusError(code, headers.get("Description", ""))
            time = datetime.fromisoformat(headers["Nats-Time-Stamp"])
            return cls(headers["Nats-Subject"], int(sequence), time, headers, reply.data)
        except (KeyError, ValueError) as error:
            raise NotJetStream(f"no stored message: {error!r}") from error
