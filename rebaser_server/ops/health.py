"""The health of this process: its loop runs, NATS answers, the store takes files, Spark starts."""

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Final, Never
from uuid import uuid4

from nats.aio.client import Client

from rebaser_core.jetstream.connection import Connection
from rebaser_server.files import TEMP_DIR, SharedFiles
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.settings.settings import redact_url
from rebaser_server.telemetry import metrics
from rebaser_server.telemetry.work_stats import WorkStats

MEASURE_INTERVAL: Final = 0.5  # seconds
ROUND_TRIP_TIMEOUT: Final = 2.0  # seconds, for the round trip to NATS
STORE_TIMEOUT: Final = 3.0  # seconds
STORE_INTERVAL: Final = 30.0
"""Seconds for which a store that took a file is not asked again."""
_TRIAL: Final = bytes(4096)
"""Content of a file that shows whether the store takes any: a full disk takes empty ones."""


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict and its reasons."""

    ok: bool
    reasons: dict[str, str]


class HealthMonitor:
    """Measures the lag of the event loop, and checks NATS and the store on request."""

    def __init__(
        self, nc: Client, shutdown: Shutdown, store: SharedFiles, stats: WorkStats
    ) -> None:
        self._nc = nc
        self._shutdown = shutdown
        self._stats = stats
        self._store = store
        self._writing: asyncio.Task[None] | None = None
        self._written = -STORE_INTERVAL
        self.lag = 0.0
        """Seconds by which the loop was late at the last measurement."""

    async def measure_lag(self) -> Never:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.monotonic() + MEASURE_INTERVAL
            await asyncio.sleep(MEASURE_INTERVAL)
            self.lag = max(0.0, time.monotonic() - due)
            metrics.LOOP_LAG.observe(self.lag)

    def alive(self) -> Health:
        """Whether the process is alive; the event loop is, since this returns.

        All parts of the daemon run in one task group: if one fails, the process ends. NATS does
        not count: a restart brings back neither NATS nor the connection any sooner.
        """
        return Health(ok=True, reasons={"eventLoop": f"late by {self.lag:.3f} s"})

    async def ready(self) -> Health:
        """Whether the daemon takes tasks, and has not found that it could never compute any.

        One whose Spark has gone stays ready, and says so: requests are handled without.
        """
        if self._shutdown.is_set:
            return Health(ok=False, reasons={"shutdown": "requested"})
        answers, refusal = await asyncio.gather(self._nats_answers(), self._store_refusal())
        problem = self._stats.nats_problem() if answers else None
        if problem is not None:
            nats, remedy = problem
            nats = f"{nats}; {remedy}"
        else:
            nats = "answers" if answers else self._why_not()
        reasons = {"nats": nats, "store": refusal or "takes files"}
        absence = self._stats.spark_absence()
        if absence is not None:
            reasons["spark"] = str(absence)
        never_started = absence is not None and absence.is_first
        takes_work = answers and not self._stats.is_stopped()
        ok = takes_work and refusal is None and not never_started
        return Health(ok, reasons)

    def _why_not(self) -> str:
        error = None if self._nc.is_connected else self._nc.last_error
        return "does not answer" if error is None else f"does not answer: {error}"

    async def _nats_answers(self) -> bool:
        link = Connection.of(self._nc)
        return link.is_connected and await link.ping(ROUND_TRIP_TIMEOUT)

    async def _store_refusal(self) -> str | None:
        """Reason why the store takes no file; None if it took one lately."""
        if time.monotonic() < self._written + STORE_INTERVAL:
            return None
        # one at a time for all that ask: a thread in a dead file system stays there
        writing = self._writing
        if writing is None or writing.done():
            writing = asyncio.create_task(asyncio.to_thread(self._write), name="store probe")
            self._writing = writing
        done, _ = await asyncio.wait([writing], timeout=STORE_TIMEOUT)
        if not done:
            return f"{self._where}: no answer within {STORE_TIMEOUT:g} s"
        error = writing.exception()
        if error is not None:
            return f"{self._where} cannot be written by uid {os.getuid()}: {error}"
        self._written = time.monotonic()
        return None

    def _write(self) -> None:
        # where garbage collection looks, should this process be killed in between
        trial = f"{TEMP_DIR}/{uuid4().hex}"
        self._store.put(trial, _TRIAL, durable=False)
        self._store.delete(trial)

    @property
    def _where(self) -> str:
        return redact_url(self._store.root)
