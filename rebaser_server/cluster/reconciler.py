"""Make a task for each change set that has work and no task (X1, X2). Deletes nothing (X4).

`UnfinishedScanner` finds change sets whose DVU is due: it reads the commit logs, a few commits at a
time (X2). `SubjectSlices` finds the subjects of a stream: all of them while they are few, else one
slice after the other. `UnsavedChangeSets` makes up for the checkpoints that runs of this process
left out to make room (X2b). `StrayRequests` moves requests whose subject names no change set to the
dead letters, where operators look: no Rebaser ever reads them, and they count against the limit of
all requests.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import ceil
from typing import Final, Never

import structlog

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import CANONICAL, ChangeSet
from rebaser_core.jetstream import (
    JetStream,
    JetStreamError,
    NatsUnreachable,
    StoredMessage,
    Unavailable,
    ordered_reader,
)
from rebaser_core.requests import ensure_task
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import CODE
from rebaser_server.cluster.membership import Membership
from rebaser_server.commit_log.log import UNFINISHED, UNSAVED
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.processor.application import Application
from rebaser_server.processor.dead_letters import (
    DIED_AT,
    REASON,
    SEQUENCE,
    STORED_AT,
    sendable_headers,
)
from rebaser_server.runtime.containment import contained, printable, repeat_every
from rebaser_server.runtime.tasks import for_each_concurrently
from rebaser_server.telemetry import metrics

_MAX_ENTRIES: Final = 10_000
"""Number of commits read in one scan: about a quarter of a second of processor time."""


class UnfinishedScanner:
    """A scan that goes round through the logs of all change sets, a part at a time.

    Each scan begins where the last one ended. So the cost of a scan does not depend on the number
    of change sets; only the time of a whole round does. Each Rebaser begins at a random place, so
    several find more than one does.
    """

    def __init__(
        self, js: JetStream, stream: str, has_room: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin at a random place.

        `has_room`: whether change sets that only lack a checkpoint count as unfinished, too.
        """
        self._js = js
        self._stream = stream
        self._has_room = has_room
        self._next = 0
        self.codes: dict[str, tuple[str, float]] = {}
        """Code in the last commit of each subject of the last scan, and when that was stored,
        in seconds since 1970."""

    async def scan(self, limit: int = _MAX_ENTRIES) -> set[str]:
        """Return the subjects whose last commit among up to `limit` next ones is unfinished.

        Later commits may say otherwise: see `is_unfinished`.
        """
        state = (await self._js.stream_info(self._stream)).state
        self.codes = {}
        if not state.messages:
            return set()
        first, last = state.first_seq, state.last_seq
        if not first <= self._next <= last:
            self._next = random.randint(first, last)
        start = self._next
        unfinished, left = await self._read(last, limit)
        if self._next > last:  # a round is over; older commits do not overrule later ones
            self._next, later = first, self.codes
            self.codes = {}
            unfinished |= (await self._read(start - 1, left))[0]
            self.codes |= later
        return unfinished

    async def _read(self, last: int, limit: int) -> tuple[set[str], int]:
        """Read on up to commit `last`; return the unfinished subjects and the rest of `limit`."""
        unfinished = set[str]()
        if self._next > last:
            return unfinished, limit
        reader = ordered_reader(self._js, self._stream, opt_start_seq=self._next, headers_only=True)
        async with reader:
            while limit and self._next <= last:
                message = await reader.next(idle_timeout=0)
                if message is None:
                    self._next = last + 1
                    break
                limit -= 1
                self._next = message.stream_sequence + 1
                self.codes[message.subject] = message.headers.get(CODE, ""), message.stored
                if self._tells_of_work(message.headers):
                    unfinished.add(message.subject)
                else:
                    unfinished.discard(message.subject)
        return unfinished, limit

    async def is_unfinished(self, subject: str) -> bool:
        """Whether the last commit on `subject` is unfinished, as the stream's leader has it."""
        message = await self._js.get_message(self._stream, last_by_subject=subject)
        return message is not None and self._tells_of_work(message.headers)

    def _tells_of_work(self, headers: Mapping[str, str]) -> bool:
        return UNFINISHED in headers or (UNSAVED in headers and self._has_room())


_FEW: Final = 20_000
"""Number of subjects that NATS lists in a few hundredths of a second. A longer list costs NATS that
time again for each 100,000, and this process's loop the time to decode it."""

_SLICE: Final = 20_000
"""Number of messages that are read at a time, without their payloads: half a second of processor
time."""

_TURN: Final = 200
"""Number of messages after which others have a turn on the loop."""


class SubjectSlices:
    """A look that goes round through a stream of many subjects, a slice at a time.

    The cost of a look does not depend on the number of messages; see `UnfinishedScanner`.
    """

    def __init__(self, js: JetStream, stream: str, *, few: int = _FEW, size: int = _SLICE) -> None:
        """Begin at a random place.

        `few`: number of subjects that are listed at once; `size`: messages of a slice.
        """
        self._js = js
        self._stream = stream
        self._few = few
        self._size = size
        self._next = 0

    async def next(self) -> Collection[str]:
        """Return the subjects of all messages, or of the next slice of them."""
        state = (await self._js.stream_info(self._stream)).state
        if state.num_subjects <= self._few:
            return await self._js.stream_subjects(self._stream)
        if not state.first_seq <= self._next <= state.last_seq:
            self._next = random.randint(state.first_seq, state.last_seq)
        return await self._read(state.first_seq)

    async def _read(self, first: int) -> set[str]:
        subjects = set[str]()
        reader = ordered_reader(self._js, self._stream, opt_start_seq=self._next, headers_only=True)
        async with reader:
            for number in range(self._size):
                if number % _TURN == 0:
                    await asyncio.sleep(0)
                message = await reader.next(idle_timeout=0)
                if message is None:
                    self._next = first
                    break
                subjects.add(message.subject)
                self._next = message.stream_sequence + 1
        return subjects


log: Final = structlog.get_logger()

_AT_ONCE: Final = 16
"""Number of tasks that are looked up at a time."""


class Reconciler:
    """Runs at the start and then once a period, somewhat early or late so that daemons spread.

    The cost of a round depends on the requests and tasks, not on the number of change sets, and is
    bounded: a round looks at a part if there are more than some thousand. Nearly all undone work
    has a request; a DVU is due without one only if another process removed the task and both died,
    so several rounds may pass until it is found.
    """

    def __init__(
        self,
        streams: Streams,
        period: float,
        paused: Callable[[ChangeSet], bool] = lambda _: False,
        has_room: Callable[[], bool] = lambda: False,
        few: int = _FEW,
        renewals: Application | None = None,
        may_renew: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run once in `period` seconds.

        `paused`: whether a change set gets no task (P3).

        `has_room`: whether slots are free for which no task waits, so that checkpoints may be
        made up for (X2b).
        `few`: change sets that are listed at once.
        `renewals`: has values computed anew that were computed with outdated code, while
        `may_renew` says so.
        """
        self._few = few
        self._streams = streams
        self._period = period
        self._paused = paused
        self._requests = SubjectSlices(streams.js, streams.requests_stream, few=few)
        self._renewals, self._may_renew = renewals, may_renew
        self._scanner = UnfinishedScanner(streams.js, streams.commits_stream, has_room)

    async def run(self) -> Never:
        """Reconcile until cancelled. A failure is logged; the next period tries again."""
        await repeat_every(self._period, self._reconcile, "reconciler", first_delay=0)

    async def _reconcile(self) -> None:
        result = "failed"
        try:
            with metrics.RECONCILER_SECONDS.time():
                published = await self.reconcile()
            result = "done"
        finally:
            metrics.RECONCILER_LOOKS.labels(result).inc()
        if published:
            metrics.RECONCILED.inc(published)
            log.info("missing tasks created", tasks=published)

    async def reconcile(self) -> int:
        """Make a task for each change set that has a request and no task; return their number.

        A round may look at a part of them. Each due DVU that the round's scan finds gets a task,
        too. May be repeated, and run in several processes at once: a needless task costs one empty
        run.
        """
        tasks = await self._tasks()
        without_task = sorted(await self._with_requests(tasks) | await self._unfinished(tasks))
        for change_set in without_task:
            with contained("change set", passing=(JetStreamError,), change_set=change_set):
                await ensure_task(self._streams, change_set)
        if self._renewals is not None and self._may_renew():
            await self._renew(self._renewals, self._scanner.codes)
        return len(without_task)

    async def _renew(self, renewals: Application, codes: Mapping[str, tuple[str, float]]) -> None:
        """Ask for what was computed with outdated code, as far as the last scan shows."""
        outdated = await renewals.outdated_codes({code for code, _ in codes.values() if code})
        for subject, (code, stored) in codes.items() if outdated else ():
            if code in outdated:
                for change_set in await self._change_sets([subject], self._streams.commits_stream):
                    with contained("change set", passing=(JetStreamError,), change_set=change_set):
                        await renewals.renew(change_set, code, stored)

    async def _tasks(self) -> Collection[str] | None:
        """Return the subjects of all tasks; None if they are too many to list."""
        stream = self._streams.tasks_stream
        if (await self._streams.js.stream_info(stream)).state.num_subjects > self._few:
            return None
        return await self._streams.js.stream_subjects(stream)

    async def _with_requests(self, tasks: Collection[str] | None) -> set[ChangeSet]:
        """Return change sets that have requests and no task, of those that this round looks at.

        Subjects are compared as text: a hundred thousand with a task need no parsing.
        """
        streams = self._streams
        requests, task_prefix = streams.join("rebaser.requests."), streams.join("rebaser.tasks.")
        with_requests = await self._requests.next()
        without_task = [
            s
            for s in with_requests
            if tasks is None or f"{task_prefix}{s.removeprefix(requests)}.process" not in tasks
        ]
        change_sets = await self._change_sets(without_task, streams.requests_stream)
        return set(change_sets) if tasks is not None else await self._lacking_task(change_sets)

    async def _change_sets(self, subjects: Iterable[str], stream: str) -> list[ChangeSet]:
        """Return the change sets of the subjects that are not paused, in order."""
        change_sets = set()
        for number, subject in enumerate(subjects):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            with contained("subject", stream=stream, subject=subject):
                change_sets.add(self._streams.parse_change_set(subject))
        return sorted(each for each in change_sets if not self._paused(each))

    async def _lacking_task(self, change_sets: Iterable[ChangeSet]) -> set[ChangeSet]:
        """Return the change sets without a task, asked for one by one."""
        lacking = set[ChangeSet]()

        async def look(change_set: ChangeSet) -> None:
            stream, subject = self._streams.tasks_stream, self._streams.task(change_set)
            if await self._streams.js.get_message(stream, last_by_subject=subject) is None:
                lacking.add(change_set)

        await for_each_concurrently(change_sets, look, _AT_ONCE)
        return lacking

    async def _unfinished(self, tasks: Collection[str] | None) -> set[ChangeSet]:
        """Return the change sets whose control record is unfinished and that have no task."""
        streams = self._streams
        change_sets = await self._change_sets(await self._scanner.scan(), streams.commits_stream)
        if tasks is None:
            change_sets = sorted(await self._lacking_task(change_sets))
        return {
            change_set
            for change_set in change_sets
            if (tasks is None or streams.task(change_set) not in tasks)
            # S-4: the scan may have ended before the last commit, so the leader is asked for that.
            and await self._scanner.is_unfinished(streams.commits(change_set))
        }


CHECK_EVERY: Final = 1.0
"""Seconds between two checks for free slots."""

_SHARE: Final = 4
"""Reciprocal of the part of free slots that late checkpoints may use: the others are for new
requests."""


class UnsavedChangeSets:
    """The change sets that this process released without a checkpoint of their last requests.

    The reconciler finds those whose states this process does not keep any more.
    """

    def __init__(
        self,
        streams: Streams,
        states: StateCache,
        age: float,
        free: Callable[[], int],
    ) -> None:
        """Begin without change sets.

        `age`: seconds since the release; `free` counts the slots that no task waits for.
        """
        self._streams = streams
        self._states = states
        self._age = age
        self._free = free

    async def run(self) -> Never:
        """Make tasks for these change sets while slots are free, until cancelled."""
        await repeat_every(CHECK_EVERY, self._check, "unsaved")

    async def _check(self) -> None:
        due = list(islice(self._states.unsaved(self._age), ceil(self._free() / _SHARE)))
        for change_set in due:
            await ensure_task(self._streams, change_set)
            self._states.on_task(change_set)


_ID: Final = CANONICAL[1:-1]
_is_plain: Final = re.compile("[0-9A-Za-z_-]+").fullmatch


def stray_letters_subject(subjects: Subjects) -> str:
    """Return the subject of dead letters of stray requests, which names no change set either."""
    return subjects.join("rebaser", "dead-letters", "stray", "requests")


class StrayRequests:
    """Moves stray requests; two Rebasers may do it at once."""

    def __init__(self, streams: Streams, members: Membership, few: int = _FEW) -> None:
        """Look at slices of the requests. `few`: number of subjects that are listed at once."""
        self._streams = streams
        self._stream = streams.requests_stream
        self._members = members
        self._slices = SubjectSlices(streams.js, self._stream, few=few)
        ids = re.escape(streams.join("rebaser.requests.")) + rf"{_ID}\.{_ID}"
        self._is_sound: Final = re.compile(ids).fullmatch  # much faster than to parse it

    async def run(self, period: float) -> Never:
        """Move stray requests about once in `period` seconds, until cancelled."""
        await repeat_every(period, self._round, "strays", first_delay=0)

    async def _round(self) -> None:
        if self._members.rank() == 0:
            await self.move()

    async def move(self) -> None:
        """Move all stray requests, or those in this slice. May be cancelled and repeated."""
        names = await self._slices.next()
        strays = {name for name in names if not self._is_sound(name)}
        for pattern in sorted({_pattern(name) for name in strays if self._is_stray(name)}):
            sequence = 0
            while message := await self._streams.js.get_message(
                self._stream, sequence=sequence + 1, next_by_subject=pattern
            ):
                sequence = message.sequence
                if self._is_stray(message.subject):
                    with contained(
                        "request", passing=(NatsUnreachable, Unavailable), sequence=sequence
                    ):
                        await self._move(message)

    def _is_stray(self, subject: str) -> bool:
        try:
            self._streams.parse_change_set(subject)
        except UnknownSubject:
            return True
        return False

    async def _move(self, message: StoredMessage) -> None:
        """Copy the request, cut to the size of a letter, and delete it once the copy is stored."""
        subject, letter_id = stray_letters_subject(self._streams), f"stray-{message.sequence}"
        headers = sendable_headers(message.headers) | {
            REASON: f"its subject {ascii(message.subject)[:200]} names no change set",
            SEQUENCE: str(message.sequence),
            DIED_AT: datetime.now(UTC).isoformat(),
            STORED_AT: message.time.isoformat(),
        }
        room = self._streams.js.message_limits.max_payload_for(
            subject, {**headers, "Nats-Msg-Id": letter_id}
        )
        payload = message.payload[: max(0, room)]
        # The copy comes first, else a crash in between would lose the request. If two Rebasers move
        # the request at one moment, NATS stores one copy, since both have one id.
        await self._streams.js.publish(subject, payload, headers=headers, message_id=letter_id)
        await self._streams.js.delete_message(self._stream, message.sequence)
        log.error(
            "request dead-lettered", subject=printable(message.subject), sequence=message.sequence
        )


def _pattern(subject: str) -> str:
    """Return a filter that matches the subject: a server reports some bytes differently."""
    tokens = subject.split(".")
    return ".".join(token if _is_plain(token) else "*" for token in tokens)
