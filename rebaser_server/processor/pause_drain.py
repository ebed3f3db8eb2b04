"""End the run of a paused change set: the DVU under way is finished, no other one begins (P4)."""

from rebaser_server.errors import Resumed
from rebaser_server.processor.dvu.scheduler import DvuScheduler
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.concurrency import Shutdown


async def drain_for_pause(dvu: DvuScheduler, shutdown: Shutdown, slot: SlotLease) -> bool:
    """Wait until the update under way is committed; False: the change set was resumed meanwhile."""
    try:
        async with shutdown.interrupts(), slot.resume.interrupts():
            await dvu.drain()
    except Resumed:
        dvu.resume()
        return False
    return True
