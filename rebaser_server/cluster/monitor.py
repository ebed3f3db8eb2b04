"""Check now and then whether NATS is configured as it must be, and whether requests wait (X3)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Never

import structlog

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_server.cluster.provisioning import Provisioner, report
from rebaser_server.cluster.task_lease import LeaseTerms
from rebaser_server.runtime.containment import printable
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()

MAX_REPORTED: Final = 10
"""Most requests that one pass reads."""


class Monitor:
    """Logs what no Rebaser can repair. A pass costs the same for any number of change sets."""

    def __init__(
        self,
        provisioner: Provisioner,
        alert_after: timedelta,
        period: float,
        paused: Callable[[ChangeSet], bool] = lambda _: False,
        lease_terms: LeaseTerms | None = None,
    ) -> None:
        """`alert_after`: how long a request may wait unless it is `paused`; `period`: seconds.

        `lease_terms` are kept as the tasks' consumer has them.
        """
        self._lease_terms = lease_terms
        self._paused = paused
        self._provisioner = provisioner
        self._alert_after = alert_after
        self._period = period

    async def run(self) -> Never:
        """Check once a period, somewhat early or late, until cancelled."""
        await repeat_every(self._period, self._check, "inspection")

    async def _check(self) -> None:
        differences = await self._provisioner.check()
        report(differences)
        if self._lease_terms is not None:
            self._lease_terms.heed(differences)
        await self.report_old_requests()

    async def report_old_requests(self) -> None:
        """Log the oldest requests that wait for too long, and the number of all requests.

        The server's clock alone decides: it dated the requests, too.
        """
        js, stream = self._provisioner.js, self._provisioner.subjects.requests_stream
        info = await js.stream_info(stream)
        state, limit = info.state, info.ts - self._alert_after
        if not state.messages or state.first_ts > limit:
            return
        subjects: dict[str, float] = {}
        sequence = state.first_seq
        for _ in range(MAX_REPORTED):
            message = await js.get_message(stream, sequence=sequence, next_by_subject=">")
            if message is None or message.time > limit:
                break
            sequence = message.sequence + 1
            if self._is_paused(message.subject):
                continue
            waits = limit + self._alert_after - message.time
            subjects.setdefault(printable(message.subject), round(waits.total_seconds()))
        if subjects:
            log.error("requests wait too long", seconds=subjects, requests=state.messages)

    def _is_paused(self, subject: str) -> bool:
        try:
            return self._paused(self._provisioner.subjects.parse_change_set(subject))
        except UnknownSubject:
            return False
