"""Which Rebasers have a connection, by asking each on a subject of its own (F6).

A Rebaser subscribes to its subject as long as it runs. When its process ends, the server drops
the subscription with the connection, and refuses every later check at once: nothing listens. A
process that is frozen keeps its connection: its checks are neither answered nor refused.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream import NatsUnreachable, NoResponders
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.subjects import Subjects

log: Final = structlog.get_logger()

ANSWERS: Final = "-p"
"""How the name of an instance ends that answers checks; those of older releases do not."""

CHECK_EVERY: Final = 0.2  # seconds
CHECK_TIMEOUT: Final = 0.3  # seconds
SETTLING_TIME: Final = 3.5
"""Seconds after an own reconnect in which no refusal counts: others may be reconnecting, too."""

SECOND_CHECK_AFTER: Final = 0.15
"""Seconds between a refusal and the check that confirms it."""
_APART: Final = 0.9 * SECOND_CHECK_AFTER
"""Seconds between two refusals that count as two."""
_FIRST_CHECKS: Final = 3
"""Checks of a Rebaser of itself, of which one must be answered."""
_PRESENT: Final = b"present"


@asynccontextmanager
async def present(nc: Client, subjects: Subjects, name: str) -> AsyncIterator[str]:
    """Answer checks while the body runs; yields the name that this instance then has.

    That is `name`, with the ending `ANSWERS` if checks reach it: permissions that were made for an
    older release keep them away, and the others would take it for dead.
    """

    async def answer(check: Msg) -> None:
        with suppress(nats.errors.Error, OSError):
            await check.respond(_PRESENT)

    instance = name + ANSWERS
    async with subscribed(nc, _subject(subjects, instance), answer):
        if await _is_reached(Connection.of(nc), _subject(subjects, instance)):
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
    """Checks of other members, and which of them were refused."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self._link = Connection.of(nc)
        self._subjects = subjects
        self._clock = asyncio.get_running_loop().time
        self._refused_since: dict[str, float] = {}
        """When the first check was sent that was refused; no sign of life has come since."""
        self._absent: set[str] = set()
        self._reconnects = self._link.reconnects
        self._settled_at = self._clock()

    async def check(self, member: str) -> None:
        """Ask the member, if it is one that answers; returns within `CHECK_TIMEOUT`."""
        if not (can_answer(member) and self._is_settled()):
            return
        sent = self._clock()
        try:
            await self._link.request(_subject(self._subjects, member), timeout=CHECK_TIMEOUT)
        except NoResponders:
            if self._is_settled() and sent - self._refused_since.setdefault(member, sent) > _APART:
                self._absent.add(member)
        except NatsUnreachable:
            pass  # frozen, slow, or cut off from us
        else:
            self.clear(member)

    async def confirm_absence(self, member: str) -> bool:
        """Ask the member twice; whether both checks were refused without a sign of life."""
        await self.check(member)
        if self.is_doubted(member):
            await asyncio.sleep(SECOND_CHECK_AFTER)
            await self.check(member)
        return self.is_absent(member)

    def is_doubted(self, member: str) -> bool:
        """Whether the last check was refused."""
        return self._is_settled() and member in self._refused_since

    def is_absent(self, member: str) -> bool:
        """Whether two checks in a row were refused, without a sign of life between them."""
        return self._is_settled() and member in self._absent

    def clear(self, member: str) -> None:
        """Forget the refusals: the member was heard, or is not of interest any more."""
        self._refused_since.pop(member, None)
        self._absent.discard(member)

    def _is_settled(self) -> bool:
        """Whether refusals count: not for a while after this process was not connected itself."""
        if self._link.reconnects != self._reconnects or not self._link.is_connected:
            self._reconnects = self._link.reconnects
            self._settled_at = self._clock() + SETTLING_TIME
            self._refused_since.clear()
            self._absent.clear()
        return self._clock() >= self._settled_at


def can_answer(member: str) -> bool:
    """Whether the member is of a release that answers checks, by its name."""
    return member.endswith(ANSWERS)
