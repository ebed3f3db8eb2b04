"""Waiting requests, tasks and dead letters, as NATS counts them."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rebaser_core.errors import UnknownSubject
from rebaser_core.jetstream import JetStream, StreamState
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.processor.dead_letters import DIED_AT, REASON

SHOWN: Final = 20
"""Change sets, and dead letters, that are listed at most."""
MOST_SUBJECTS: Final = 10_000
"""If more change sets wait, none is listed: a read must stay cheap."""
FRESH: Final = 1.0  # seconds for which a read is cached


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues at one moment; all ages in seconds."""

    requests: int = 0
    last_request: int = 0
    """The number of the latest request that was ever stored; 0 before the first."""
    oldest_age: float = 0.0
    change_sets_waiting: int = 0
    deepest: list[dict[str, Any]] = field(default_factory=list)
    tasks_waiting: int = 0
    tasks_in_hand: int = 0
    dead_letters: int = 0
    latest_dead: list[dict[str, Any]] = field(default_factory=list)


class QueueWatch:
    """Reads the queues from NATS at most once a second."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._queues = Queues()
        self._dead = (0, 0)
        """The last number and the count of the dead letters that are listed."""

    async def look(self) -> Queues:
        """The queues as of the last second.

        Raises:
            NatsUnreachable, ApiError: NATS does not answer.
        """
        async with self._looking:
            if time.monotonic() - self._looked >= FRESH:
                self._queues = await self._read()
                self._looked = time.monotonic()
            return self._queues

    async def _read(self) -> Queues:
        subjects = self._subjects
        requests, consumer, dead = await asyncio.gather(
            self._js.stream_info(subjects.requests_stream),
            self._js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER),
            self._js.stream_info(subjects.dead_letters_stream),
        )
        state = requests.state
        return Queues(
            requests=state.messages,
            last_request=state.last_seq,
            oldest_age=round(_seconds_since(state.first_ts), 1) if state.messages else 0.0,
            change_sets_waiting=state.num_subjects,
            deepest=await self._deepest(state.num_subjects),
            tasks_waiting=consumer.num_pending,
            tasks_in_hand=consumer.num_ack_pending,
            dead_letters=dead.state.messages,
            latest_dead=await self._latest_dead(dead.state),
        )

    async def _deepest(self, count: int) -> list[dict[str, Any]]:
        if not 0 < count <= MOST_SUBJECTS:
            return []
        stream = self._subjects.requests_stream
        depths = await self._js.stream_subjects(stream)
        deepest = sorted(depths.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
        ages = await asyncio.gather(*(self._age_of(subject) for subject, _ in deepest))
        return [
            {**_named(self._subjects, subject), "requests": depth, "oldestSeconds": age}
            for (subject, depth), age in zip(deepest, ages, strict=True)
        ]

    async def _age_of(self, subject: str) -> float:
        message = await self._js.get_message(
            self._subjects.requests_stream, sequence=1, next_by_subject=subject
        )
        return 0.0 if message is None else round(_seconds_since(message.time), 1)

    async def _latest_dead(self, state: StreamState) -> list[dict[str, Any]]:
        if state.messages == 0:
            return []
        last, seen = state.last_seq, (state.last_seq, state.messages)
        if seen == self._dead:
            return self._queues.latest_dead
        numbers = range(last, max(state.first_seq - 1, last - SHOWN), -1)
        stream = self._subjects.dead_letters_stream
        letters = await asyncio.gather(*(self._js.get_message(stream, sequence=n) for n in numbers))
        self._dead = seen
        return [
            {
                **_named(self._subjects, letter.subject),
                "sequence": letter.sequence,
                "at": letter.headers.get(DIED_AT),
                "reason": letter.headers.get(REASON, ""),
            }
            for letter in letters
            if letter is not None
        ]


def _named(subjects: Subjects, subject: str) -> dict[str, str]:
    try:
        change_set = subjects.parse_change_set(subject)
    except UnknownSubject:
        return {"workspace": "", "changeSet": subject}
    return {"workspace": str(change_set.workspace_id), "changeSet": str(change_set.change_set_id)}


def _seconds_since(moment: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())
