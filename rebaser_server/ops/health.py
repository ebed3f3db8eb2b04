"""The health of this process: its event loop runs, and NATS answers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Never

from nats.aio.client import Client

from rebaser_core.jetstream.connection.connection import Connection
from rebaser_server.runtime.concurrency import Shutdown
from rebaser_server.telemetry import metrics

MEASURE_INTERVAL: Final = 0.5  # seconds
ROUND_TRIP_TIMEOUT: Final = 2.0  # seconds, for the round trip to NATS
UNHEALTHY_AFTER: Final = 60.0
"""Seconds without NATS after which a restart is worth trying; the client reconnects before that."""


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict and its reasons."""

    ok: bool
    reasons: dict[str, str]


class HealthMonitor:
    """Measures the lag of the event loop, and checks NATS on request."""

    def __init__(self, nc: Client, shutdown: Shutdown) -> None:
        self._nc = nc
        self._shutdown = shutdown
        self._answered = time.monotonic()
        self.lag = 0.0
        """Seconds by which the loop was late at the last measurement."""

    async def measure_lag(self) -> Never:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.monotonic() + MEASURE_INTERVAL
            await asyncio.sleep(MEASURE_INTERVAL)
            self.lag = max(0.0, time.monotonic() - due)
            metrics.LOOP_LAG.observe(self.lag)

    async def alive(self) -> Health:
        """Whether the process is alive; the event loop is, since this returns.

        All parts of the daemon run in one task group: if one fails, the process ends.
        """
        answers = await self._nats_answers()
        away = time.monotonic() - self._answered
        return Health(
            away < UNHEALTHY_AFTER,
            {
                "eventLoop": f"late by {self.lag:.3f} s",
                "nats": "answers" if answers else f"has not answered for {away:.0f} s",
            },
        )

    async def ready(self) -> Health:
        """Whether the daemon takes tasks."""
        if self._shutdown.is_set:
            return Health(ok=False, reasons={"shutdown": "requested"})
        answers = await self._nats_answers()
        return Health(answers, {"nats": "answers" if answers else self._why_not()})

    def _why_not(self) -> str:
        error = None if self._nc.is_connected else self._nc.last_error
        return "does not answer" if error is None else f"does not answer: {error}"

    async def _nats_answers(self) -> bool:
        link = Connection.of(self._nc)
        answers = link.is_connected and await link.ping(ROUND_TRIP_TIMEOUT)
        if answers:
            self._answered = time.monotonic()
        return answers
