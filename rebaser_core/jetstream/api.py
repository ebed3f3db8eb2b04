"""The JetStream API: publish with a receipt; manage streams, messages and consumers.

`JetStream` is the API and the handles of its streams, as one object.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream.connection import Connection, PendingReply
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    ApiError,
    BatchNotAtomic,
    ConsumerNotFound,
    MessageNotFound,
    Misconfigured,
    NatsUnreachable,
    NoResponders,
    NotListed,
    StreamNotFound,
    Unsendable,
)
from rebaser_core.jetstream.fast_client import MessageLimits
from rebaser_core.jetstream.messages import (
    MESSAGE_ID,
    BatchMessage,
    PubAck,
    StoredMessage,
    batch_headers,
    decode_reply,
)

if TYPE_CHECKING:
    from rebaser_core.jetstream.configs import (
        ConsumerConfig,
        ConsumerInfo,
        Drift,
        StreamConfig,
        StreamInfo,
    )
    from rebaser_core.jetstream.handles import Stream

_DEFAULT_PREFIX: Final = "$JS.API"
_LAST_SEQUENCE: Final = 2**63 - 1
_DOMAIN_PREFIX: Final = re.compile(r"\$JS\.([^.]+)\.API")
_EXPECTED_STREAM: Final = "Nats-Expected-Stream"
_EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
_EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"


class JetStreamRequests:
    """One JetStream: the account's own, or another's under a prefix, or a domain's (ADR-19).

    Args:
        nc: an open connection, of `connected` or another; it is not closed here.
        api_prefix: what stands for `$JS.API`.
        domain: short for the prefix `$JS.<domain>.API`.
        single_reply: whether each request gets one answer at most, as from an account that exports
            its API as a plain service (ADR-19 does). Then each pull asks for one message: the
            others would be lost. Default: True with an `api_prefix`; False is right if the export
            says `response: stream`.
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
        self.prefix = f"$JS.{domain}.API" if domain else (api_prefix or _DEFAULT_PREFIX).rstrip(".")
        found = _DOMAIN_PREFIX.fullmatch(self.prefix)
        self.domain = found[1] if found else ""
        """The domain that the prefix names, if it names one."""
        self.single_reply = self.is_imported if single_reply is None else single_reply

    @property
    def nc(self) -> Client:
        return self.connection.nc

    @property
    def message_limits(self) -> MessageLimits:
        """Limits of one message."""
        return self.connection.message_limits

    @property
    def is_remote(self) -> bool:
        """Whether this JetStream may be another account's or domain's."""
        return self.prefix != _DEFAULT_PREFIX

    @property
    def is_imported(self) -> bool:
        """Whether this is another account's JetStream, which may export parts of its API alone."""
        return self.is_remote and not self.domain

    def prefixed_subject(self, subject: str) -> str:
        """Return the subject by which a message for a view's `subject` gets to this JetStream.

        A view's subjects are `$KV.…` and `$O.…`. With the prefix, the message cannot fall into a
        local bucket with that name. In the server's own domain, the local bucket is the right one.
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

        A message with a `message_id` may be published again within the stream's duplicate window
        and is stored once. Without one, only the receipt proves that it is stored.

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
            _EXPECTED_STREAM: expected_stream,
            _EXPECTED_LAST_SEQUENCE: expected_last_sequence,
            _EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence,
            _EXPECTED_LAST_MESSAGE_ID: expected_last_message_id,
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
        """Publish as `publish` does, but return before the receipt, which is awaited later.

        Messages reach a stream in the order in which one connection publishes them.
        """
        given = {
            MESSAGE_ID: message_id,
            _EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence,
            _EXPECTED_LAST_MESSAGE_ID: expected_last_message_id,
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
        expected = {_EXPECTED_LAST_SUBJECT_SEQUENCE: expected_last_subject_sequence}
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
        """Ask as `request` does, but return before the answer, which is awaited later."""
        subject = f"{self.prefix}.{verb}"
        future = await self.connection.send_request(subject, _encode(body))
        return PendingReply(subject, future, _parse_reply)


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # a subject that is no UTF-8, for instance
        raise Unsendable(f"cannot be encoded as JSON: {error}") from error


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


LISTING_TIMEOUT: Final = 60.0
"""Minimum timeout, in seconds, for a page of a stream's subjects: a million take NATS several."""
_GONE: Final = "no message found"  # the server's word for a message that is not stored


class JetStreamApi(JetStreamRequests):
    """Every request to a JetStream; reading continuously is for `consumers`.

    Each coroutine may be cancelled; whether the server did it is then unknown.
    """

    async def get_message(
        self,
        stream: str,
        *,
        sequence: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
    ) -> StoredMessage | None:
        """Return one message as the stream's leader has it, or None.

        Choose it by its `sequence`; as the last one of `last_by_subject`; or as the first one on
        `next_by_subject` (wildcards allowed) whose sequence is `sequence` or higher. A direct get
        is not used: a replica may not have what was stored a moment ago.
        """
        if sequence is not None and not next_by_subject and not 0 < sequence <= _LAST_SEQUENCE:
            return None  # NATS would call the request malformed
        asked = {"seq": sequence, "last_by_subj": last_by_subject, "next_by_subj": next_by_subject}
        body = {name: value for name, value in asked.items() if value is not None}
        try:
            reply = await self.request(f"STREAM.MSG.GET.{stream}", body)
        except MessageNotFound:
            return None
        return StoredMessage.of(reply["message"])

    async def get_last_direct(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the last message on the subject (wildcards allowed), or None if there is none.

        The request's own subject contains `subject`, so that a user may be permitted some subjects.
        Any replica answers: what was stored a moment ago may be missing.

        Raises:
            NoResponders: there is no such stream, or it allows no direct gets.
        """
        verb = f"{self.prefix}.DIRECT.GET.{stream}.{subject}"
        return StoredMessage.of_direct(await self.connection.request(verb, timeout=self.timeout))

    async def delete_message(self, stream: str, sequence: int, *, erase: bool = False) -> None:
        """Delete the message; success if it is gone already.

        `erase` overwrites it on disk, too, which is a hundred times slower.

        Raises:
            NatsUnreachable: it may be gone or not.
        """
        body = {"seq": sequence, "no_erase": not erase}
        try:
            await self.request(f"STREAM.MSG.DELETE.{stream}", body)
        except ApiError as error:
            # "gone already" comes in three shapes, one of them of other errors, too
            is_gone = error.description == _GONE
            if not is_gone and await self.get_message(stream, sequence=sequence) is not None:
                raise

    async def purge(
        self,
        stream: str,
        *,
        subject: str | None = None,
        below_sequence: int | None = None,
        keep: int | None = None,
    ) -> int:
        """Delete all messages, or those chosen, and return how many were deleted.

        `below_sequence` spares that message and later ones; `keep` is the number
        of last messages to spare. Give at most one of the two.
        """
        asked = {"filter": subject, "seq": below_sequence, "keep": keep}
        body = {name: value for name, value in asked.items() if value is not None}
        reply = await self.request(f"STREAM.PURGE.{stream}", body)
        return int(reply["purged"])

    async def create_stream(self, config: "StreamConfig") -> "StreamInfo":
        """Create the stream and return its configuration. Creating it again changes nothing.

        Raises:
            AlreadyExists: it exists with another configuration.
            Misconfigured: it has no name.
        """
        name = _require_name(config.name)
        return _read_stream_info(await self.request(f"STREAM.CREATE.{name}", config.to_json()))

    async def update_stream(self, config: "StreamConfig") -> "StreamInfo":
        """Replace the whole configuration: what is None goes back to its default.

        To change a part: `await js.stream_config(name) | StreamConfig(max_bytes=…)`.
        """
        name = _require_name(config.name)
        return _read_stream_info(await self.request(f"STREAM.UPDATE.{name}", config.to_json()))

    async def stream_config(self, name: str) -> "StreamConfig":
        """Return how the server has the stream.

        Raises:
            StreamNotFound: there is none of that name.
        """
        return (await self.stream_info(name)).config

    async def delete_stream(self, name: str) -> None:
        """Delete the stream; success if there is none."""
        try:
            await self.request(f"STREAM.DELETE.{name}")
        except StreamNotFound:
            return

    async def stream_info(self, name: str, subjects_filter: str | None = None) -> "StreamInfo":
        """Return configuration and state; with a filter, `state.subjects` has all subjects.

        The server tells 100,000 subjects at a time. Pages are asked for until all are there;
        subjects that appear or vanish meanwhile may be among them or not. For each page the server
        goes through all subjects that match, which takes seconds if there are hundreds of
        thousands.

        Raises:
            StreamNotFound: there is none of that name.
            NotListed: NATS is not done with a page in time. One subject is asked for like anything
                else: `NatsUnreachable`.
        """
        if subjects_filter is None:
            return _read_stream_info(await self.request(f"STREAM.INFO.{name}"))
        subjects: dict[str, int] = {}
        offset = 0
        while True:
            body = {"subjects_filter": subjects_filter, "offset": offset}
            reply = await self._subjects_page(name, body)
            page = reply["state"].get("subjects") or {}
            subjects |= page
            offset += len(page)
            if not page or offset >= reply.get("total", 0):
                reply["state"]["subjects"] = subjects
                return _read_stream_info(reply)

    async def _subjects_page(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if not {"*", ">"} & {*body["subjects_filter"].split(".")}:  # one subject is found at once
            return await self.request(f"STREAM.INFO.{name}", body)
        timeout = max(self.timeout, LISTING_TIMEOUT)
        try:
            return await self.request(f"STREAM.INFO.{name}", body, timeout=timeout)
        except NoResponders:
            raise
        except NatsUnreachable as error:
            if not self.connection.is_connected:
                raise
            raise NotListed(
                f"NATS has not listed the subjects of {name} within {timeout:g} s, though it is "
                "connected: there are too many of them, or it is busy; try again later"
            ) from error

    async def stream_subjects(self, name: str, subjects_filter: str = ">") -> dict[str, int]:
        """Return how many messages each subject has, of those with any."""
        info = await self.stream_info(name, subjects_filter)
        return dict(info.state.subjects)

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """Return the names of all streams, or of those that have the subject."""
        names: list[str] = []
        while True:
            body = {"offset": len(names)} | ({"subject": subject} if subject else {})
            reply = await self.request("STREAM.NAMES", body)
            page = reply.get("streams") or []
            names += page
            if not page or len(names) >= reply.get("total", 0):
                return names

    async def ensure_stream(self, config: "StreamConfig") -> "list[Drift]":
        """Create the stream if there is none; return how an existing one differs from `config`."""
        name = _require_name(config.name)
        try:
            actual = await self.stream_config(name)
        except StreamNotFound:
            with suppress(AlreadyExists):  # another client was faster
                await self.create_stream(config)
            actual = await self.stream_config(name)
        from rebaser_core.jetstream.configs import diff_config  # slow to import

        return diff_config(f"stream {name}", config, actual)

    async def create_consumer(self, stream: str, config: "ConsumerConfig") -> "ConsumerInfo":
        """Create the consumer and return its state. Creating it again with `config` does nothing.

        Raises:
            AlreadyExists: it exists with another configuration, which stays as it is.
        """
        return await self._put_consumer(stream, config, "create")

    async def update_consumer(self, stream: str, config: "ConsumerConfig") -> "ConsumerInfo":
        """Replace the whole configuration of an existing consumer, as `update_stream` does.

        Raises:
            ApiError: the server allows this change only by deleting the consumer.
        """
        return await self._put_consumer(stream, config, "update")

    async def _put_consumer(
        self, stream: str, config: "ConsumerConfig", action: str
    ) -> "ConsumerInfo":
        name = config.name or config.durable_name
        verb = f"CONSUMER.CREATE.{stream}" + (f".{name}" if name else "")
        if name and config.filter_subject:
            verb += f".{config.filter_subject}"  # permissions may be given by it
        body = {"stream_name": stream, "config": config.to_json(), "action": action}
        return _read_consumer_info(await self.request(verb, body))

    async def resume_consumer(self, stream: str, consumer: str) -> None:
        """Resume the consumer; success if it is not paused."""
        await self.request(f"CONSUMER.PAUSE.{stream}.{consumer}")

    async def consumer_info(self, stream: str, consumer: str) -> "ConsumerInfo":
        """Return configuration and state. Raises `ConsumerNotFound`: there is none of that name."""
        reply = await self.request(f"CONSUMER.INFO.{stream}.{consumer}")
        return _read_consumer_info(reply)

    async def consumer_config(self, stream: str, consumer: str) -> "ConsumerConfig":
        """Return how the server has the consumer.

        Raises:
            ConsumerNotFound: there is none of that name.
        """
        return (await self.consumer_info(stream, consumer)).config

    async def delete_consumer(
        self, stream: str, consumer: str, *, timeout: float | None = None
    ) -> None:
        """Delete the consumer; success if there is none."""
        try:
            await self.request(f"CONSUMER.DELETE.{stream}.{consumer}", timeout=timeout)
        except (ConsumerNotFound, StreamNotFound):
            return

    async def unpin_consumer(self, stream: str, consumer: str, group: str) -> None:
        """Unpin the client of the priority group, so that another is pinned; success if none is."""
        await self.request(f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": group})

    async def ensure_consumer(self, stream: str, config: "ConsumerConfig") -> "list[Drift]":
        """Create the consumer if there is none; return how an existing one differs from `config`.

        A paused consumer differs.
        """
        name = _require_name(config.durable_name or config.name)
        try:
            info = await self.consumer_info(stream, name)
        except ConsumerNotFound:
            with suppress(AlreadyExists):  # another client was faster
                await self.create_consumer(stream, config)
            info = await self.consumer_info(stream, name)
        return info.diff(config)


def _require_name(name: str | None) -> str:
    if not name:
        raise Misconfigured("a stream or consumer that is to be found again needs a name")
    return name


def _read_stream_info(said: Mapping[str, Any]) -> "StreamInfo":
    # slow, and not needed to publish
    from rebaser_core.jetstream.configs import StreamInfo

    return StreamInfo.from_json(said)


def _read_consumer_info(said: Mapping[str, Any]) -> "ConsumerInfo":
    from rebaser_core.jetstream.configs import ConsumerInfo  # slow to import

    return ConsumerInfo.from_json(said)


class JetStream(JetStreamApi):
    """A JetStream: requests to its API, and `stream` for its streams and consumers."""

    def stream(self, name: str) -> "Stream":
        """Return a handle; makes no request."""
        from rebaser_core.jetstream.handles import Stream  # slow, and not needed to publish

        return Stream(self, name)
