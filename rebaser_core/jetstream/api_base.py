"""Asking the JetStream API, and publishing with a receipt."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream.connection.connection import Connection
from rebaser_core.jetstream.connection.message_limits import MessageLimits
from rebaser_core.jetstream.connection.pending_reply import PendingReply
from rebaser_core.jetstream.errors import BatchNotAtomic, Unsendable
from rebaser_core.jetstream.messages.api_reply import decode_reply
from rebaser_core.jetstream.messages.batch_message import MESSAGE_ID, BatchMessage, batch_headers
from rebaser_core.jetstream.messages.stored_message import PubAck

DEFAULT_PREFIX: Final = "$JS.API"
_DOMAIN_PREFIX: Final = re.compile(r"\$JS\.([^.]+)\.API")
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"


class JetStreamRequests:
    """One JetStream: the account's own, or another's under a prefix, or a domain's (ADR-19).

    Args:
        nc: an open connection, of `connected` or another; it is not closed here.
        api_prefix: what stands for `$JS.API`.
        domain: short for the prefix `$JS.<domain>.API`.
        single_reply: whether each request gets one answer at most, as from an
            account that exports its API as a plain service (ADR-19 does). Then
            pulls ask for one message each: of a larger one the others would be
            lost. By default so with an `api_prefix`; with
            `response: stream` in the export it can be False.
        timeout: seconds to wait for an answer, unless a call has its own.
    """

    def __init__(
        self,
        nc: Client,
        *,
        api_prefix: str | None = None,
        domain: str | None = None,
        single_reply: bool | None = None,
        timeout: float = 5.0,
    ) -> None:
        if api_prefix and domain:
            raise ValueError("either a prefix or a domain")
        self.connection = Connection.of(nc)
        self.timeout = timeout
        self.prefix = f"$JS.{domain}.API" if domain else (api_prefix or DEFAULT_PREFIX).rstrip(".")
        found = _DOMAIN_PREFIX.fullmatch(self.prefix)
        self.domain = found[1] if found else ""
        """The domain that the prefix names, if it names one."""
        self.single_reply = self.is_imported if single_reply is None else single_reply

    @property
    def nc(self) -> Client:
        return self.connection.nc

    @property
    def message_limits(self) -> MessageLimits:
        """What fits into one message."""
        return self.connection.message_limits

    @property
    def is_remote(self) -> bool:
        """Whether it may be another account's or domain's."""
        return self.prefix != DEFAULT_PREFIX

    @property
    def is_imported(self) -> bool:
        """Whether it is another account's, which may export parts of its API alone."""
        return self.is_remote and not self.domain

    def prefixed_subject(self, subject: str) -> str:
        """Where to publish to a view's `subject` (`$KV.…`, `$O.…`) so that it gets to this one.

        Under a prefix it cannot fall into a local bucket of the same name; of the domain of
        the server itself that bucket is the one.
        """
        is_local = not self.is_remote or (self.domain and self.domain == self.connection.domain)
        return subject if is_local else f"{self.prefix}.{subject}"

    async def request(
        self, verb: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return the answer to `<prefix>.<verb>`.

        May be cancelled; whether the server did it is then unknown.

        Raises:
            ApiError: the server refused; see its subclasses. Nothing was done.
            NatsUnreachable: no answer; it may have been done.
            Unsendable: a subject or a text that cannot be sent; nothing was done.
        """
        payload = b"" if body is None else _encode(body)
        message = await self.connection.request(
            f"{self.prefix}.{verb}", payload, timeout=timeout or self.timeout
        )
        return decode_reply(message.data)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_message_id: str | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store a message.

        With a `message_id`, saying it again within the stream's duplicate window
        stores it once. Without one, only a receipt proves anything.

        Raises:
            WrongLastSequence: it was expected to be another one; not stored.
            SubjectFull: not stored.
            Unavailable: not stored as far as this try goes; try again.
            Oversized: it does not fit into a message; not stored.
            Unsendable: a subject or header that no message may have; not stored.
            NatsUnreachable: no receipt; it may be stored. Also if no stream has the subject.
        """
        given = {
            MESSAGE_ID: message_id,
            EXPECTED_STREAM: expected_stream,
            EXPECTED_LAST_SEQUENCE: expected_last_sequence,
            EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence,
            EXPECTED_LAST_MESSAGE_ID: expected_last_message_id,
        }
        message = await self.connection.request(
            subject,
            payload,
            headers=_merge_headers(headers, given),
            timeout=timeout or self.timeout,
        )
        return PubAck.of(decode_reply(message.data))

    async def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_message_id: str | None = None,
    ) -> PendingReply[PubAck]:
        """As `publish`, but return before the receipt, which is awaited later.

        What is published first on one connection reaches a stream first.
        """
        given = {
            MESSAGE_ID: message_id,
            EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence,
            EXPECTED_LAST_MESSAGE_ID: expected_last_message_id,
        }
        future = await self.connection.send_request(
            subject, payload, headers=_merge_headers(headers, given)
        )
        return PendingReply(subject, future, _parse_ack)

    async def publish_batch(
        self,
        messages: Sequence[BatchMessage],
        *,
        expected_last_subject_sequence: int | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store 1 to 1,000 messages, each right behind the one before it, or none (ADR-50).

        The stream must have `allow_atomic`, which takes a server of 2.12 or newer. The first
        one's subject is compared. The receipt is the last one's. Cancelled, it stores all or none.
        Of a message id that the stream has already, the server refuses the whole batch.

        Raises:
            ValueError: there is no message.
            WrongLastSequence: it was expected to be another one; none is stored.
            Unsendable: one is `Oversized`, or has what no message may have; none is stored.
            ApiError: none is stored: no batches there, or too many at a time, or one was lost.
            NatsUnreachable: no receipt; all may be stored, or none.
            BatchNotAtomic: the server knows no batches, and stored some by themselves, or all.
        """
        if not messages:
            raise ValueError("a batch has at least one message")
        expected = {EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence}
        prepared = [
            (message.subject, message.payload, _merge_headers(message.headers, given))
            for message, given in zip(messages, batch_headers(messages, expected), strict=True)
        ]
        for subject, payload, headers in prepared:
            self.connection.message_limits.check(subject, payload, headers)
        *others, (subject, payload, headers) = prepared
        for each in others:
            await self.connection.publish(each[0], each[1], headers=each[2])
        reply = await self.connection.request(
            subject, payload, headers=headers, timeout=timeout or self.timeout
        )
        answer = decode_reply(reply.data)
        if answer.get("count") != len(messages):
            raise BatchNotAtomic(f"{subject}: the server stored no batch, but each message")
        return PubAck.of(answer)

    async def request_async(
        self, verb: str, body: Mapping[str, Any]
    ) -> PendingReply[dict[str, Any]]:
        """As `request`, but return before the answer, which is awaited later."""
        subject = f"{self.prefix}.{verb}"
        future = await self.connection.send_request(subject, _encode(body))
        return PendingReply(subject, future, _parse_reply)


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # a subject that is no UTF-8, for instance
        raise Unsendable(f"not to be said in JSON: {error}") from error


def _merge_headers(
    headers: Mapping[str, str] | None, given: Mapping[str, object]
) -> dict[str, str]:
    merged = dict(headers) if headers else {}
    for name, value in given.items():
        if value is not None:
            merged[name] = str(value)
    return merged


def _parse_ack(message: Msg) -> PubAck:
    return PubAck.of(decode_reply(message.data))


def _parse_reply(message: Msg) -> dict[str, Any]:
    return decode_reply(message.data)
