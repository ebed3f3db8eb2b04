"""The ops endpoint of a Rebaser, composed of its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from rebaser_client.registry import Registry
from rebaser_client.requests import receiving_replies
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.slots import SlotPool
from rebaser_server.commit_log.batch_store import open_shared_files
from rebaser_server.ops.actions.action_service import ActionService
from rebaser_server.ops.auth import Guard
from rebaser_server.ops.change_set_page import ChangeSetPage
from rebaser_server.ops.context import OpsContext
from rebaser_server.ops.endpoint import Endpoint
from rebaser_server.ops.health import HealthMonitor
from rebaser_server.ops.name_cache import NameCache
from rebaser_server.ops.onlookers import Onlookers
from rebaser_server.ops.operator_page import OperatorPage
from rebaser_server.ops.queues import QueueWatch
from rebaser_server.processor.context import Services
from rebaser_server.queries.query_service import QueryService
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.settings.settings import Settings, redact_url

log: Final = structlog.get_logger()


@asynccontextmanager
async def ops_endpoint(
    services: Services,
    settings: Settings,
    slots: SlotPool,
    members: Membership,
    queries: QueryService,
    shutdown: Shutdown,
) -> AsyncIterator[str | None]:
    """Serve the endpoint for the time of the body; yields its URL, or None if it is disabled.

    Raises:
        OpsNotStarted: the port is taken, or the certificate cannot be read.
    """
    if not settings.ops.enabled:
        yield None
        return
    nc, stats = services.js.nc, services.notifier.stats
    store = open_shared_files(settings.store)
    health = HealthMonitor(nc, shutdown, store, stats)
    queues = QueueWatch(services.js, services.subjects)
    guard = Guard(settings.ops, settings.author or "local")
    registry = Registry(services.js, services.subjects)
    async with background(health.measure_lag()), receiving_replies(nc) as replies:
        context = OpsContext(
            services.instance,
            redact_url(store.root),
            guard,
            nc,
            services.subjects,
            shutdown,
            stats,
            slots,
            members,
            queues,
            health,
            registry,
            NameCache(registry),
            Onlookers(),
            ChangeSetPage(services.js, services.subjects, queries),
            OperatorPage(services.js, services.subjects, services.batches),
            ActionService(services, replies, queries.values.cache, guard),
        )
        async with Endpoint(settings, context).serving() as url:
            log.info("ops endpoint started", url=url)
            yield url
