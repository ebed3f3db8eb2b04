"""Scale, `fair`: how long one request of a small workspace takes while another one floods."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ulid import ULID

from benchmarks.broker import Broker, broker
from benchmarks.deployment import MeasuredDaemon
from benchmarks.tables import Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually

SLOTS = 20
AT_ONCE = 64
PROBES = 5
WEIGHTS = {"4, the default": 1.0, "all slots": 250_000.0}
"""Weights of the workspace that floods."""

Say = Callable[[str], None]


async def run(directory: Path, crowd: int, rounds: int, say: Say) -> list[Table]:
    """With and without a share, in turns, each time on a server of their own."""
    table = Table(
        "A request of a small workspace while another one floods (s)",
        ["share", "first", "longest", "median", "flood in"],
        notes=[_NOTE.format(crowd=crowd, slots=SLOTS, probes=PROBES)],
    )
    found: dict[str, list[tuple[list[float], float]]] = {name: [] for name in WEIGHTS}
    for number in range(rounds):
        for name, weight in WEIGHTS.items():
            say(f"fair: share {name}, round {number + 1} of {rounds}")
            files = directory / f"{number} {weight}"
            with broker(files / "nats") as server:
                found[name].append(await _flooded(server, files, crowd, weight))
    for name, took in found.items():
        probes = [probe for each, _ in took for probe in each]
        first = median([each[0] for each, _ in took])
        flood = median([seconds for _, seconds in took])
        table.rows.append([name, first, max(probes), median(probes), flood])
    return [table]


_NOTE = """\
{crowd} change sets of one workspace have a request each and are in line when the daemon, with
{slots} slots, starts; then the small one asks {probes} times, for a new change set each time. From
the call to the reply. *Flood in*: until no request is left."""


async def _flooded(
    server: Broker, files: Path, crowd: int, weight: float
) -> tuple[list[float], float]:
    async with (
        connected(ConnectOptions(servers=(server.url,), name="client")) as nc,
        RebaserClient.on(nc, JetStream(nc)) as client,
    ):
        flood = new_change_sets(crowd)
        weights = {str(flood[0].workspace_id): weight}
        first = _daemon(server, files, "makes-streams", weights)
        await first.ready(within=120)
        first.kill()
        await _crowd(client, flood)
        daemon = _daemon(server, files, "measured", weights)
        try:
            await daemon.ready(within=120)
            started, probes = time.perf_counter(), []
            for change_set in new_change_sets(PROBES):
                asked = time.perf_counter()
                _, reply = await client.enqueue_updates_with_reply(*change_set, _define())
                await reply
                probes.append(time.perf_counter() - asked)

            async def flood_is_in() -> bool:
                info = await JetStream(nc).stream_info("REBASER_REQUESTS")
                return not info.state.messages

            await eventually(flood_is_in, within=600)
            return probes, time.perf_counter() - started
        finally:
            daemon.kill()


async def _crowd(client: RebaserClient, flood: Sequence[ChangeSet]) -> None:
    todo = iter(flood)

    async def send() -> None:
        for change_set in todo:
            await client.enqueue_updates(*change_set, _define())

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


def _define() -> list[dict[str, object]]:
    return [{"putValue": {"valueId": str(ULID()), "value": 1}}]


def _daemon(server: Broker, files: Path, name: str, weights: Mapping[str, float]) -> MeasuredDaemon:
    variables = {
        "NATS__URL": server.url,
        "STORE__ROOT": str(files / "store"),
        "SPARK__STATE_DIRECTORY": str(files / "spark"),
        "SPARK__WARM": "false",
        "CONCURRENCY": str(SLOTS),
        "FAIRNESS__WEIGHTS": json.dumps(weights),
    }
    return MeasuredDaemon(name, files, variables)
