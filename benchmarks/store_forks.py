"""Forks of a small and of a large head, and commits to a head that has many branches."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from ulid import ULID

from benchmarks.broker import broker
from benchmarks.deployment import deployed
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Table, median, percentile
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSetId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.registry import Workspace

_BATCH: Final = 50_000
"""Values that are put into a head at once."""
_FORKS: Final = 20
"""Of each head that are timed; one of them is then taken up."""


async def forks(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """A head of a thousand values and a large one; then branches, and commits to their head."""
    table = Table(
        "Forks, ms",
        ["values in head", "fork p50", "p99", "first state, s"],
        notes=["First state: a Rebaser has made the branch a state of its own, from head's."],
    )
    files = directory / "forks"
    with broker(files / "nats") as server:
        async with deployed(files, server, 1, server.url), _client(server.url) as client:
            for count in (1_000, sizes.store_values):
                say(f"store: forks of {count:,} values")
                head = await _filled(client, count)
                table.rows.append([count, *await _forked(client, head)])
            say(f"store: {sizes.branches:,} branches")
            return [table, await _branched(client, sizes)]


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[RebaserClient]:
    async with (
        connected(ConnectOptions(servers=(url,), name="forking")) as nc,
        RebaserClient.on(nc, JetStream(nc)) as client,
    ):
        yield client


async def _filled(client: RebaserClient, count: int) -> Workspace:
    workspace = await client.workspaces.create(f"{count} values")
    for start in range(0, count, _BATCH):
        values = [_put(number) for number in range(start, min(start + _BATCH, count))]
        await _commit(client, workspace, values)
    return workspace


def _put(number: int) -> dict[str, Any]:
    return {"putValue": {"valueId": str(ULID()), "name": f"value {number}", "value": number}}


async def _commit(
    client: RebaserClient, workspace: Workspace, updates: list[dict[str, Any]]
) -> float:
    """Seconds until head has answered."""
    record = workspace.head
    started = time.perf_counter()
    _, reply = await client.enqueue_updates_with_reply(
        record.workspace_id, record.change_set_id, updates
    )
    await reply
    return time.perf_counter() - started


async def _forked(client: RebaserClient, workspace: Workspace) -> list[float]:
    workspace_id = workspace.record.workspace_id
    times = []
    branch = ChangeSetId()
    for _ in range(_FORKS):
        branch = ChangeSetId()
        started = time.perf_counter()
        await client.workspaces.fork(workspace_id, "branch", change_set_id=branch)
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    await client.change_set(workspace_id, branch).refresh()
    ready = time.perf_counter() - started
    return [median(times) * MILLI, percentile(times, 99) * MILLI, ready]


async def _branched(client: RebaserClient, sizes: Sizes) -> Table:
    table = Table(
        "A commit to head, from enqueueing to the reply, ms",
        ["open branches", "p50", "p99", "ratio to none"],
        notes=["None of the branches was ever taken up; each takes over what head did when it is."],
    )
    workspace = await _filled(client, 1_000)
    alone = 0.0
    branches = 0
    for wanted in (0, sizes.branches):
        for _ in range(wanted - branches):
            await client.workspaces.fork(workspace.record.workspace_id, "branch")
        branches = wanted
        times = [await _commit(client, workspace, [_put(n)]) for n in range(sizes.one_by_one)]
        alone = alone or median(times)
        table.rows.append(
            [
                *(branches, median(times) * MILLI, percentile(times, 99) * MILLI),
                median(times) / alone,
            ]
        )
    return table
