"""Messages that leave a key behind its commit: calls to other keys, and alarms of its timers.

It is the background job of a key: due as soon as a commit has something to send (D1), it may be
done again by another run at any time, and a commit says that it is done (D4). Each target knows how
far it heard each sender, so what is sent again takes no effect.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from secrets import token_bytes
from typing import Final, Never

import orjson
import structlog
from blake3 import blake3

from rebaser_core import trace_context
from rebaser_core.calls import (
    CallRequest,
    CallRequestV1,
    Firing,
    Origin,
    TimerChange,
    derived_id,
    key_of,
)
from rebaser_core.commits import DvuClaim
from rebaser_core.errors import NotConfirmed, QueueFull
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import (
    ConsumerConfig,
    ConsumerGone,
    Delivery,
    JetStreamError,
    PullConsumer,
    WrongLastSequence,
)
from rebaser_core.messages import UpdatesAddress
from rebaser_core.requests import message_id, publish_request, retry
from rebaser_core.stream_configs import StreamOptions, alarms_config
from rebaser_core.streams import Streams
from rebaser_core.versioning import AUTHOR, MESSAGE_ID
from rebaser_server.commit_log.state import Batch, Content
from rebaser_server.files import SEAL_KEY, StoreFiles
from rebaser_server.handlers.checkpoints import content_of
from rebaser_server.handlers.content import KeyContent, Outgoing, Timer
from rebaser_server.handlers.service import CallRefused
from rebaser_server.handlers.times import time_of
from rebaser_server.processor.application import CommitPart, Job, JobPlanner, JobResult
from rebaser_server.processor.ownership import Ownership
from rebaser_server.runtime.failures import EvaluatorAway, StoreDamaged
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import background, for_each_concurrently, wait_forever

log: Final = structlog.get_logger()

_RETRY_FOR: Final = 20.0
"""Seconds for which a send is tried again before the job is put off."""
_SEAL_KEY_BYTES: Final = 32  # as a key of BLAKE3 has
_AT_ONCE: Final = 16
"""Number of targets and timers that a key sends to, and sets, at a time."""


class Seals:
    """Proofs that a worker of this deployment made a call, and that no client did (O6).

    A forged place among what a key sent would make its later calls pass for repetitions.
    """

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._secret: bytes | None = None

    async def of(self, call: CallRequestV1) -> str:
        """Return the proof. Raises `OSError` if the store does not answer."""
        if self._secret is None:
            self._secret = await asyncio.to_thread(self._load)
        parts: list[object] = [call.id, call.workspace_id, call.change_set_id]
        if (origin := call.origin) is not None:
            parts += ["origin", origin.change_set_id, origin.sequence, origin.index]
        if (firing := call.firing) is not None:
            parts += ["firing", firing.name, firing.at]
        made = json.dumps([str(part) for part in parts])
        return blake3(made.encode(), key=self._secret).hexdigest(16)

    def _load(self) -> bytes:
        # Of workers that start at once one gives the secret, and all of them read that one.
        self._files.put_if_absent(SEAL_KEY, token_bytes(_SEAL_KEY_BYTES))
        key = bytes(self._files.get(SEAL_KEY))
        if len(key) != _SEAL_KEY_BYTES:
            # An error of the store, so that no sound call counts as failed, or as forged.
            raise StoreDamaged(f"{SEAL_KEY} in {self._files.root} has {len(key)} bytes, not 32")
        return key


@dataclass(frozen=True, slots=True)
class CallPlanner(JobPlanner):
    """Plans what a key sends."""

    streams: Streams
    seals: Seals
    alarms: "Alarms"
    change_set: ChangeSet

    def prepare(self, content: Content, after: int, *, is_repeated: bool) -> Job:
        del is_repeated
        key = _of_key(content)
        due = [(name, timer) for name, timer in key.timers.items() if timer.set_by > after]
        return SendJob(self, key.service, key.key, list(key.outgoing), due, dict(key.traces))

    def fail_all(self, content: Content, after: int, message: str) -> JobResult:
        del content, after
        raise EvaluatorAway(f"what is to be sent is never dropped: {message}")


@dataclass(frozen=True, slots=True)
class Sent(JobResult):
    """Outcome of sends that are stored: there is nothing to apply."""

    recomputed: int
    changed: int = 0
    batch: Batch = field(default_factory=lambda: Batch([]))

    def __len__(self) -> int:
        return 0

    def code(self, before: str, *, is_last: bool) -> str:
        del is_last
        return before

    async def store(self, claim: DvuClaim, base: int, max_bytes: int) -> UpdatesAddress:
        del claim, base, max_bytes
        raise AssertionError("nothing is stored of no values")

    def clear(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class SendJob(Job):
    """The calls and alarms that a key has to send, as of a claim."""

    of: CallPlanner
    service: str
    key: str
    calls: Sequence[Outgoing]
    timers: Sequence[tuple[str, Timer]]
    traces: Mapping[int, Mapping[str, str]]
    """Headers that name the spans of the calls that sent `calls`, by sequence."""

    @property
    def affected(self) -> int:
        return len(self.calls) + len(self.timers)

    async def run(
        self, *, is_suspect: bool, progress: JobProgress, commit_part: CommitPart
    ) -> Sent:
        """Send all (O3). Cancelled, some is sent, and will be sent again."""
        del is_suspect, commit_part
        targets: dict[tuple[str, str], list[Outgoing]] = {}
        for call in self.calls:
            targets.setdefault((call.service, call.key), []).append(call)
        done, full = count(1), list[QueueFull]()

        async def send(calls: Sequence[Outgoing]) -> None:
            # O2: one after the other: a target that heard a later call takes an earlier one for a
            # repetition.
            try:
                for call in calls:
                    await self._send(call)
                    progress.record(next(done))
            except QueueFull as error:  # this target's queue: the others get what is theirs
                full.append(error)

        arm = partial(self.of.alarms.arm, self.of.change_set, self.service, self.key)
        work = [partial(send, calls) for calls in targets.values()]
        work += [partial(arm, name, timer) for name, timer in self.timers]
        try:
            await for_each_concurrently(work, lambda each: each(), min(_AT_ONCE, len(work)))
            if full:
                raise full[0]
        except (NotConfirmed, QueueFull, JetStreamError, OSError) as error:
            raise EvaluatorAway(f"calls wait to be sent: {error}") from error
        return Sent(self.affected)

    async def give_up(self, message: str) -> Sent:
        raise EvaluatorAway(f"what is to be sent is never dropped: {message}")

    async def _send(self, call: Outgoing) -> None:
        target = key_of(call.service, call.key)
        request = CallRequestV1(
            id=RequestId.from_str(call.id),
            workspace_id=target.workspace_id,
            change_set_id=target.change_set_id,
            service=call.service,
            key=call.key,
            handler=call.handler,
            arguments=orjson.loads(call.arguments),
            service_version=call.version,
            origin=Origin(
                change_set_id=self.of.change_set.change_set_id,
                sequence=call.sequence,
                index=call.number,
            ),
            timer=None if call.timer is None else TimerChange.from_wire(call.timer),
        )
        with trace_context.continued(self.traces.get(call.sequence, {})):
            await publish_call(
                self.of.streams, self.of.seals, request, f"{self.service}/{self.key}"
            )


async def publish_call(streams: Streams, seals: Seals, call: CallRequestV1, author: str) -> None:
    """Seal and store a call, and make sure that its key has a task.

    Raises:
        OSError: the store does not answer.
        Exception: as `publish_request`.
    """
    target = ChangeSet(call.workspace_id, call.change_set_id)
    call = call.model_copy(update={"seal": await seals.of(call)})
    headers, payload = CallRequest.encode(call)
    headers[MESSAGE_ID] = message_id(call.id, target, payload)
    headers[AUTHOR] = author
    await publish_request(streams, target, headers, payload, retry_for=_RETRY_FOR)


def _of_key(content: Content) -> KeyContent:
    if not isinstance(content, KeyContent):
        raise TypeError(f"{type(content).__name__} is not the content of a key")
    return content


_CONSUMER: Final = "rebaser-alarms"
_SCHEDULES_SINCE: Final = (2, 12)
_ACK_WAIT: Final = timedelta(seconds=30)
_RETRY_DELAY: Final = 2.0
_CHECK_DELAY: Final = 2.0
"""Seconds from the beginning of a key's run until its alarms are looked at."""
_SET_BY: Final = "Rebaser-Set-By"
"""Header of an alarm: sequence of the request that set the timer."""


class Alarms:
    """Alarms of timers, which NATS rings by its message schedules (ADR-51).

    A ring is a hint: the key's own timers say whether it is due. NATS may ring twice, or ring anew
    what had rung before a kill; a timer that was moved since, or rang, takes no notice.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._unchecked: dict[ChangeSet, KeyContent] = {}
        """Timers of keys of which a run has begun, without the rest of the content: while no alarm
        is heard, they wait here."""
        self._begun = asyncio.Event()

    def require(self) -> None:
        """Raise `CallRefused` if this NATS has no alarms."""
        server = self._streams.js.nc.connected_server_version
        if (server.major, server.minor) < _SCHEDULES_SINCE:
            raise CallRefused(f"timers need NATS 2.12 or newer, and this is {server}")

    async def arm(
        self, change_set: ChangeSet, service: str, key: str, name: str, timer: Timer
    ) -> None:
        """Set the alarm of a timer to its next time, in place of one that it has.

        O5: it replaces none of a later request's, since a run that was fenced off may go on.
        """
        js = self._streams.js
        subject = self._subject(change_set, name)
        headers = {
            "Nats-Schedule": f"@at {timer.next}",
            "Nats-Schedule-Target": self._ringing(change_set),
            "Nats-Rollup": "sub",
            _SET_BY: str(timer.set_by),
        }
        said = {
            "service": service,
            "key": key,
            "name": name,
            "at": timer.next,
            "setBy": timer.set_by,
        }
        payload, last = json.dumps(said).encode(), 0

        async def publish() -> None:
            await js.publish(subject, payload, headers=headers, expected_last_subject_sequence=last)

        while True:
            try:
                await retry(publish, _RETRY_FOR)
            except WrongLastSequence:
                there = await js.get_message(self._streams.alarms_stream, last_by_subject=subject)
                if there is not None and int(there.headers[_SET_BY]) >= timer.set_by:
                    return
                last = 0 if there is None else there.sequence
            else:
                return

    def _subject(self, change_set: ChangeSet, timer: str) -> str:
        token = blake3(timer.encode()).hexdigest(16)
        return self._streams.join("rebaser.alarms", *change_set, token)

    def _ringing(self, change_set: ChangeSet) -> str:
        return self._streams.join("rebaser.ringing", *change_set)

    async def lost(self, change_set: ChangeSet, content: KeyContent) -> list[tuple[str, Timer]]:
        """Return the timers of a key whose alarms are gone; none while one of them rings.

        Raises:
            StreamNotFound: all alarms are gone.
        """
        streams, stream = self._streams, self._streams.alarms_stream
        key = streams.join("rebaser.alarms", *change_set, "*")
        there = await streams.js.stream_subjects(stream, key)
        lost = [
            (name, timer)
            for name, timer in content.timers.items()
            if self._subject(change_set, name) not in there
        ]
        rings = lost and await streams.js.stream_subjects(stream, self._ringing(change_set))
        return [] if rings else lost

    def check_soon(self, ownership: Ownership) -> None:
        """Set alarms that were lost of a key of which a run begins, soon."""
        content = content_of(ownership.state)
        if content.timers:
            only_timers = KeyContent(content.service, content.key, timers=content.timers)
            self._unchecked[ownership.loader.change_set] = only_timers
            self._begun.set()

    async def _check(self) -> Never:
        while True:
            if not self._unchecked:
                self._begun.clear()
                await self._begun.wait()
            # What rang has moved its timer by then, and what was set has its alarm.
            await asyncio.sleep(_CHECK_DELAY)
            while self._unchecked:
                change_set, content = next(iter(self._unchecked.items()))
                for name, timer in await self.lost(change_set, content):
                    log.warning("alarm was lost", key=content.key, timer=name, next=timer.next)
                    await self.arm(change_set, content.service, content.key, name, timer)
                if self._unchecked.get(change_set) is content:
                    del self._unchecked[change_set]

    async def run(self, seals: Seals) -> Never:
        """Enqueue a request for each alarm that rings, until cancelled."""
        try:
            self.require()
        except CallRefused as error:
            log.warning("no timers", reason=str(error))
            await wait_forever()
        while True:
            try:
                await self._ensure()
                async with background(self._check()):
                    await self._hear(seals)
            except JetStreamError as error:
                log.warning("alarms are not heard now", error=str(error))
            await asyncio.sleep(_RETRY_DELAY)

    async def _ensure(self) -> None:
        js, streams = self._streams.js, self._streams
        requests = await js.stream_config(streams.requests_stream)
        options = StreamOptions(requests.num_replicas or 1, stream_bytes=requests.max_bytes)
        await js.ensure_stream(alarms_config(streams, options))
        await js.ensure_consumer(
            streams.alarms_stream,
            ConsumerConfig(
                durable_name=_CONSUMER,
                ack_policy="explicit",
                ack_wait=_ACK_WAIT,
                filter_subject=streams.join("rebaser.ringing.>"),
            ),
        )

    async def _hear(self, seals: Seals) -> Never:
        stream = self._streams.alarms_stream
        async with PullConsumer(self._streams.js, stream, _CONSUMER) as rings:
            while True:
                try:
                    ring = await rings.take(_AT_ONCE)
                except ConsumerGone as error:
                    raise JetStreamError(str(error)) from error
                try:
                    await self._ring(ring, seals)
                except (NotConfirmed, QueueFull, OSError) as error:
                    log.warning("timer's call waits", error=str(error))
                    await ring.nak(delay=_RETRY_DELAY)
                except (ValueError, LookupError, TypeError, OverflowError):
                    # Dropped: it would end this worker, and the next one that takes it.
                    log.exception("alarm cannot be read", subject=ring.subject)
                    await ring.ack()

    async def _ring(self, ring: Delivery, seals: Seals) -> None:
        said = json.loads(ring.payload)
        target = key_of(said["service"], said["key"])
        due = time_of(said["at"])
        # Of the timer and its setting: an alarm that rings twice is one request.
        setting = f"{target} {said['name']} {said['at']} {said['setBy']}"
        ring_id = derived_id(setting, int(due.timestamp() * 1000))
        call = CallRequestV1(
            id=ring_id,
            workspace_id=target.workspace_id,
            change_set_id=target.change_set_id,
            service=said["service"],
            key=said["key"],
            handler="_",
            firing=Firing(name=said["name"], at=said["at"]),
        )
        await publish_call(self._streams, seals, call, f"timer {said['name']}"[:200])
        # Behind the request: an alarm that is heard twice is one request, one that is lost is none.
        await ring.ack(confirm=True)
