"""Whether the tasks' consumer lets all Rebasers together fill their slots."""

from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.membership import Membership
from rebaser_server.runtime.periodic import repeat_every

log: Final = structlog.get_logger()

LISTEN: Final = 5.0  # seconds until whoever lives was heard
LOOK_EVERY: Final = 600.0  # seconds; Rebasers come, and consumers are edited


class CapacityCheck:
    """Looks after a start and then now and then, and says so if not; it changes nothing."""

    def __init__(self, js: JetStream, tasks_stream: str, members: Membership, slots: int) -> None:
        """`slots` are those of this process; the others are taken to have as many."""
        self._js = js
        self._stream = tasks_stream
        self._members = members
        self._slots = slots

    async def run(self) -> Never:
        """Look until cancelled."""
        await repeat_every(LOOK_EVERY, self.check, "capacity", first_delay=LISTEN)

    async def check(self) -> int:
        """How many more tasks would be needed in hand than the consumer lets be; warns of any."""
        info = await self._js.consumer_info(self._stream, TASKS_CONSUMER)
        most = int(info["config"].get("max_ack_pending", -1))
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
