"""Provision NATS (S-1 to S-3): create missing streams and consumers, compare those that exist."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import structlog

from rebaser_client.registry import Registry
from rebaser_core.commits import Commit
from rebaser_core.jetstream import (
    ApiError,
    ConsumerConfig,
    ConsumerGone,
    Drift,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    NotFound,
    ObjectStore,
    StreamConfig,
    StreamNotFound,
    Unavailable,
    ordered_reader,
)
from rebaser_core.jetstream.configs.config_diff import diff_config
from rebaser_core.streams import StreamOptions, stream_configs, tasks_consumer_config
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.errors import DeploymentInconsistent

log: Final = structlog.get_logger()

READY_TIMEOUT: Final = 60.0
"""Seconds to wait until JetStream is ready: a cluster may still be electing its leaders."""
NO_PLACEMENT: Final = 10005  # "no suitable peers for placement": not enough servers are up, as yet
_RETRY_DELAY: Final = 1.0  # seconds until a failed JetStream request is tried again

MISSING: Final = Drift("", "existence", expected=True, actual=False)
"""Of a stream that is not there at all."""


@dataclass(frozen=True, slots=True)
class Provisioner:
    """The streams, the consumer and the bucket of one deployment, which all its Rebasers share."""

    js: JetStream
    subjects: Subjects
    options: StreamOptions
    ack_wait: timedelta

    async def ensure_when_up(self) -> list[Drift]:
        """Call `ensure` until JetStream is ready, which it is not while it has no leader.

        Raises:
            NatsUnreachable: JetStream was not ready in time.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + READY_TIMEOUT
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
            DeploymentInconsistent: the logs or the requests are lost, and the others are there.
        """
        await self._require_all_or_none()
        drifts = []
        for config in reversed(self._streams()):  # nothing is stored before requests can be
            drifts += await self.js.ensure_stream(config)
        drifts += await self.js.ensure_consumer(self.subjects.tasks_stream, self._consumer())
        return drifts + await self._ensure_buckets()

    async def _require_all_or_none(self) -> None:
        """Require that of requests and logs none is lost: an empty one would pass for sound.

        Nothing is stored before both are there. So one that is missing, also after the other was
        seen with messages, is lost; until then another Rebaser may be making both.
        """
        names = (self.subjects.requests_stream, self.subjects.commits_stream)
        for lost, other in (names, names[::-1]):
            if (
                await self._last_sequence(lost) is None
                and await self._last_sequence(other)
                and await self._last_sequence(lost) is None
            ):
                raise DeploymentInconsistent(
                    f"{lost} is gone, and {other} is not: {_remedy_of_missing(lost)}"
                )

    async def _last_sequence(self, stream: str) -> int | None:
        """The last sequence that the stream gave; None if it is missing."""
        try:
            return (await self.js.stream_info(stream)).state.last_seq
        except StreamNotFound:
            return None

    async def recreate_requests(self) -> None:
        """Create an empty stream of requests that begins above all that was handled (S-5)."""
        handled = 0
        last_commits = ordered_reader(
            self.js, self.subjects.commits_stream, deliver_policy="last_per_subject"
        )
        async with last_commits:
            while (commit := await last_commits.next(idle_timeout=0)) is not None:
                control = Commit.decode(commit.headers, commit.payload).control
                handled = max(handled, control.last_sequence)
        config = self._stream(self.subjects.requests_stream)
        await self.js.create_stream(replace(config, first_seq=handled + 1))

    async def check(self) -> list[Drift]:
        """Return how all differ from their configuration; recreate a missing tasks' stream (X3)."""
        differences = await self.ensure_tasks()
        for config in self._streams():
            differences += await self._diff_stream(config)
        return differences + await self._ensure_buckets()

    async def diff(self) -> list[Drift]:
        """Return how all differ from their configuration, or that they are missing. Read-only."""
        bucket = f"OBJ_{self.subjects.batches_bucket}"
        differences = await self._diff_stream(replace(self._bucket(), name=bucket))
        for config in self._streams():
            differences += await self._diff_stream(config)
        stream = self.subjects.tasks_stream
        try:
            info = await self.js.consumer_info(stream, TASKS_CONSUMER)
        except NotFound:
            return [*differences, MISSING._replace(name=f"consumer {stream}/{TASKS_CONSUMER}")]
        return differences + info.diff(self._consumer())

    async def _diff_stream(self, config: StreamConfig) -> list[Drift]:
        name = f"stream {config.name}"
        try:
            actual = await self.js.stream_config(config.name or "")
        except StreamNotFound:
            return [MISSING._replace(name=name)]
        return diff_config(name, config, actual)

    async def ensure_tasks(self) -> list[Drift]:
        """Create the tasks' stream and its consumer if they are missing; return how they differ.

        Their content can be made again: the reconciler makes tasks, the consumer delivers
        them, and the log fences a holder whose task is delivered again. No other stream can be
        replaced by an empty one, least of all one whose sequences would begin again below the
        last settled request (S-5).
        """
        tasks = self.subjects.tasks_stream
        try:
            await self.js.consumer_info(tasks, TASKS_CONSUMER)
        except NotFound as error:
            log.error(
                "tasks stream recreated", missing=str(error), remedy="find out who deletes them"
            )
        await self.js.ensure_stream(self._stream(tasks))
        return await self.js.ensure_consumer(tasks, self._consumer())

    async def recreate_tasks(self, reason: ConsumerGone) -> None:
        """Recreate the tasks' stream after it was missing; after a failure return with a delay."""
        log.warning("tasks consumer missing", reason=str(reason))
        try:
            report(await self.ensure_tasks())
        except JetStreamError as error:
            log.warning("tasks stream not recreated yet", error=str(error))
            await asyncio.sleep(_RETRY_DELAY)

    async def _ensure_buckets(self) -> list[Drift]:
        bucket = ObjectStore(self.js, self.subjects.batches_bucket)
        differences = await bucket.ensure(self._bucket())
        differences += await Registry(self.js, self.subjects).ensure(self.options.replicas)
        return differences + await PauseStore(self.js, self.subjects).ensure(self.options.replicas)

    def _bucket(self) -> StreamConfig:
        options = self.options
        return StreamConfig(num_replicas=options.replicas, allow_rollup_hdrs=options.batches_rollup)

    def _streams(self) -> list[StreamConfig]:
        return stream_configs(self.subjects, self.options)

    def _stream(self, name: str) -> StreamConfig:
        return next(config for config in self._streams() if config.name == name)

    def _consumer(self) -> ConsumerConfig:
        return tasks_consumer_config(self.subjects, self.ack_wait)


def _is_transient(error: JetStreamError) -> bool:
    """Whether the error may be gone a moment later."""
    if isinstance(error, NatsUnreachable | Unavailable):
        return True
    return isinstance(error, ApiError) and error.err_code == NO_PLACEMENT


def report(differences: list[Drift]) -> None:
    """Log each difference, and what an operator can do about it."""
    for drift in differences:
        log.error(
            "configuration differs",
            what=drift.name,
            field=drift.field,
            expected=drift.expected,
            actual=drift.actual,
            remedy=remedy_for(drift),
        )


def _remedy_of_missing(name: str) -> str:
    remedy = "stop the Rebasers, and restore it from a backup"
    if "REQUESTS" in name:
        return (
            f"{remedy}; or `rebaser doctor --repair` makes an empty one, with a first_seq above "
            "the last one handled (S-5)"
        )
    if "COMMITS" in name:
        return f"{remedy} of the same time as the store's; docs/backup.md says what is left without"
    return f"{remedy}, or start them again to have an empty one"


_SETTINGS: Final = {
    "ack_wait": "REBASER_ACK_WAIT",
    "num_replicas": "REBASER_NATS__REPLICAS",
    "allow_rollup_hdrs": "REBASER_NATS__BATCHES_ROLLUP",
    "max_msgs_per_subject": "REBASER_QUEUE__CHANGE_SET_REQUESTS",
    "discard_new_per_subject": "REBASER_QUEUE__CHANGE_SET_REQUESTS",
    "max_msgs": "REBASER_QUEUE__REQUESTS",
    "max_bytes": "REBASER_QUEUE__REQUESTS_BYTES",
}


def remedy_for(drift: Drift) -> str:
    if drift.field == MISSING.field:
        return _remedy_of_missing(drift.name)
    if drift.field == "pause_until":
        return "resume it with `nats consumer resume`; to pause work, there is `rebaser pause`"
    kind, _, _ = drift.name.partition(" ")
    remedy = f"set it back with `nats {kind} edit`"
    if drift.field in _SETTINGS:
        return f"{remedy}, or set {_SETTINGS[drift.field]} to it for all Rebasers"
    return remedy
