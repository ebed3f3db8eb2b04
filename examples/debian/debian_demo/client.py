"""The demo's client: sends batches, awaits updates, and reads the values."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rebaser_client.client import RebaserClient
from rebaser_client.outcomes import ActivityFeed, watching
from rebaser_client.requests import Updates
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import connected
from rebaser_core.messages import EnqueueUpdatesResponseV3, ErrorStatus
from rebaser_core.streams import Streams
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import open_state_loader
from rebaser_server.service.composition import prepare
from rebaser_server.settings.nats_connection import connect_options, open_jetstream
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import Graph


class DemoRefused(RebaserError):
    """Rebaser rejected a request, or an update failed."""


class DemoClient:
    """A client with one change set."""

    def __init__(
        self,
        client: RebaserClient,
        change_set: ChangeSet,
        activities: ActivityFeed,
        loader: StateLoader,
    ) -> None:
        self._client = client
        self._change_set = change_set
        self._activities = activities
        self._loader = loader

    async def enqueue(self, updates: Updates) -> Awaitable[None]:
        """Enqueue a batch; the returned awaitable ends once it is applied."""
        _, reply = await self._client.enqueue_updates_with_reply(*self._change_set, updates)
        return _applied(reply)

    async def dvu_finished(self, on_activity: Callable[[ActivityV1], None]) -> dict[str, Any]:
        """Wait until the next dependent values update has ended; its details."""
        async for activity in self._activities:
            on_activity(activity)
            if activity.kind is ActivityKind.DVU_FAILED:
                raise DemoRefused(f"recomputing failed: {activity.details['reason']}")
            if activity.kind is ActivityKind.DVU_FINISHED:
                return activity.details
        raise AssertionError("activities do not end")

    async def graph(self) -> Graph:
        """The values of the change set as of the last commit."""
        return await self._loader.read(graph_of)


async def _applied(reply: Awaitable[EnqueueUpdatesResponseV3]) -> None:
    response = await reply
    if isinstance(response.status, ErrorStatus):
        raise DemoRefused(response.status.error.message)


@asynccontextmanager
async def demo_client(settings: Settings) -> AsyncIterator[DemoClient]:
    """A client of the deployment that `settings` name, with a new change set."""
    change_set = ChangeSet(WorkspaceId(), ChangeSetId())
    async with connected(connect_options(settings)) as nc:
        js = open_jetstream(nc, settings.nats)
        await prepare(js, settings)
        async with (
            RebaserClient.on(nc, js, prefix=settings.nats.prefix) as client,
            watching(Streams(settings.nats.prefix, js=js), change_set) as activities,
        ):
            cache = StateCache(settings.state_cache_bytes)
            loader = open_state_loader(js, settings, change_set, cache)
            yield DemoClient(client, change_set, activities, loader)
