"""Updates stopped by an operator: whoever has the change set in hand is told over plain NATS."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.errors import UnknownSubject
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.pauses import Pauses


@asynccontextmanager
async def cancellations(nc: Client, subjects: Subjects, pauses: Pauses) -> AsyncIterator[None]:
    """Heed them for as long as the body runs; only who has the change set in hand answers."""

    async def heed(message: Msg) -> None:
        with suppress(UnknownSubject):
            turns = pauses.turns_of(subjects.parse_change_set(message.subject))
            if not turns:
                return
            in_hand = [turn for turn in turns if turn.cancels.has_waiters]
            for turn in in_hand:
                turn.cancels.set()
            if message.reply:
                with suppress(nats.errors.Error, OSError):
                    answer = json.dumps({"cancelled": bool(in_hand)}).encode()
                    await nc.publish(message.reply, answer)

    every = subjects.join("rebaser.cancellations.*.*")
    subscription = await nc.subscribe(every, cb=heed)
    try:
        yield
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()
