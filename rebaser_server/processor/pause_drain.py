"""How the run of a paused change set ends: what is in hand is finished, and no more begun (P4)."""

from rebaser_server.errors import Resumed
from rebaser_server.processor.dvu.scheduler import SerialDvu
from rebaser_server.processor.slot_lease import Turn
from rebaser_server.runtime.concurrency import Shutdown


async def wound_up(dvu: SerialDvu, shutdown: Shutdown, turn: Turn) -> bool:
    """See the update in hand through until it is committed; False: resumed meanwhile."""
    try:
        async with shutdown.interrupts(), turn.resumes.interrupts():
            await dvu.finish()
    except Resumed:
        dvu.go_on()
        return False
    return True
