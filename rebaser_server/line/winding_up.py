"""How the run of a paused change set ends: what is in hand is finished, and no more begun (P4)."""

from rebaser_core.jetstream import Delivery
from rebaser_server.errors import Resumed
from rebaser_server.lifetimes import Shutdown
from rebaser_server.line.handling import Handler, id_of
from rebaser_server.line.requests import RequestQueue
from rebaser_server.line.serial_dvu import SerialDvu
from rebaser_server.line.turns import Turn


async def wound_up(
    dvu: SerialDvu,
    queue: RequestQueue,
    handler: Handler,
    requests: list[Delivery],
    shutdown: Shutdown,
    turn: Turn,
) -> bool:
    """See the update in hand through; False: the change set was resumed meanwhile.

    What it found is handled if nothing else is in line before it. Of `requests`, which are
    next in line, no other is; a run that goes on must handle them.
    """
    try:
        async with shutdown.interrupts(), turn.resumes.interrupts():
            await dvu.finish()
    except Resumed:
        dvu.go_on()
        return False
    claim = handler.own.state.head.claim
    if claim is not None:
        following = requests[0] if requests else await queue.next(0)
        if following is not None and id_of(following) == claim.id:
            await handler.handle([following])
    return True
