"""Provision NATS (S-1 to S-3): create missing streams and consumers, compare those that exist."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from rebaser_client.registry import Registry
from rebaser_core.jetstream import (
    ApiError,
    ConsumerGone,
    Drift,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    NotFound,
    ObjectStore,
    StreamNotFound,
    Unavailable,
)
from rebaser_core.jetstream.config_diff import diff_config
from rebaser_core.streams import StreamOptions, stream_configs, tasks_consumer_config
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.cluster.pauses import PauseStore

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
        """Create what is missing; return how the rest differs. May be cancelled and repeated."""
        drifts = []
        for config in self._streams():
            drifts += await self.js.ensure_stream(config)
        drifts += await self.js.ensure_consumer(self.subjects.tasks_stream, self._consumer())
        return drifts + await self._ensure_buckets()

    async def check(self) -> list[Drift]:
        """Return how all differ from their configuration; recreate a missing tasks' stream (X3)."""
        differences = await self.ensure_tasks()
        for config in self._streams():
            try:
                info = await self.js.stream_info(config["name"])
            except StreamNotFound:
                differences.append(MISSING._replace(name=f"stream {config['name']}"))
            else:
                differences += diff_config(f"stream {config['name']}", config, info["config"])
        return differences + await self._ensure_buckets()

    async def diff(self) -> list[Drift]:
        """Return how all differ from their configuration, or that they are missing. Read-only."""
        bucket = f"OBJ_{self.subjects.batches_bucket}"
        differences = await self._diff_stream({"name": bucket, **self._bucket()})
        for config in self._streams():
            differences += await self._diff_stream(config)
        wanted, stream = self._consumer(), self.subjects.tasks_stream
        try:
            info = await self.js.consumer_info(stream, TASKS_CONSUMER)
        except NotFound:
            return [*differences, MISSING._replace(name=f"consumer {stream}/{TASKS_CONSUMER}")]
        return differences + diff_config(
            f"consumer {stream}/{TASKS_CONSUMER}", wanted, info["config"]
        )

    async def _diff_stream(self, config: dict[str, Any]) -> list[Drift]:
        name = f"stream {config['name']}"
        try:
            info = await self.js.stream_info(config["name"])
        except StreamNotFound:
            return [MISSING._replace(name=name)]
        return diff_config(name, config, info["config"])

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
        [config] = [config for config in self._streams() if config["name"] == tasks]
        await self.js.ensure_stream(config)
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
        differences = await bucket.ensure(**self._bucket())
        differences += await Registry(self.js, self.subjects).ensure(self.options.replicas)
        return differences + await PauseStore(self.js, self.subjects).ensure(self.options.replicas)

    def _bucket(self) -> dict[str, Any]:
        options = self.options
        return {"num_replicas": options.replicas, "allow_rollup_hdrs": options.batches_rollup}

    def _streams(self) -> list[dict[str, Any]]:
        return stream_configs(self.subjects, self.options)

    def _consumer(self) -> dict[str, Any]:
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
        return (
            "stop the Rebasers, restore it from a backup, or start them again to have an empty "
            "one; of requests with a first_seq above the last one handled (S-5)"
        )
    kind, _, _ = drift.name.partition(" ")
    remedy = f"set it back with `nats {kind} edit`"
    if drift.field in _SETTINGS:
        return f"{remedy}, or set {_SETTINGS[drift.field]} to it for all Rebasers"
    return remedy
