"""The ops endpoint of a Rebaser, for as long as that runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from rebaser_client.registry import Registry
from rebaser_server.cluster.membership import Members
from rebaser_server.cluster.slot_pool import Slots
from rebaser_server.ops.context import Watched
from rebaser_server.ops.endpoint import Endpoint
from rebaser_server.ops.health import Pulse
from rebaser_server.ops.name_cache import Names
from rebaser_server.ops.queues import QueueWatch
from rebaser_server.ops.status import Status
from rebaser_server.processor.context import Workshop
from rebaser_server.runtime.concurrency import Shutdown, background
from rebaser_server.settings.settings import Settings

log: Final = structlog.get_logger()


@asynccontextmanager
async def looked_at(
    shop: Workshop, settings: Settings, slots: Slots, members: Members, shutdown: Shutdown
) -> AsyncIterator[str | None]:
    """Serve it, if it is wanted; its URL.

    Raises:
        OpsNotStarted: not as the settings want it.
    """
    if not settings.ops.enabled:
        yield None
        return
    nc, board = shop.js.nc, shop.announcer.board
    pulse = Pulse(nc, shutdown)
    queues = QueueWatch(shop.js, shop.subjects)
    names = Names(Registry(shop.js, shop.subjects))
    status = Status(shop.instance, nc, board, slots, queues, members, pulse, names)
    watched = Watched(nc, shop.subjects, shutdown, board, slots, members, queues, pulse, status)
    async with background(pulse.beat()), Endpoint(settings, watched).served() as url:
        log.info("ops endpoint started", url=url)
        yield url
