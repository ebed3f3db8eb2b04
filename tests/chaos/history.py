"""What happened in a run: plain events with a time, kept as JSON lines to be judged again."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """What an event is about; its data differ by kind."""

    SENT = "sent"  # request, change_set, batch, expected outcomes, poison: before its first try
    STORED = "stored"  # request, change_set, sequence, duplicate: the server said so
    UNKNOWN = "unknown"  # request, change_set, why: the client never learned whether it is stored
    REPLY = "reply"  # request, change_set, ok, commit, message
    NO_REPLY = "no reply"  # request, change_set: asked again at rest, and still not answered
    COMMIT = "commit"  # change_set, line, commit: a line of the log, as it was written
    DEAD_LETTER = "dead letter"  # change_set, sequence of the original, reason
    ACTIVITY = "activity"  # change_set, activity, request, details
    TASK = "task"  # daemon, delivery, word: it settled that one, or got another of its numbers
    RUN = "run"  # daemon, change_set, delivery, told: what a daemon says of its work on it
    DELETE = "delete"  # stream, sequence: somebody asked for it
    PURGE = "purge"  # stream, asked: the body of the question
    DAEMON = "daemon"  # name, what (started, killed, frozen, exited, …), older
    IDLE_TASKS = "idle tasks"  # change_set, tasks, lines: what such tasks added to the log
    CALLS = "calls"  # count: of the function that counts them
    MEMORY = "memory"  # name, rss: octets that a daemon holds at the end
    FAULT = "fault"  # fault, target, seconds, phase: begins or is over
    UNFORESEEN = "unforeseen"  # daemon, event, exception: an error that nobody meant to happen
    HELD = "held"  # daemon, seconds, what: a turn of its event loop took so much processor time
    WAIT = "wait"  # what is left, and how many were settled: it waits for rest, and is not stuck
    REST = "rest"  # what is left in the streams at the end
    RECORD = "record"  # change_set, record: what is registered of a branch at the end
    VALUES = "values"  # change_set, values: what the change set says it is at the end
    ACCOUNT = "account"  # change_set, key, state, sending, ticks: of a bank's account at the end
    TABLES = "tables"  # tables: their number at the end; left: what is left beside them


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """Seconds since the run began."""
    kind: Kind
    data: dict[str, Any]


@dataclass(slots=True)
class History:
    """The events of one run in the order in which they were seen."""

    events: list[Event] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 4)

    def add(self, kind: Kind, **data: Any) -> None:
        self.events.append(Event(self.now(), kind, data))

    def of(self, *kinds: Kind) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds)

    def save(self, path: Path) -> None:
        lines = (json.dumps([e.at, e.kind, e.data], separators=(",", ":")) for e in self.events)
        path.write_text("".join(f"{line}\n" for line in lines))

    @classmethod
    def load(cls, path: Path) -> "History":
        lines = map(json.loads, path.read_text().splitlines())
        return cls([Event(at, Kind(kind), data) for at, kind, data in lines])
