"""Clients that ask, retry, lose answers and die between their two publishes."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_client.requests import Reply
from rebaser_core.errors import NotConfirmed, QueueFull
from rebaser_core.errors import Unreachable as NoAnswer
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, JetStreamError, NatsUnreachable, PubAck
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    Inline,
    InlineBatch,
)
from rebaser_core.requests import publish_request
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MESSAGE_ID
from tests.chaos.history import History, Kind
from tests.chaos.poison_requests import poison
from tests.chaos.workload import Batch, Values, new_id

RETRY_FOR = 30.0  # seconds: longer than NATS is ever away
SMALL = 50  # updates that travel inside a request
ANSWER_WITHIN = 60.0  # seconds, once all is at rest; a busy machine needs some


class Died(Exception):
    """The client is no more."""


class WitnessedJetStream(JetStream):
    """Writes down what was stored; loses answers and ends its client as the seed will have it."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        history: History,
        rng: random.Random,
        *,
        api_prefix: str | None = None,
    ) -> None:
        super().__init__(nc, api_prefix=api_prefix)
        self._subjects = subjects
        self._history = history
        self._rng = rng
        self.calm = False
        self.dying: asyncio.Task[Any] | None = None
        """The caller that dies before it publishes a task; others go on."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        **options: Any,
    ) -> PubAck:
        is_task = subject.startswith(self._subjects.join("rebaser.tasks"))
        if is_task and asyncio.current_task() is self.dying:
            raise Died
        is_request = subject.startswith(self._subjects.join("rebaser.requests"))
        if is_request:
            self._lose(0.02, "the request")
        ack = await super().publish(
            subject, payload, headers=headers, message_id=message_id, **options
        )
        if is_request:
            self.stored(subject, message_id and message_id.partition(".")[0], ack)
            self._lose(0.04, "the answer")
        return ack

    def stored(
        self, subject: str, request: str | None, ack: PubAck, expected: Sequence[str] = ("applied",)
    ) -> None:
        self._history.add(
            Kind.STORED,
            request=request,
            change_set=str(self._subjects.parse_change_set(subject)),
            sequence=ack.sequence,
            duplicate=ack.duplicate,
            expected=list(expected),
        )

    def _lose(self, chance: float, what: str) -> None:
        if not self.calm and self._rng.random() < chance:
            raise NatsUnreachable(f"chaos took {what}")


@dataclass(slots=True)
class SentRequest:
    """A request that may be asked again."""

    request: RequestId
    change_set: ChangeSet
    batch: Batch


@dataclass(slots=True)
class ChaosClient:
    """One client: asks, one thing after the other, until told to stop."""

    js: WitnessedJetStream
    client: RebaserClient
    subjects: Subjects
    history: History
    rng: random.Random
    change_sets: Mapping[ChangeSet, Values]
    pause: float
    recent: deque[SentRequest] = field(default_factory=lambda: deque(maxlen=20))
    used: set[tuple[ChangeSet, RequestId]] = field(default_factory=set)
    replies: set[asyncio.Task[None]] = field(default_factory=set)
    unanswered: dict[tuple[ChangeSet, RequestId], SentRequest] = field(default_factory=dict)

    async def ask(self, until: asyncio.Event) -> None:
        """Send whatever the seed will have until the event is set."""
        while not until.is_set():
            change_set = self.rng.choice(list(self.change_sets))
            action = self.rng.choices(
                (self._enqueue, self._again, self._elsewhere, self.die, self._give_up,
                 self._poison, self._stray),
                (81, 5, 3, 4, 3, 3, 1),
            )[0]  # fmt: skip
            await action(change_set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0, 2 * self.pause)):
                    await until.wait()

    async def define(self, change_set: ChangeSet) -> None:
        await self._send(self._new(change_set, self.change_sets[change_set].define(self.rng)))

    async def settle(self) -> None:
        """Ask what became of every request whose answer did not come.

        It is not sent again: its id may be forgotten by now, and it would count as another.
        """
        self.js.calm = True
        for task in self.replies:
            task.cancel()
        if self.replies:
            await asyncio.wait(self.replies)
        unanswered = list(self.unanswered.values())
        await asyncio.gather(*(self.learn(asked.change_set, asked.request) for asked in unanswered))

    async def learn(self, change_set: ChangeSet, request: RequestId) -> None:
        """Ask what became of the request, at rest."""
        known = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN):
                while known is None:
                    with contextlib.suppress(NoAnswer):
                        known = await self.client.change_set(*change_set).outcome(request)
        if known is None or known.response is None:
            self.history.add(Kind.NO_REPLY, request=str(request), change_set=str(change_set))
        else:
            self._answered(change_set, request, known.response)

    def _new(
        self, change_set: ChangeSet, batch: Batch, request: RequestId | None = None
    ) -> SentRequest:
        asked = SentRequest(request or RequestId(), change_set, batch)
        self.recent.append(asked)
        self.used.add((change_set, asked.request))
        self.history.add(
            Kind.SENT, request=str(asked.request), change_set=str(change_set), batch=batch
        )
        return asked

    async def _enqueue(self, change_set: ChangeSet) -> None:
        asked = self._new(change_set, self.change_sets[change_set].batch(self.rng))
        await self._send(asked, with_reply=self.rng.random() < 0.3)

    async def _again(self, _: ChangeSet) -> None:
        if not self.recent:
            return
        asked = self.rng.choice(self.recent)
        if len(asked.batch) < SMALL and self.rng.random() < 0.3:
            await self.repeat_unrecognised(asked)
        else:
            await self._send(asked, with_reply=self.rng.random() < 0.5)

    async def repeat_unrecognised(self, asked: SentRequest) -> None:
        """Send a small request again, as when NATS has forgotten its id."""
        change_set = asked.change_set
        request = EnqueueUpdatesRequestV1(
            id=asked.request,
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            updates_address=Inline(inline=InlineBatch.model_validate({"updates": asked.batch})),
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        headers[MESSAGE_ID] = f"{asked.request}.{new_id(self.rng)}"
        try:
            await publish_request(
                Streams(self.subjects.prefix, js=self.js),
                change_set,
                headers,
                payload,
                retry_for=RETRY_FOR,
            )
        except (NotConfirmed, QueueFull) as error:
            self._unknown(str(asked.request), change_set, error)

    async def ask_for_little(self, change_set: ChangeSet) -> SentRequest:
        asked = self._new(change_set, self.change_sets[change_set].change(self.rng))
        await self._send(asked)
        return asked

    async def _elsewhere(self, change_set: ChangeSet) -> None:
        """Ask another change set under an id that was used, the same or something else."""
        others = [asked for asked in self.recent if (change_set, asked.request) not in self.used]
        if others:
            asked = self.rng.choice(others)
            own = self.change_sets[change_set].batch(self.rng)
            batch = asked.batch if self.rng.random() < 0.5 else own
            with_reply = self.rng.random() < 0.5
            await self._send(self._new(change_set, batch, asked.request), with_reply=with_reply)

    async def die(self, change_set: ChangeSet) -> None:
        """Die between the two publishes; who comes after may know the request, or not."""
        self.js.dying = asyncio.current_task()
        try:
            await self._enqueue(change_set)
        except Died:
            if self.rng.random() < 0.7:
                self.recent.pop()
        finally:
            self.js.dying = None

    async def _give_up(self, change_set: ChangeSet) -> None:
        """Be cancelled anywhere on the way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0, 0.005)):
                await self._enqueue(change_set)

    async def _poison(self, change_set: ChangeSet) -> None:
        bad = poison(self.rng, change_set)
        request = _canonical(bad.request)
        self.history.add(
            Kind.SENT,
            request=request,
            change_set=str(change_set),
            batch=bad.batch,
            expected=list(bad.expected),
            poison=bad.name,
        )
        subject = self.subjects.requests(change_set)
        try:
            ack = await JetStream.publish(self.js, subject, bad.payload, headers=bad.headers)
        except JetStreamError as error:
            self._unknown(request, change_set, error)
            return
        self.js.stored(subject, request, ack, bad.expected)
        with contextlib.suppress(JetStreamError):
            await self.js.publish(self.subjects.task(change_set))

    async def _stray(self, change_set: ChangeSet) -> None:
        """A task that names no change set, or has a body."""
        stray = self.subjects.join("rebaser.tasks", self.rng.randrange(9), "none", "process")
        subject = self.rng.choice((stray, self.subjects.task(change_set)))
        with contextlib.suppress(JetStreamError):
            await self.js.publish(subject, self.rng.randbytes(20), headers={"X": "y"})

    async def _send(self, asked: SentRequest, *, with_reply: bool = False) -> None:
        try:
            if with_reply:
                self.unanswered[asked.change_set, asked.request] = asked
                _, reply = await self._enqueue_with_reply(asked)
                task = asyncio.create_task(self._await(asked, reply))
                self.replies.add(task)
                task.add_done_callback(self.replies.discard)
            else:
                await self.client.enqueue_updates(
                    *asked.change_set, asked.batch, request_id=asked.request
                )
        except (NotConfirmed, QueueFull) as error:
            self.unanswered.pop((asked.change_set, asked.request), None)
            self._unknown(str(asked.request), asked.change_set, error)

    async def _enqueue_with_reply(self, asked: SentRequest) -> tuple[RequestId, Reply]:
        return await self.client.enqueue_updates_with_reply(
            *asked.change_set, asked.batch, request_id=asked.request
        )

    async def _await(self, asked: SentRequest, reply: Reply) -> None:
        self._answered(asked.change_set, asked.request, await reply)

    def _unknown(self, request: str | None, change_set: ChangeSet, error: Exception) -> None:
        self.history.add(Kind.UNKNOWN, request=request, change_set=str(change_set), why=str(error))

    def _answered(
        self, change_set: ChangeSet, request: RequestId, response: EnqueueUpdatesResponseV3
    ) -> None:
        self.unanswered.pop((change_set, request), None)
        status = response.status
        failed = isinstance(status, ErrorStatus)
        self.history.add(
            Kind.REPLY,
            request=str(request),
            change_set=str(change_set),
            ok=not failed,
            commit=None if failed else status.success.commit,
            message=status.error.message if failed else None,
        )


def _canonical(request: str | None) -> str | None:
    """The id that a server can make of the header, if any."""
    try:
        return str(RequestId.from_str(request or ""))
    except ValueError:
        return None
