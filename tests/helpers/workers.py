"""Workers of services in this process, and calls to them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rebaser_core.calls import CallRequestV1, key_of
from rebaser_core.ids import ChangeSet
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.checkpoints import content_of
from rebaser_server.handlers.content import KeyContent
from rebaser_server.handlers.sending import Seals
from rebaser_server.handlers.service import Service
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.service.worker import serve
from tests.helpers.deployment import Deployment

SCALED: dict[str, Any] = {
    "ack_wait": timedelta(seconds=2),
    "quiet_period": timedelta(seconds=0.3),
    "reconcile_interval": timedelta(seconds=1),
    "max_attempts": 2,
}
"""Times of a worker that a test can wait for."""


@dataclass
class Working:
    """A deployment whose workers serve services."""

    deployment: Deployment

    @asynccontextmanager
    async def worker(self, *services: Service, **settings: Any) -> AsyncIterator[str | None]:
        """One, in this process, while the body runs; then it stops in order. Yield its page."""
        shutdown, ready = Shutdown(), asyncio.Future[str | None]()
        chosen = self.deployment.settings.model_copy(update=SCALED | settings)
        async with background(serve(chosen, services, shutdown, ready.set_result)):
            yield await ready
            shutdown.set()

    async def sealed(self, call: CallRequestV1) -> CallRequestV1:
        """Return the call as a worker sends it."""
        files = self.deployment.archive(ChangeSet(call.workspace_id, call.change_set_id)).batches
        return call.model_copy(update={"seal": await Seals(files.files).of(call)})

    def key(self, service: str, key: str) -> Any:
        """Return the client's handle of a key."""
        return self.deployment.client.service(service).key(key)

    async def content(self, services: Sequence[Service], service: str, key: str) -> KeyContent:
        """Return what the log and the store have of a key."""
        change_set = key_of(service, key)
        archive = self.deployment.archive(change_set)
        machine = HandlerApplication(
            self.deployment.streams, archive.batches, {each.name: each for each in services}
        )
        return content_of(
            await type(archive)(change_set, archive.log, archive.batches, machine).load()
        )
