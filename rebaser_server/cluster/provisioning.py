"""Provision NATS (S-1 to S-3): create missing streams and consumers, compare those that exist."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import structlog

from rebaser_core.commits import Commit
from rebaser_core.jetstream import (
    ApiError,
    ConsumerConfig,
    ConsumerGone,
    Drift,
    JetStreamError,
    NatsUnreachable,
    NotFound,
    StreamConfig,
    StreamNotFound,
    Unavailable,
    ordered_reader,
)
from rebaser_core.stream_configs import (
    StreamOptions,
    bucket_configs,
    diff_stream,
    excess_of_consumer,
    stream_configs,
    tasks_consumer_config,
)
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.configuration_faults import MISSING, PURGED, judge, remedy_of_missing
from rebaser_server.errors import DeploymentInconsistent

log: Final = structlog.get_logger()

_READY_TIMEOUT: Final = 60.0
"""Seconds to wait until JetStream is ready: a cluster may still be electing its leaders."""
_NO_PLACEMENT: Final = 10005  # "no suitable peers for placement": not enough servers are up, as yet
_RETRY_DELAY: Final = 1.0  # seconds until a failed JetStream request is tried again


@dataclass(frozen=True, slots=True)
class Provisioner:
    """The streams, the consumer and the bucket of one deployment, which all its Rebasers share."""

    streams: Streams
    options: StreamOptions
    ack_wait: timedelta

    async def ensure_when_up(self) -> list[Drift]:
        """Call `ensure` until JetStream is ready, which it is not while it has no leader.

        Raises:
            NatsUnreachable: JetStream was not ready in time.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + _READY_TIMEOUT
        while True:
            try:
                return await self.ensure()
            except JetStreamError as error:
                if not _is_transient(error):
                    raise
                if clock() >= end:
                    raise NatsUnreachable(f"JetStream is not ready: {error}") from error
                log.warning("waiting for JetStream", error=str(error), left=round(end - clock()))
            await asyncio.sleep(_RETRY_DELAY)

    async def ensure(self) -> list[Drift]:
        """Create what is missing; return how the rest differs. May be cancelled and repeated.

        Raises:
            DeploymentInconsistent: the logs are lost and the requests are not, or the other way
                round.
        """
        await self._require_all_or_none()
        for config in reversed(self._streams()):  # nothing is stored before requests can be
            await self.streams.js.ensure_stream(config)
        await self.streams.js.ensure_consumer(self.streams.tasks_stream, self._consumer())
        await self._ensure_buckets()
        return await self.diff()

    async def _require_all_or_none(self) -> None:
        """Require that requests and logs are not lost: an empty stream would pass for a sound one.

        Nothing is stored before both streams are there. So a stream that is missing when the other
        has messages is lost; before that, another Rebaser may be making both.
        """
        names = (self.streams.requests_stream, self.streams.commits_stream)
        for lost, other in (names, names[::-1]):
            if (
                await self._last_sequence(lost) is None
                and await self._last_sequence(other)
                # A second Rebaser may make both streams, and use them, between these two looks.
                and await self._last_sequence(lost) is None
            ):
                raise DeploymentInconsistent(
                    f"{lost} is gone, and {other} is not: {remedy_of_missing(lost)}"
                )

    async def _last_sequence(self, stream: str) -> int | None:
        """Return the last sequence that the stream gave; None if it is missing."""
        try:
            return (await self.streams.js.stream_info(stream)).state.last_seq
        except StreamNotFound:
            return None

    async def recreate_requests(self) -> None:
        """Create an empty stream of requests that begins above all settled ones (S-5)."""
        settled = 0
        last_commits = ordered_reader(
            self.streams.js, self.streams.commits_stream, deliver_policy="last_per_subject"
        )
        async with last_commits:
            while (commit := await last_commits.next(idle_timeout=0)) is not None:
                control = Commit.decode(commit.headers, commit.payload).control
                settled = max(settled, control.last_sequence)
        config = self._stream(self.streams.requests_stream)
        await self.streams.js.create_stream(replace(config, first_seq=settled + 1))

    async def create_alarms(self) -> None:
        """Create an empty stream of alarms."""
        await self.streams.js.ensure_stream(self._stream(self.streams.alarms_stream))

    async def check(self) -> list[Drift]:
        """Return how all differ from their configuration; recreate a missing tasks' stream (X3)."""
        await self._ensure_tasks()
        await self._ensure_buckets()
        return await self.diff()

    async def diff(self) -> list[Drift]:
        """Return how all differ from their configuration, or that they are missing. Read-only."""
        differences = await self.diff_streams()
        consumer = f"consumer {self.streams.tasks_stream}/{TASKS_CONSUMER}"
        try:
            info = await self.streams.js.consumer_info(self.streams.tasks_stream, TASKS_CONSUMER)
        except NotFound:
            return [*differences, MISSING._replace(name=consumer)]
        expected = self._consumer()
        return [
            *differences,
            *info.diff(expected),
            *excess_of_consumer(consumer, expected, info.config),
        ]

    async def diff_streams(self) -> list[Drift]:
        """Return how streams and buckets differ, or that they are missing. Read-only."""
        configs = [*self._streams(), *self._buckets()]
        differences = await asyncio.gather(*map(self._diff_stream, configs))
        return [each for of_one in differences for each in of_one]

    async def _diff_stream(self, config: StreamConfig) -> list[Drift]:
        name = f"stream {config.name}"
        try:
            info = await self.streams.js.stream_info(config.name or "")
        except StreamNotFound:
            return [MISSING._replace(name=name)]
        is_purged = config.name == self.streams.commits_stream and (
            info.state.last_seq and not info.state.messages
        )
        differences = [PURGED._replace(name=name)] if is_purged else []
        max_payload = self.streams.js.message_limits.max_payload
        return differences + diff_stream(name, config, info.config, max_payload)

    async def mend(self, name: str) -> None:
        """Set the stream or consumer of that `Drift.name` back, where that may be done.

        Stored messages stay. A consumer that NATS does not change is made anew: its tasks are
        delivered once more, and the log fences their former holders (S-3).
        """
        if name.startswith("consumer "):
            await self._mend_consumer()
            return
        config = next(
            each for each in (*self._streams(), *self._buckets()) if name == f"stream {each.name}"
        )
        faults = judge(await self._diff_stream(config))
        fields = {fault.drift.field.partition(".")[0] for fault in faults if fault.can_be_mended}
        if not fields:
            return
        wanted, actual = config.to_json(), await self.streams.js.stream_config(config.name or "")
        kept = {field: each for field, each in actual.to_json().items() if field not in fields}
        back = {field: wanted[field] for field in fields if field in wanted}
        await self.streams.js.update_stream(StreamConfig.from_json({**kept, **back}))

    async def _mend_consumer(self) -> None:
        stream, config = self.streams.tasks_stream, self._consumer()
        await self.streams.js.resume_consumer(stream, TASKS_CONSUMER)
        try:
            await self.streams.js.update_consumer(stream, config)
        except ApiError:
            await self.streams.js.delete_consumer(stream, TASKS_CONSUMER)
            await self.streams.js.ensure_consumer(stream, config)

    async def _ensure_tasks(self) -> list[Drift]:
        """Create the tasks' stream and its consumer if they are missing; return how they differ.

        Their content can be made again: the reconciler makes tasks, the consumer delivers
        them, and the log fences a holder whose task is delivered again. No other stream can be
        replaced by an empty one, least of all one whose sequences would begin again below the
        last settled request (S-5).
        """
        tasks = self.streams.tasks_stream
        try:
            await self.streams.js.consumer_info(tasks, TASKS_CONSUMER)
        except NotFound as error:
            log.error(
                "tasks stream recreated", missing=str(error), remedy="find out who deletes them"
            )
        await self.streams.js.ensure_stream(self._stream(tasks))
        return await self.streams.js.ensure_consumer(tasks, self._consumer())

    async def recreate_tasks(self, reason: ConsumerGone) -> None:
        """Recreate the tasks' stream after it was missing; return after a delay if that fails."""
        log.warning("tasks consumer missing", reason=str(reason))
        try:
            report(await self._ensure_tasks())
        except JetStreamError as error:
            log.warning("tasks stream not recreated yet", error=str(error))
            await asyncio.sleep(_RETRY_DELAY)

    async def _ensure_buckets(self) -> None:
        for config in self._buckets():
            await self.streams.js.ensure_stream(config)

    def _buckets(self) -> list[StreamConfig]:
        return bucket_configs(self.streams, self.options)

    def _streams(self) -> list[StreamConfig]:
        return stream_configs(self.streams, self.options)

    def _stream(self, name: str) -> StreamConfig:
        return next(config for config in self._streams() if config.name == name)

    def _consumer(self) -> ConsumerConfig:
        return tasks_consumer_config(self.streams, self.ack_wait)


def _is_transient(error: JetStreamError) -> bool:
    """Whether the error may be gone a moment later."""
    if isinstance(error, NatsUnreachable | Unavailable):
        return True
    return isinstance(error, ApiError) and error.err_code == _NO_PLACEMENT


def report(differences: list[Drift]) -> None:
    """Log each difference, its meaning, and what an operator can do about it."""
    for fault in judge(differences):
        drift = fault.drift
        log.error(
            "configuration differs",
            what=drift.name,
            field=drift.field,
            expected=drift.expected,
            actual=drift.actual,
            meaning=fault.meaning,
            remedy=fault.remedy,
        )
