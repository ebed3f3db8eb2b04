"""A simulated NATS server with JetStream, as far as the product uses it; no network, no files.

Each request, delivery and receipt takes a while of its own. What is done is done at one
moment, in the order in which it reaches the stream or consumer that it concerns. Faithful
to what was measured on a real server where the product relies on it; `test_broker.py` asks
both the same questions. There is no flow control: too little is sent for it to begin.
"""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from rebaser_core.subjects import Subjects
from tests.schedules.api import PULL, answer_to
from tests.schedules.consumers import PullConsumer
from tests.schedules.network import Line, Weather
from tests.schedules.stream import BATCH, Reply, Stored, Stream, failure, matches

Note = Callable[..., None]


class Session:
    """One connection as the server sees it."""

    def __init__(self, broker: "Broker", owner: Any, name: str) -> None:
        loop, weather = broker.loop, broker.weather
        self.name = name
        self.owner = owner
        self.subscriptions: dict[int, tuple[str, str]] = {}
        self.up = Line(loop, weather, broker.context)
        self.down = Line(loop, weather, owner.context)
        self._broker = broker

    def subscribe(self, sid: int, subject: str, queue: str) -> None:
        self.subscriptions[sid] = subject, queue
        self._broker.interest.setdefault(_key(subject), {})[self, sid] = subject, queue

    def unsubscribe(self, sid: int) -> None:
        subject, _ = self.subscriptions.pop(sid, ("", ""))
        self._broker.interest.get(_key(subject), {}).pop((self, sid), None)

    def ping(self, pong: Callable[[], None]) -> None:
        self.down.send(pong)

    def sever(self) -> None:
        """Nothing more arrives at either end, of which neither has noticed."""
        self.up.broken = self.down.broken = True

    def end(self) -> None:
        """Have the server notice that it is gone."""
        self.sever()
        for sid in list(self.subscriptions):
            self.unsubscribe(sid)
        self._broker.sessions.pop(self, None)


def _key(subject: str) -> str:
    """What subscriptions are found by: an exact subject, or its tokens before a wildcard."""
    return subject.partition(".*")[0]


class Broker:
    """The server, or the whole cluster; what it does is told to `note`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, weather: Weather, note: Note) -> None:
        self.loop = loop
        self.weather = weather
        self.context = loop.process("nats").context
        self.note = note
        self.streams: dict[str, Stream] = {}
        self.sessions: dict[Session, None] = {}
        self.interest: dict[str, dict[tuple[Session, int], tuple[str, str]]] = {}
        self.down = False
        self.leaderless_until = 0.0
        self.numbers = itertools.count(1)
        self._queues: dict[str, Line] = {}
        self._tasks = Subjects().tasks_stream
        self.on_stored: Callable[[Stream, Stored, Session], None] = lambda *_: None
        """Called with each message that was just stored, before its receipt is on its way."""
        self.on_word: Callable[[Session, tuple[int, int], bytes], None] = lambda *_: None
        """Called with each word that settles a delivery: of which message, the how manieth."""
        self.moment: Callable[[str, Session], None] = lambda *_: None
        """Called when a request to the API, or a word on a task, has had its effect."""

    def time(self) -> float:
        return self.loop.time()

    @property
    def leaderless(self) -> bool:
        """Whether no stream has anybody to answer for it."""
        return self.time() < self.leaderless_until

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.loop.call_later(seconds, call, *args, context=self.context)

    # -- connections --------------------------------------------------------------------------

    def connect(self, owner: Any, name: str) -> Session:
        session = Session(self, owner, f"{name}#{next(self.numbers)}")
        self.sessions[session] = None
        return session

    def restart(self, seconds: float) -> None:
        """End as a kill does, and be back after a while: what was stored is still there."""
        self.note("nats", "restarts")
        self.down = True
        for session in list(self.sessions):
            session.end()
            self.loop.call_soon(session.owner.lost, session, context=session.owner.context)
        for stream in self.streams.values():
            stream.forget_ids()
            for consumer in list(stream.consumers.values()):
                if isinstance(consumer, PullConsumer):
                    consumer.restarted()
                else:
                    self.drop(stream, consumer.name)
        for queue in self._queues.values():
            queue.broken = True
        self._queues.clear()
        self.later(seconds, self._back)

    def _back(self) -> None:
        self.down = False

    # -- routing ------------------------------------------------------------------------------

    def published(
        self, session: Session, subject: str, reply: str, headers: dict[str, str], payload: bytes
    ) -> None:
        """A message has come in."""
        if subject.startswith("$JS.API."):
            verb = subject.removeprefix("$JS.API.")
            self._queue("api").send(self._api, session, verb, reply, payload)
        elif subject.startswith("$JS.ACK."):
            _, _, stream, consumer, _, sequence, delivery, *_ = subject.split(".")
            queue = self._queue(f"{stream} {consumer}")
            which = int(sequence), int(delivery)
            queue.send(self._word, session, stream, consumer, which, reply, payload)
        elif (stream := self._stream_of(subject)) is not None:
            queue = self._queue(stream.name)
            queue.send(self._store, session, stream, subject, reply, headers, payload)
        elif not self.route(subject, payload, reply=reply, headers=headers) and reply:
            self._no_responders(reply)

    def arriving(self, stream: str) -> bool:
        """Whether anything is on its way into the stream."""
        return self._queue(stream).busy

    def _queue(self, name: str) -> Line:
        if name not in self._queues:
            self._queues[name] = Line(self.loop, self.weather, self.context)
        return self._queues[name]

    def _stream_of(self, subject: str) -> Stream | None:
        return next((s for s in self.streams.values() if s.takes(subject)), None)

    def route(
        self,
        to: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
        subject: str = "",
    ) -> bool:
        """Send to whoever listens on `to`, of a queue group to one; whether anybody does."""
        groups: dict[str, list[tuple[Session, int]]] = {}
        heard = False
        for listener, (_, queue) in self._listeners(to):
            heard = True
            if queue:
                groups.setdefault(queue, []).append(listener)
            else:
                self._send(listener, subject or to, payload, reply, headers)
        for members in groups.values():
            self._send(self.weather.random.choice(members), subject or to, payload, reply, headers)
        return heard

    def _send(
        self,
        listener: tuple[Session, int],
        subject: str,
        payload: bytes,
        reply: str,
        headers: dict[str, str] | None,
    ) -> None:
        session, sid = listener
        if self.weather.loses():
            self.note("lost", subject, session.name)
            return
        session.down.send(session.owner.received, session, sid, subject, payload, reply, headers)

    def _listeners(self, to: str) -> list[tuple[tuple[Session, int], tuple[str, str]]]:
        found = list(self.interest.get(to, {}).items())
        prefix = to
        for _ in range(2):  # as many wildcards as anybody uses
            prefix = prefix.rpartition(".")[0]
            for listener, (pattern, queue) in self.interest.get(prefix, {}).items():
                if pattern != prefix and matches(pattern, to):
                    found.append((listener, (pattern, queue)))
        return found

    def listens(self, subject: str) -> bool:
        return bool(self._listeners(subject))

    def _answer(self, reply: str, answer: Reply | bytes) -> None:
        if reply:
            self.route(reply, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def _no_responders(self, reply: str) -> None:
        if reply:
            self.route(reply, b"", headers={"Status": "503"})

    # -- JetStream ----------------------------------------------------------------------------

    def _store(
        self,
        session: Session,
        stream: Stream,
        subject: str,
        reply: str,
        headers: dict[str, str],
        payload: bytes,
    ) -> None:
        if self.leaderless:
            self._no_responders(reply)
            return
        if self.weather.loses():
            self.note("lost", subject, "on its way to the stream")
            return
        behind, before = self.weather.behind(), stream.last_sequence
        if BATCH in headers:
            batch = stream.collect((subject, headers, payload))
            if batch is None:
                return
            answer = (
                stream.store_batch(batch, self.time(), behind)
                if batch
                else failure(400, 10176, "batch publish is incomplete and was abandoned")
            )
        else:
            answer = stream.store(subject, headers, payload, self.time(), behind)
        self.note("store", subject, answer.get("seq", answer.get("error")), session.name)
        for sequence in range(before + 1, stream.last_sequence + 1):
            stored = stream.messages[sequence]
            self.on_stored(stream, stored, session)
            for consumer in list(stream.consumers.values()):
                consumer.added(stored)
        if stream.last_sequence > before:
            behind = stream.visible_at - self.time()
        late = behind + (self.weather.detour() if stream.name == self._tasks else 0.0)
        if late:
            self.later(late, self._answer, reply, answer)
        else:
            self._answer(reply, answer)

    def _word(
        self,
        session: Session,
        stream: str,
        name: str,
        which: tuple[int, int],
        reply: str,
        word: bytes,
    ) -> None:
        sequence, _ = which
        consumer = self.streams[stream].consumers.get(name)
        if consumer is None or self.leaderless:
            self._no_responders(reply)
        elif self.weather.loses():
            self.note("lost", "ack", session.name)
        else:
            if word != b"+WPI":
                self.note("task", sequence, word, session.name)
                self.on_word(session, which, word)
            consumer.word(sequence, word)
            if word != b"+WPI":
                self.moment("settled", session)
            self._answer(reply, b"")

    def _api(self, session: Session, verb: str, reply: str, payload: bytes) -> None:
        if self.weather.loses():
            self.note("lost", verb, "on its way")
            return
        body = json.loads(payload) if payload else {}
        if verb.startswith(PULL):
            stream, name = verb.removeprefix(PULL).split(".")
            consumer = self.streams[stream].consumers.get(name)
            if consumer is None or self.leaderless:
                self._no_responders(reply)
            else:
                consumer.pull(reply, body)
        else:
            answer = answer_to(self, verb, body)
            self.moment(verb, session)
            self._answer(reply, answer)

    def drop(self, stream: Stream, name: str) -> None:
        """Have that consumer gone."""
        stream.consumers.pop(name).gone = True
