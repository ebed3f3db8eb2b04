"""Writes down what NATS shows of a run: commits, dead letters, activities."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.activities import Activity
from rebaser_core.commits import decode_commit_at
from rebaser_core.errors import MessageError, UnknownSubject
from rebaser_core.jetstream import (
    Delivery,
    JetStream,
    OrderedPushConsumer,
    StreamNotFound,
    Unavailable,
)
from rebaser_core.subjects import Subjects
from rebaser_server.processor.dead_letters import REASON, SEQUENCE
from tests.chaos.history import History, Kind

_HEARTBEAT = 0.5  # seconds; a reader that lost its server must be back before a purge


class Recorder:
    """Commits and dead letters come from streams, and are complete; the rest is what was heard."""

    def __init__(self, nc: Client, subjects: Subjects, history: History) -> None:
        self._nc = nc
        self._js = JetStream(nc)
        self._subjects = subjects
        self._history = history
        self.commits = self._reader(subjects.commits_stream)
        self._dead_letters = self._reader(subjects.dead_letters_stream)
        self.reading: list[asyncio.Task[None]] = []
        """Tasks that write down, which do not end while the recorder is in use."""

    def _reader(self, stream: str) -> OrderedPushConsumer:
        return OrderedPushConsumer(self._js, stream, idle_heartbeat=_HEARTBEAT)

    async def caught_up(self) -> bool:
        """Whether everything that is in the two streams was written down."""
        for task in self.reading:
            assert not task.done(), f"the recorder ended: {task.exception()!r}"
        readers = (
            (self._subjects.commits_stream, self.commits),
            (self._subjects.dead_letters_stream, self._dead_letters),
        )
        states = [(await self._js.stream_info(stream)).state for stream, _ in readers]
        return all(
            reader.cursor >= state.last_seq
            for state, (_, reader) in zip(states, readers, strict=True)
        )

    async def listen(self) -> None:
        """Subscribe to what is told without being stored. The reconnects of nats-py keep it."""
        subjects = self._subjects
        await self._nc.subscribe(subjects.join("rebaser.activities.>"), cb=self._activity)
        await self._nc.subscribe("$JS.API.STREAM.MSG.DELETE.*", cb=self._delete)
        await self._nc.subscribe("$JS.API.STREAM.PURGE.*", cb=self._purge)
        await self._nc.flush()

    async def read_commits(self) -> None:
        async for delivery in _all_of(self.commits):
            commit = decode_commit_at(
                delivery.stream_sequence, delivery.headers, delivery.payload
            ).to_wire()
            self._add_commit(delivery, commit)

    def _add_commit(self, delivery: Delivery, commit: dict[str, object]) -> None:
        change_set = str(self._subjects.parse_change_set(delivery.subject))
        settled = commit.get("settled")
        if isinstance(settled, dict):
            settled.pop("updates", None)  # the judge goes by what was sent
        self._history.add(
            Kind.COMMIT, change_set=change_set, line=delivery.stream_sequence, commit=commit
        )

    async def read_dead_letters(self) -> None:
        async for delivery in _all_of(self._dead_letters):
            self._history.add(
                Kind.DEAD_LETTER,
                change_set=named(self._subjects, delivery.subject),
                sequence=int(delivery.headers[SEQUENCE]),
                reason=delivery.headers[REASON][:200],
            )

    async def _activity(self, message: Msg) -> None:
        with contextlib.suppress(MessageError):
            told = Activity.decode(message.headers or {}, message.data)
            self._history.add(
                Kind.ACTIVITY,
                change_set=f"{told.workspace_id}.{told.change_set_id}",
                activity=told.kind.value,
                request=str(told.request_id) if told.request_id else None,
                details=told.details,
            )

    async def _delete(self, message: Msg) -> None:
        stream = message.subject.rpartition(".")[2]
        with contextlib.suppress(ValueError, KeyError):
            sequence = json.loads(message.data)["seq"]
            self._history.add(Kind.DELETE, stream=stream, sequence=sequence)

    async def _purge(self, message: Msg) -> None:
        stream = message.subject.rpartition(".")[2]
        with contextlib.suppress(ValueError):
            self._history.add(Kind.PURGE, stream=stream, asked=json.loads(message.data))


async def _all_of(reader: OrderedPushConsumer) -> AsyncIterator[Delivery]:
    """What the stream has, also after a time without a majority, in which the reader gives up."""
    while True:
        try:
            async for delivery in reader:
                yield delivery
        except (Unavailable, StreamNotFound):
            await asyncio.sleep(_HEARTBEAT)


def named(subjects: Subjects, subject: str) -> str:
    """The change set that the subject names, or the whole subject if it names none."""
    try:
        return str(subjects.parse_change_set(subject))
    except UnknownSubject:
        return subject


@asynccontextmanager
async def recording(nc: Client, subjects: Subjects, history: History) -> AsyncIterator[Recorder]:
    """Write down all that happens while the body runs."""
    recorder = Recorder(nc, subjects, history)
    async with AsyncExitStack() as stack:
        await recorder.listen()
        await stack.enter_async_context(recorder.commits)
        await stack.enter_async_context(recorder._dead_letters)
        recorder.reading += [
            asyncio.create_task(recorder.read_commits()),
            asyncio.create_task(recorder.read_dead_letters()),
        ]
        try:
            yield recorder
        finally:
            for task in recorder.reading:
                task.cancel()
            await asyncio.gather(*recorder.reading, return_exceptions=True)
