"""Consumers of the simulated server: one pulls with acks, the other pushes in order."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.schedules.stream import Reply, Stored, Stream, date, matches

if TYPE_CHECKING:
    from tests.schedules.broker import Broker


class Consumer:
    """What both have in common: a place in the stream, and numbered deliveries."""

    def __init__(self, broker: "Broker", stream: Stream, name: str, config: dict[str, Any]) -> None:
        self._broker = broker
        self._stream = stream
        self.name = name
        self.config = config
        self._filter: str = config.get("filter_subject") or ">"
        self._next = 1
        self._sequence = 0
        self.gone = False

    def _send(self, inbox: str, stored: Stored, delivered: int) -> bool:
        """Deliver it; whether anybody listened."""
        self._sequence += 1
        left = self._left()
        reply = (
            f"$JS.ACK.{self._stream.name}.{self.name}.{delivered}.{stored.sequence}"
            f".{self._sequence}.{round(stored.time * 1e9)}.{left}"
        )
        payload = b"" if self.config.get("headers_only") else stored.payload
        return self._broker.route(
            inbox, payload, reply=reply, headers=stored.headers, subject=stored.subject
        )

    def _left(self) -> int:
        return len(self._stream.following(self._next, self._filter))

    def status(self, inbox: str, code: int, description: str, **headers: Any) -> None:
        named = {"Nats-" + name.replace("_", "-"): str(value) for name, value in headers.items()}
        self._broker.route(
            inbox, b"", headers={"Status": str(code), "Description": description, **named}
        )

    def info(self) -> Reply:
        return {
            "name": self.name,
            "stream_name": self._stream.name,
            "config": self.config,
            "created": date(0.0),
            "delivered": {"consumer_seq": self._sequence, "stream_seq": self._next - 1},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": 0,
            "num_pending": self._left(),
            "ts": date(self._broker.time()),
        }


@dataclass(slots=True, eq=False)
class _Pull:
    inbox: str
    batch: int
    heartbeat: float
    spoke_at: float


class PullConsumer(Consumer):
    """The durable one: work-queue, explicit acks, redelivery after `ack_wait`.

    JetStream does not look at who settles: a word on any delivery of a message counts (F1).
    """

    def __init__(self, broker: "Broker", stream: Stream, name: str, config: dict[str, Any]) -> None:
        super().__init__(broker, stream, name, config)
        self._ack_wait = config.get("ack_wait", 30e9) / 1e9
        self.pending: dict[int, float] = {}
        """Delivered and not settled → until when nobody else gets it."""
        self._again: deque[int] = deque()
        self._delivered: dict[int, int] = {}
        self._pulls: deque[_Pull] = deque()

    def _left(self) -> int:
        if self.config.get("deliver_policy") != "last_per_subject":
            return super()._left()
        return sum(matches(self._filter, subject) for subject in self._stream.by_subject)

    def pull(self, inbox: str, asked: dict[str, Any]) -> None:
        heartbeat = asked.get("idle_heartbeat", 0) / 1e9
        pull = _Pull(inbox, asked.get("batch", 1), heartbeat, self._broker.time())
        self._pulls.append(pull)
        self._broker.later(asked["expires"] / 1e9, self._expired, pull)
        if heartbeat:
            self._broker.later(heartbeat, self._beat, pull)
        self.deliver()

    @property
    def held(self) -> list[int]:
        """Messages that are with somebody."""
        return [sequence for sequence in self.pending if sequence not in self._again]

    def deliver(self) -> None:
        """Give what there is to those who asked, oldest first."""
        while self._pulls and (stored := self._due()) is not None:
            while self._pulls and not self._broker.listens(self._pulls[0].inbox):
                self._pulls.popleft()
            if not self._pulls:
                return
            pull = self._pulls[0]
            if self._again and self._again[0] == stored.sequence:
                self._again.popleft()
            else:
                self._next = stored.sequence + 1
            self._delivered[stored.sequence] = self._delivered.get(stored.sequence, 0) + 1
            self._hold(stored.sequence, self._ack_wait)
            self._send(pull.inbox, stored, self._delivered[stored.sequence])
            self._broker.note("task", stored.sequence, f"delivered to {pull.inbox}")
            pull.spoke_at = self._broker.time()
            pull.batch -= 1
            if not pull.batch:
                self._pulls.popleft()

    def _due(self) -> Stored | None:
        while self._again:
            stored = self._stream.messages.get(self._again[0])
            if stored is not None:
                return stored
            self._again.popleft()
        return next(iter(self._stream.following(self._next, self._filter)), None)

    def _hold(self, sequence: int, seconds: float) -> None:
        self.pending[sequence] = self._broker.time() + seconds
        self._broker.later(seconds, self._overdue, sequence)

    def _overdue(self, sequence: int) -> None:
        until = self.pending.get(sequence)
        if until is None or sequence in self._again:
            return
        left = until - self._broker.time()
        if left > 0:  # there were signs of life
            self._broker.later(left, self._overdue, sequence)
        else:
            self._broker.note("task", sequence, "overdue")
            self._again.append(sequence)
            self.deliver()

    def word(self, sequence: int, word: bytes) -> None:
        """Heed what somebody says about a delivery of that message."""
        what, _, rest = word.partition(b" ")
        if what in (b"", b"+ACK", b"+TERM"):
            if self._broker.weather.lag and what != b"+TERM":
                self._broker.later(4 * self._broker.weather.behind(), self._stream.delete, sequence)
                self.deleted(sequence)
            else:
                self._stream.delete(sequence)
        elif sequence not in self.pending:
            return
        elif what == b"+WPI":
            self.pending[sequence] = self._broker.time() + self._ack_wait
        elif sequence not in self._again:
            if rest:
                self._hold(sequence, float(rest[10:-1]) / 1e9)
            else:
                self._again.append(sequence)
                self.deliver()

    def deleted(self, sequence: int) -> None:
        self.pending.pop(sequence, None)
        self._delivered.pop(sequence, None)
        if sequence in self._again:
            self._again.remove(sequence)

    def added(self, stored: Stored) -> None:
        if self._pulls and matches(self._filter, stored.subject):
            self.deliver()

    def restarted(self) -> None:
        """What a killed server forgets: pulls, and how often a message was delivered (F18)."""
        self._pulls.clear()
        self._delivered.clear()
        for sequence in self.pending:
            self._hold(sequence, self._ack_wait)

    def _expired(self, pull: _Pull) -> None:
        if pull in self._pulls:
            self._pulls.remove(pull)
            left = {"Pending_Messages": pull.batch, "Pending_Bytes": 0}
            self.status(pull.inbox, 408, "Request Timeout", **left)

    def _beat(self, pull: _Pull) -> None:
        if pull not in self._pulls:
            return
        if not self._broker.listens(pull.inbox):
            self._pulls.remove(pull)
            return
        if self._broker.time() >= pull.spoke_at + pull.heartbeat * 0.99:
            self.status(pull.inbox, 100, "Idle Heartbeat")
        self._broker.later(pull.heartbeat, self._beat, pull)

    def info(self) -> Reply:
        return {**super().info(), "num_ack_pending": len(self.pending)}


class PushConsumer(Consumer):
    """The ephemeral one of an ordered reader: no acks, heartbeats, gone when nobody listens."""

    def __init__(self, broker: "Broker", stream: Stream, name: str, config: dict[str, Any]) -> None:
        super().__init__(broker, stream, name, config)
        self._inbox: str = config["deliver_subject"]
        self._heartbeat = config["idle_heartbeat"] / 1e9
        self._inactive = config["inactive_threshold"] / 1e9
        self._last: list[Stored] = []
        """Of the policy `last_per_subject`: what comes before all that is new."""
        self._spoke_at = self._heard_at = broker.time()
        if config.get("deliver_policy") == "last_per_subject":
            last = [list(there.values())[-1] for there in stream.by_subject.values()]
            last = [stored for stored in last if matches(self._filter, stored.subject)]
            self._last = sorted(last, key=lambda stored: stored.sequence)
            self._next = stream.last_sequence + 1
        else:
            self._next = config["opt_start_seq"]
        broker.later(self._heartbeat, self._beat)

    def begin(self) -> None:
        if not self.gone:
            self.deliver()

    def _left(self) -> int:
        return len(self._last) + super()._left()

    def deliver(self) -> None:
        if not self._broker.listens(self._inbox):
            return
        while self._last:
            stored = self._last.pop(0)
            if stored.sequence in self._stream.messages:
                self._deliver(stored)
        for stored in self._stream.following(self._next, self._filter):
            self._next = stored.sequence + 1
            self._deliver(stored)

    def _deliver(self, stored: Stored) -> None:
        self._spoke_at = self._broker.time()
        self._send(self._inbox, stored, 1)

    def added(self, stored: Stored) -> None:
        if matches(self._filter, stored.subject):
            self.deliver()

    def deleted(self, sequence: int) -> None:
        """What is not there any more is not delivered."""

    def _beat(self) -> None:
        if self.gone:
            return
        now = self._broker.time()
        if self._broker.listens(self._inbox):
            self._heard_at = now
            self.deliver()
            if now >= self._spoke_at + self._heartbeat * 0.99:
                numbers = {"Last_Consumer": self._sequence, "Last_Stream": self._next - 1}
                self.status(self._inbox, 100, "Idle Heartbeat", **numbers)
        elif now > self._heard_at + self._inactive:
            self._broker.drop(self._stream, self.name)
            return
        self._broker.later(self._heartbeat, self._beat)
