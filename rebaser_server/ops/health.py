"""Whether this process is well: its event loop turns, and NATS answers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Never

from nats.aio.client import Client

from rebaser_core.jetstream.connection.connection import Connection
from rebaser_server.runtime.concurrency import Shutdown
from rebaser_server.telemetry import metrics

BEAT_EVERY: Final = 0.5  # seconds
ANSWER_WITHIN: Final = 2.0  # seconds, for NATS, when asked after our health
UNWELL_AFTER: Final = 60.0
"""Seconds without NATS after which a restart is worth trying; reconnecting is tried before."""


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict and what it rests on."""

    ok: bool
    reasons: dict[str, str]


class Pulse:
    """Keeps time; asked, it looks."""

    def __init__(self, nc: Client, shutdown: Shutdown) -> None:
        self._nc = nc
        self._shutdown = shutdown
        self._answered = time.monotonic()
        self.lag = 0.0
        """Seconds by which the loop was late at its last beat."""

    async def beat(self) -> Never:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.monotonic() + BEAT_EVERY
            await asyncio.sleep(BEAT_EVERY)
            self.lag = max(0.0, time.monotonic() - due)
            metrics.LOOP_LAG.observe(self.lag)

    async def alive(self) -> Health:
        """Whether to leave the process running: that this returns shows that its loop turns.

        Every part of the main loop runs in one task group; had one ended, so had the process.
        """
        answers = await self._nats_answers()
        away = time.monotonic() - self._answered
        return Health(
            away < UNWELL_AFTER,
            {
                "eventLoop": f"late by {self.lag:.3f} s",
                "nats": "answers" if answers else f"has not answered for {away:.0f} s",
            },
        )

    async def ready(self) -> Health:
        """Whether it takes tasks now."""
        if self._shutdown.is_set:
            return Health(ok=False, reasons={"shutdown": "asked for"})
        answers = await self._nats_answers()
        return Health(answers, {"nats": "answers" if answers else "does not answer"})

    async def _nats_answers(self) -> bool:
        link = Connection.of(self._nc)
        answers = link.is_connected and await link.ping(ANSWER_WITHIN)
        if answers:
            self._answered = time.monotonic()
        return answers
