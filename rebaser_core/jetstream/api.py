"""Streams, their messages and their consumers, through the JetStream API."""

from collections.abc import Mapping
from typing import Any

from rebaser_core.jetstream.api_base import JetStreamRequests
from rebaser_core.jetstream.config_diff import Drift, diff_config
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    ApiError,
    ConsumerNotFound,
    MessageNotFound,
    StreamNotFound,
)
from rebaser_core.jetstream.messages.stored_message import StoredMessage

Config = Mapping[str, Any]
"""A configuration as the server has it in JSON; durations in nanoseconds."""


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
        """Return the one message meant, or None if there is none, as the stream's leader has it.

        By its `sequence`; the last one of `last_by_subject`; or the first one on
        `next_by_subject` (wildcards allowed) whose sequence is `sequence` or higher.
        Never a direct get: a replica may not have what was stored a moment ago.
        """
        asked = {"seq": sequence, "last_by_subj": last_by_subject, "next_by_subj": next_by_subject}
        body = {name: value for name, value in asked.items() if value is not None}
        try:
            reply = await self.request(f"STREAM.MSG.GET.{stream}", body)
        except MessageNotFound:
            return None
        return StoredMessage.of(reply["message"])

    async def delete_message(self, stream: str, sequence: int, *, erase: bool = False) -> None:
        """Have the message gone; that it is gone already is success.

        `erase` overwrites it on disk, too, which is a hundred times slower.

        Raises:
            NatsUnreachable: it may be gone or not.
        """
        body = {"seq": sequence, "no_erase": not erase}
        try:
            await self.request(f"STREAM.MSG.DELETE.{stream}", body)
        except ApiError:
            # "gone already" comes in three shapes, one of them of other errors, too
            if await self.get_message(stream, sequence=sequence) is not None:
                raise

    async def purge(
        self,
        stream: str,
        *,
        subject: str | None = None,
        below_sequence: int | None = None,
        keep: int | None = None,
    ) -> int:
        """Delete all messages, or those meant, and return how many that were.

        `below_sequence` spares that one and later ones; `keep` as many of the last.
        Only one of these two.
        """
        asked = {"filter": subject, "seq": below_sequence, "keep": keep}
        body = {name: value for name, value in asked.items() if value is not None}
        reply = await self.request(f"STREAM.PURGE.{stream}", body)
        return int(reply["purged"])

    async def create_stream(self, config: Config) -> dict[str, Any]:
        """Return the stream's info. Creating the same again changes nothing.

        Raises:
            AlreadyExists: with another configuration.
        """
        return await self.request(f"STREAM.CREATE.{config['name']}", config)

    async def update_stream(self, config: Config) -> dict[str, Any]:
        """Replace the whole configuration: fields left out go back to their defaults."""
        return await self.request(f"STREAM.UPDATE.{config['name']}", config)

    async def delete_stream(self, name: str) -> None:
        """Have no such stream; that there is none already is success."""
        try:
            await self.request(f"STREAM.DELETE.{name}")
        except StreamNotFound:
            return

    async def stream_info(self, name: str, subjects_filter: str | None = None) -> dict[str, Any]:
        """Return configuration and state; with a filter, `state.subjects` has all subjects.

        The server tells 100,000 subjects at a time. Pages are asked for until all
        are there; what is stored or deleted meanwhile may be among them or not.

        Raises:
            StreamNotFound: there is none of that name.
        """
        if subjects_filter is None:
            return await self.request(f"STREAM.INFO.{name}")
        subjects: dict[str, int] = {}
        offset = 0
        while True:
            body = {"subjects_filter": subjects_filter, "offset": offset}
            info = await self.request(f"STREAM.INFO.{name}", body)
            page = info["state"].get("subjects") or {}
            subjects |= page
            offset += len(page)
            if not page or offset >= info.get("total", 0):
                info["state"]["subjects"] = subjects
                return info

    async def stream_subjects(self, name: str, subjects_filter: str = ">") -> dict[str, int]:
        """Return how many messages each subject has, of those with any."""
        info = await self.stream_info(name, subjects_filter)
        return dict(info["state"]["subjects"])

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

    async def ensure_stream(self, config: Config) -> list[Drift]:
        """Have a stream of that name; return how it differs from `config`, never change it."""
        try:
            info = await self.stream_info(config["name"])
        except StreamNotFound:
            try:
                info = await self.create_stream(config)
            except AlreadyExists:  # another client was faster
                info = await self.stream_info(config["name"])
        return diff_config(f"stream {config['name']}", config, info["config"])

    async def create_consumer(self, stream: str, config: Config) -> dict[str, Any]:
        """Return the consumer's info. Creating the same again changes nothing.

        Raises:
            AlreadyExists: with another configuration, which stays as it is.
        """
        name = config.get("name") or config.get("durable_name")
        verb = f"CONSUMER.CREATE.{stream}" + (f".{name}" if name else "")
        if name and config.get("filter_subject"):
            verb += f".{config['filter_subject']}"  # permissions may be given by it
        body = {"stream_name": stream, "config": config, "action": "create"}
        return await self.request(verb, body)

    async def consumer_info(self, stream: str, consumer: str) -> dict[str, Any]:
        return await self.request(f"CONSUMER.INFO.{stream}.{consumer}")

    async def delete_consumer(
        self, stream: str, consumer: str, *, timeout: float | None = None
    ) -> None:
        """Have no such consumer; that there is none already is success."""
        try:
            await self.request(f"CONSUMER.DELETE.{stream}.{consumer}", timeout=timeout)
        except (ConsumerNotFound, StreamNotFound):
            return

    async def ensure_consumer(self, stream: str, config: Config) -> list[Drift]:
        """Have a consumer of that name; return how it differs from `config`, never change it."""
        name = config.get("durable_name") or config["name"]
        try:
            info = await self.consumer_info(stream, name)
        except ConsumerNotFound:
            try:
                info = await self.create_consumer(stream, config)
            except AlreadyExists:  # another client was faster
                info = await self.consumer_info(stream, name)
        return diff_config(f"consumer {stream}/{name}", config, info["config"])
