"""Another application than Rebaser's own: what the core promises holds for a plain counter."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_client.errors import RequestRefused
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import ErrorStatus
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.service.composition import serve
from tests.helpers.batches import new_id, put
from tests.helpers.counter import CounterApplication, total_of
from tests.helpers.deployment import Deployment, deployed, new_change_sets
from tests.helpers.nats_process import NatsServer

SCALED_TIMES = {
    name: timedelta(seconds=seconds)
    for name, seconds in {
        "ack_wait": 2.0,
        "quiet_period": 0.6,
        "reconcile_interval": 1.0,
    }.items()
}


@dataclass
class Counting:
    """A deployment whose Rebasers count."""

    deployment: Deployment

    @property
    def application(self) -> CounterApplication:
        return CounterApplication(SharedFiles(self.deployment.settings.store.root))

    @asynccontextmanager
    async def rebaser(self) -> AsyncIterator[None]:
        """One, in this process, for the time of the body; then it stops in order."""
        shutdown = Shutdown()
        settings = self.deployment.settings.model_copy(
            update=SCALED_TIMES | {"checkpoint_every": 3}
        )
        async with background(serve(settings, lambda *_: self.application, shutdown)):
            yield

    async def total(self, change_set: ChangeSet) -> int:
        of_graphs = self.deployment.archive(change_set)
        loader = dataclasses.replace(of_graphs, machine=self.application)
        return total_of(await loader.load())


@pytest.fixture
async def counting(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Counting]:
    async with deployed(nats_server, tmp_path, "counters") as deployment:
        yield Counting(deployment)


async def test_each_update_counts_once_across_restarts_and_checkpoints(counting: Counting) -> None:
    [change_set] = new_change_sets(1)
    client = counting.deployment.client
    for size in (1, 2, 3, 4):
        async with counting.rebaser():
            for _ in range(2):
                batch = [put(new_id(), 0) for _ in range(size)]
                _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
                assert not isinstance((await reply).status, ErrorStatus)
            await counting.deployment.at_rest()

    assert await counting.total(change_set) == 2 * (1 + 2 + 3 + 4)


async def test_an_action_that_the_application_does_not_know_is_refused(counting: Counting) -> None:
    client = counting.deployment.client
    workspace, _ = await client.workspaces.create("counters")

    async with counting.rebaser():
        with pytest.raises(RequestRefused, match="there is no action 'recompute'"):
            await client.change_set(workspace.workspace_id, workspace.head).recompute()
