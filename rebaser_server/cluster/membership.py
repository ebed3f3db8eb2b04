"""Living Rebasers, by their heartbeats and by presence checks.

Membership is only a hint, over plain NATS: a presumption may be wrong at any time, and the fence is
the commit log. A living Rebaser that is presumed dead is fenced.

A presence check asks a Rebaser on its own subject, and shows whether it has a connection (F6). A
Rebaser subscribes to the subject as long as it runs. When its process ends, the server drops the
subscription with the connection, and refuses every later check at once: nothing listens. A process
that is frozen keeps its connection: its checks are neither answered nor refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Never

import nats.errors
import structlog
from nats.aio.msg import Msg

from rebaser_core.jetstream import NatsUnreachable, NoResponders, deadlines
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.jetstream.fast_client import inline_callback
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.runtime.containment import contained, repeat_every
from rebaser_server.runtime.tasks import TaskGroup

log: Final = structlog.get_logger()

ANSWERS: Final = "-p"
"""Ending of the name of an instance that checks reach."""

CHECK_EVERY: Final = 0.2  # seconds
CHECK_TIMEOUT: Final = 0.3  # seconds
_SETTLING_TIME: Final = 3.5
"""Seconds after a reconnect of this process in which no refusal counts: others may reconnect,
too."""

_SECOND_CHECK_AFTER: Final = 0.15
"""Seconds between a refusal and the check that confirms it."""
_APART: Final = 0.9 * _SECOND_CHECK_AFTER
"""Minimum number of seconds between two refusals that count as two."""
_FIRST_CHECKS: Final = 3
"""Number of a Rebaser's checks of itself, of which one must be answered."""
_PRESENT: Final = b"present"


@asynccontextmanager
async def present(streams: Streams, name: str) -> AsyncIterator[str]:
    """Answer checks while the body runs; yield the name that this instance then has.

    The name has the ending `ANSWERS` if checks reach the instance: if permissions keep them away,
    others must not take it for dead.
    """

    async def answer(check: Msg) -> None:
        with suppress(nats.errors.Error, OSError):
            await check.respond(_PRESENT)

    instance, nc = name + ANSWERS, streams.js.nc
    subject = _subject(streams, instance)
    async with subscribed(nc, subject, answer):
        if await _is_reached(Connection.of(nc), subject):
            yield instance
        else:
            log.warning(
                "presence checks not answered", remedy="allow the subject rebaser.presence.*"
            )
            yield name


def _subject(subjects: Subjects, instance: str) -> str:
    return subjects.join("rebaser", "presence", instance)


async def _is_reached(link: Connection, subject: str) -> bool:
    for _ in range(_FIRST_CHECKS):
        try:
            await link.request(subject, timeout=CHECK_TIMEOUT)
        except NoResponders:
            return False
        except NatsUnreachable:
            continue
        return True
    return False


class PresenceChecks:
    def __init__(self, streams: Streams) -> None:
        self._link = streams.js.connection
        self._streams = streams
        self._clock = asyncio.get_running_loop().time
        self._refused_since: dict[str, float] = {}
        """Time of the first refused check of each member since its last sign of life."""
        self._absent: set[str] = set()
        self._reconnects = self._link.reconnects
        self._settled_at = self._clock()

    async def check(self, member: str) -> None:
        """Ask the member, if it answers checks; return within `CHECK_TIMEOUT`."""
        if not (_can_answer(member) and self._is_settled()):
            return
        sent = self._clock()
        try:
            await self._link.request(_subject(self._streams, member), timeout=CHECK_TIMEOUT)
        except NoResponders:
            # F6: checks of several callers may be on their way at once, and their refusals count as
            # one. The connection may have been lost since the check was sent, so `_is_settled` is
            # asked again.
            if self._is_settled() and sent - self._refused_since.setdefault(member, sent) > _APART:
                self._absent.add(member)
        except NatsUnreachable:
            pass  # frozen, slow, or cut off from us
        else:
            self.clear(member)

    async def confirm_absence(self, member: str) -> bool:
        """Ask the member twice; return whether both checks were refused without a sign of life."""
        await self.check(member)
        if self.is_doubted(member):
            await asyncio.sleep(_SECOND_CHECK_AFTER)
            await self.check(member)
        return self.is_absent(member)

    def is_doubted(self, member: str) -> bool:
        """Whether the last check of the member was refused."""
        return self._is_settled() and member in self._refused_since

    def is_absent(self, member: str) -> bool:
        """Whether two checks in a row were refused without a sign of life between them."""
        return self._is_settled() and member in self._absent

    def clear(self, member: str) -> None:
        """Forget the refusals: the member was heard, or does not matter any more."""
        self._refused_since.pop(member, None)
        self._absent.discard(member)

    def _is_settled(self) -> bool:
        """Whether refusals count: not for a while after this process was not connected."""
        if self._link.reconnects != self._reconnects or not self._link.is_connected:
            self._reconnects = self._link.reconnects
            self._settled_at = self._clock() + _SETTLING_TIME
            self._refused_since.clear()
            self._absent.clear()
        return self._clock() >= self._settled_at


def _can_answer(member: str) -> bool:
    """Whether checks reach the member, by its name."""
    return member.endswith(ANSWERS)


HEARTBEAT_EVERY: Final = 0.3  # seconds
_HANDOVER_HEARTBEAT_EVERY: Final = 0.1
"""Seconds between heartbeats after a Rebaser left: the others must know who takes its tasks."""
_HANDOVER_TIME: Final = 3.0  # seconds that a handover may take
PRESUMED_DEAD: Final = 3.5
"""Seconds of silence after which a Rebaser is presumed dead. A frozen or partitioned Rebaser loses
its tasks after this, which does no harm; a shorter time would make that common on a busy
machine."""
OVERDUE: Final = HEARTBEAT_EVERY + 0.1
"""Seconds of silence after which a member is asked, and presumed dead if it is absent (F6)."""
_FORGET_AFTER: Final = 60.0
"""Seconds of silence after which a member is dropped from the list."""

_TICK: Final = 0.01  # seconds by which a sleep may end early
_LEFT: Final = b"left"
_DIGITS: Final = 9
"""Digits of the largest believed count of another member."""


class Membership:
    def __init__(
        self, streams: Streams, instance: str, busy: Callable[[], int] = lambda: 0
    ) -> None:
        """`instance` must be new for each start of a process: it names the owner in the log (F4).

        `busy` counts the tasks that this process works on; heartbeats carry it to the others.
        """
        self._nc = streams.js.nc
        self._subject = streams.join("rebaser.members")
        self.instance = instance
        self._clock = asyncio.get_running_loop().time
        self._last_heard: dict[str, float] = {}
        self._own_busy = busy
        self._busy: dict[str, int | None] = {}
        self._left = asyncio.Event()
        self._last_left = -_HANDOVER_TIME
        self._checks = PresenceChecks(streams)
        self._found_absent = asyncio.Event()

    async def heartbeat(self) -> Never:
        try:
            # Inline, so that a heartbeat is heard before the refusal of a later check.
            receive = inline_callback(self._on_message)
            async with subscribed(self._nc, f"{self._subject}.*", receive):
                # If a heartbeat fails, the next one comes no later: silence means death.
                await repeat_every(
                    HEARTBEAT_EVERY,
                    self._heartbeat,
                    "heartbeats",
                    first_delay=0,
                    pause=lambda _: self._pause(),
                )
        finally:
            # The tasks are given back before this (W14). An unannounced departure would pass for a
            # death, and the others would replace tasks (F1, F7).
            await self._publish(_LEFT)

    async def _heartbeat(self) -> None:
        await self._publish(b"%d" % self._own_busy())
        # A departure during the publish is not lost: `_pause` is short then, as in each handover.
        self._left.clear()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with deadlines.within(
                _HANDOVER_HEARTBEAT_EVERY if self.in_handover() else HEARTBEAT_EVERY
            ):
                await self._left.wait()

    async def _publish(self, what: bytes) -> None:
        with suppress(nats.errors.Error, OSError):
            await self._nc.publish(f"{self._subject}.{self.instance}", what)

    def _on_message(self, message: Msg) -> None:
        member = message.subject.rpartition(".")[2]
        self._checks.clear(member)
        if message.data == _LEFT:
            self._last_heard.pop(member, None)
            self._last_left = self._clock()
            self._left.set()
        else:
            self._last_heard[member] = self._clock()
            count = message.data
            counts = count.isdigit() and len(count) <= _DIGITS
            self._busy[member] = int(count) if counts else None

    async def check_presence(self) -> Never:
        """Check one neighbour, and at once each member in doubt, until cancelled (F6).

        Each member is the neighbour of one other, so all of them together make as many checks as
        there are members.
        """
        async with TaskGroup() as group:

            async def check_presence() -> None:
                for member in self._to_be_checked():  # a check that hangs delays no other
                    group.create_task(self._check_presence(member))

            await repeat_every(CHECK_EVERY, check_presence, "presence", jitter=0, max_backoff=2)

    def _to_be_checked(self) -> list[str]:
        suspected, now = self.suspected(), self._clock()
        others = {m for m in self._last_heard if m != self.instance and _can_answer(m)} - suspected
        in_doubt = {
            m for m in others if now - self._last_heard[m] > OVERDUE or self._checks.is_doubted(m)
        }
        neighbour = self._ring_from(self.instance, others)[:1]
        return sorted(in_doubt.union(neighbour))  # in the same order for the same seed

    async def _check_presence(self, member: str) -> None:
        with contained("presumption", member=member):
            # The member may leave while it is asked. Then there is no time of its last heartbeat.
            if await self._checks.confirm_absence(member) and member in self._last_heard:
                overdue_at = self._last_heard[member] + OVERDUE
                # F6: the heartbeat must be overdue, too. A look before that would find no suspect.
                await asyncio.sleep(overdue_at + _TICK - self._clock())
                self._found_absent.set()

    async def await_absence(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as an absent member is presumed dead."""
        with suppress(TimeoutError):
            async with deadlines.within(seconds):
                await self._found_absent.wait()
        self._found_absent.clear()

    async def is_gone(self, instance: str) -> bool:
        """Whether the process of that instance has ended, by one check (L1).

        A frozen or slow process is not gone. One whose name says that it answers no checks is gone
        unless it was heard lately.
        """
        if instance == self.instance:
            return False
        if not _can_answer(instance):
            return not self.is_known(instance) or instance in self.suspected()
        await self._checks.check(instance)
        return self._checks.is_doubted(instance)

    async def confirm_absence(self, member: str) -> bool:
        """Ask a member that was not heard; return whether it is surely not connected."""
        return _can_answer(member) and await self._checks.confirm_absence(member)

    def suspected(self) -> set[str]:
        """Return the members presumed dead; none while this member does not hear itself."""
        # A process that does not hear itself is cut off: the silence of the others is its own.
        if not self.hears_itself():
            return set()
        now = self._clock()
        for member in [m for m, heard in self._last_heard.items() if now - heard > _FORGET_AFTER]:
            del self._last_heard[member]
            self._busy.pop(member, None)
            self._checks.clear(member)
        return {
            m
            for m, heard in self._last_heard.items()
            if now - heard > (OVERDUE if self._checks.is_absent(m) else PRESUMED_DEAD)
        }

    def hears_itself(self) -> bool:
        """Whether this process hears its own heartbeats."""
        return self._clock() - self._last_heard.get(self.instance, 0.0) < PRESUMED_DEAD / 2

    def is_known(self, member: str) -> bool:
        """Whether the member was heard lately and has not left."""
        return member in self._last_heard

    def is_alive(self, member: str) -> bool:
        """Whether the member is known and not presumed dead."""
        return self.is_known(member) and member not in self.suspected()

    def alive(self) -> int:
        """Return the number of living members, this one included."""
        return len((self._last_heard.keys() | {self.instance}) - self.suspected())

    def busy_elsewhere(self) -> int | None:
        """Return the number of the others' tasks, by their heartbeats; None if one does not say."""
        counts = [
            self._busy[m] for m in self._last_heard.keys() - self.suspected() - {self.instance}
        ]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def in_handover(self) -> bool:
        """Whether a member left a moment ago, so that its tasks may not all be taken yet."""
        return self._clock() - self._last_left < _HANDOVER_TIME

    def is_eldest(self) -> bool:
        """Whether no living member was started before this one, by their clocks."""
        alive = self._last_heard.keys() - self.suspected() - {self.instance}
        return all(_started(self.instance) < _started(member) for member in alive)

    def is_youngest(self) -> bool:
        """Whether no living member was started after this one, by their clocks."""
        alive = self._last_heard.keys() - self.suspected() - {self.instance}
        return all(_started(self.instance) > _started(member) for member in alive)

    def rank(self) -> int:
        """Return this member's place among the living, which act one after the other."""
        alive = sorted(self._last_heard.keys() - self.suspected() - {self.instance})
        return sum(member < self.instance for member in alive)

    def turn(self, dead: str) -> int:
        """Return this member's place among those that act on a death: its checker is first."""
        alive = (self._last_heard.keys() | {self.instance}) - self.suspected() - {dead}
        return self._ring_from(dead, alive)[::-1].index(self.instance)

    @staticmethod
    def _ring_from(member: str, others: set[str]) -> list[str]:
        """Return the others in the order of their ring, from the one behind `member` on."""
        return sorted(others, key=lambda other: (other < member, other))


def _started(member: str) -> str:
    """Return the start of a member's process: the first part of the id after its name."""
    return member.rpartition("/")[2]
