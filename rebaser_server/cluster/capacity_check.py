"""Whether the tasks' consumer lets all Rebasers together fill their slots."""

from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.membership import Membership
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()

LISTEN: Final = 5.0  # seconds until every living Rebaser was heard
LOOK_EVERY: Final = 600.0  # seconds; Rebasers come, and consumers are edited


class CapacityCheck:
    """Checks after a start and then now and then, and logs a warning; it changes nothing."""

    def __init__(self, js: JetStream, tasks_stream: str, members: Membership, slots: int) -> None:
        """`slots` are those of this process; each other Rebaser is assumed to have as many."""
        self._js = js
        self._stream = tasks_stream
        self._members = members
        self._slots = slots

    async def run(self) -> Never:
        """Check until cancelled."""
        await repeat_every(LOOK_EVERY, self.check, "capacity", first_delay=LISTEN)

    async def check(self) -> int:
        """Return by how many slots the Rebasers exceed the consumer's limit; warn if any."""
        config = await self._js.consumer_config(self._stream, TASKS_CONSUMER)
        most = config.max_ack_pending or -1
        slots = self._members.alive() * self._slots
        if most <= 0 or most >= slots:
            return 0
        log.warning(
            "slots stay empty",
            max_ack_pending=most,
            slots=slots,
            remedy="`nats consumer edit` with max_ack_pending -1, or lower REBASER_CONCURRENCY",
        )
        return slots - most
