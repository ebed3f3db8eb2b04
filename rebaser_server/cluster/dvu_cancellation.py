"""Cancel updates for operators: the Rebaser that works on the change set hears of it by NATS."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.errors import UnknownSubject
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.pauses import PauseMonitor


@asynccontextmanager
async def serve_cancellations(
    nc: Client, subjects: Subjects, pauses: PauseMonitor
) -> AsyncIterator[None]:
    """Serve cancellations while the body runs; only the change set's Rebaser replies."""

    async def on_message(message: Msg) -> None:
        with suppress(UnknownSubject):
            slots = pauses.slots_of(subjects.parse_change_set(message.subject))
            if not slots:
                return
            in_hand = [slot for slot in slots if slot.cancel_dvu.has_waiters]
            for slot in in_hand:
                slot.cancel_dvu.set()
            if message.reply:
                with suppress(nats.errors.Error, OSError):
                    answer = json.dumps({"cancelled": bool(in_hand)}).encode()
                    await nc.publish(message.reply, answer)

    subject = subjects.join("rebaser.cancellations.*.*")
    async with subscribed(nc, subject, on_message):
        yield
