"""How the run of a paused change set ends: what is in hand is finished, and no more begun (P4)."""

from rebaser_server.errors import Resumed
from rebaser_server.processor.dvu.scheduler import DvuScheduler
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.concurrency import Shutdown


async def drain_for_pause(dvu: DvuScheduler, shutdown: Shutdown, slot: SlotLease) -> bool:
    """See the update in hand through until it is committed; False: resumed meanwhile."""
    try:
        async with shutdown.interrupts(), slot.resume.interrupts():
            await dvu.drain()
    except Resumed:
        dvu.resume()
        return False
    return True
