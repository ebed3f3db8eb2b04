"""Clients, daemons and NATS at work, until their power is cut: many times in one life.

A cut of everything copies the volumes and lets the life go on, which knows nothing of it.
"""

import asyncio
import random
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import connected
from tests.chaos.access import WITNESS
from tests.chaos.history import History
from tests.chaos.recorder import recording
from tests.chaos.round import Size, chaos_client, provisioned
from tests.chaos.tables import upload_tables
from tests.chaos.workload import Values
from tests.helpers.deployment import SCALED, Daemon, new_change_sets
from tests.helpers.nats_process import NatsServer
from tests.powercut.machines import Machines, new_volumes, powered
from tests.powercut.standstill import standstill

if TYPE_CHECKING:
    from tests.chaos.clients import ChaosClient

_CHOICES: Final = {"HISTORY__MAX_COMMITS": ("0", "10000"), "CHECKPOINT_EVERY": ("10", "40")}
"""Settings that the seed chooses: the log goes back to the last checkpoint, or further."""

_SYNCS: Final = 2
"""Times that the kernel writes everything within a life, which is shorter than its own period."""


@dataclass(frozen=True)
class Conditions:
    """Of a life."""

    seed: str
    servers: int = 1
    sync: str = "always"
    """A key of `SYNC`."""
    alone: bool = False
    """Cut the power of one server at a time, which comes back at once, and never of all."""
    spark: bool = False
    tables: bool = False
    """Some values are tables, whose queries run on Spark."""
    window: float = 8.0
    """Seconds in which clients ask."""

    @property
    def size(self) -> Size:
        return Size(
            daemons=1 if self.has_spark else 2,
            clients=3,
            change_sets=5,
            pause=0.04,
            cluster=self.servers > 1,
            spark=self.spark,
            tables=self.tables,
        )

    @property
    def patience(self) -> float:
        """Seconds in which nothing is settled: then it is stuck.

        On a busy machine an evaluator takes 20 to start, and Spark a minute.
        """
        return 180.0 if self.has_spark else 60.0

    @property
    def has_spark(self) -> bool:
        return self.spark or self.tables

    @property
    def variables(self) -> dict[str, str]:
        """Settings of the daemons, without their prefix."""
        rng = random.Random(f"{self.seed} settings")
        chosen = {name: rng.choice(choices) for name, choices in _CHOICES.items()}
        return self.size.variables | chosen


@dataclass(frozen=True)
class Cut:
    """What the power cut left, and what was known by then."""

    number: int
    images: Path
    seen: int
    """Events of the life's history."""
    at: float
    """Seconds since the life's history began."""
    stands_for: int = 1
    """Cuts that it is judged for: itself, or all those of one server before it."""


@dataclass(frozen=True)
class Life:
    """One that is over, and its cuts."""

    conditions: Conditions
    history: History
    change_sets: Sequence[ChangeSet]
    cuts: Sequence[Cut]


def daemon_variables(conditions: Conditions, machines: Machines) -> dict[str, str]:
    """Settings of a daemon that works on the machines, without their prefix."""
    return {
        **SCALED,
        **conditions.variables,
        "NATS__URL": ",".join(machines.urls),
        "NATS__MONITORING": ",".join(server.monitoring for server in machines.servers),
        "STORE__ROOT": str(machines.directory / "store"),
        "SPARK__STATE_DIRECTORY": str(machines.directory / "spark"),
    }


async def live(conditions: Conditions, directory: Path, cuts: int) -> Life:
    """Live in the directory. The seed decides when a cut comes, and when the kernel syncs."""
    rng, history = random.Random(f"{conditions.seed} life"), History()
    change_sets = {
        c: Values(rng, tables=conditions.tables)
        for c in new_change_sets(conditions.size.change_sets)
    }
    images, mounts = directory / "images", directory / "life"
    with new_volumes(images, mounts, conditions.servers) as volumes:
        async with AsyncExitStack() as stack:
            machines = await stack.enter_async_context(
                powered(volumes, mounts, servers=conditions.servers, sync=conditions.sync)
            )
            world = _World(conditions, machines, directory, history, rng)
            await world.enter(stack, change_sets)
            if conditions.sync != "always":
                await world.sync()  # a deployment is older than what it may lose
            await world.work(cuts)
    shutil.rmtree(images)
    return Life(conditions, history, list(change_sets), world.cuts)


class _World:
    def __init__(
        self,
        conditions: Conditions,
        machines: Machines,
        directory: Path,
        history: History,
        rng: random.Random,
    ) -> None:
        self.cuts: list[Cut] = []
        self._conditions = conditions
        self._machines = machines
        self._directory = directory
        self._history = history
        self._rng = rng
        self._daemons: list[Daemon] = []
        self._clients: list[ChaosClient] = []

    async def enter(self, stack: AsyncExitStack, change_sets: dict[ChangeSet, Values]) -> None:
        """Start everything else; the stack ends it."""
        conditions, size, urls = self._conditions, self._conditions.size, self._machines.urls
        nc = await stack.enter_async_context(connected(size.access.options(WITNESS, urls)))
        mounts, servers = self._machines.directory, self._machines.servers
        deployment = await provisioned(stack, nc, mounts, servers, size)
        await stack.enter_async_context(recording(nc, deployment.streams, self._history))
        for number in range(size.daemons):
            name = f"daemon-{number}"
            variables = daemon_variables(conditions, self._machines) | {"INSTANCE_ID": name}
            daemon = Daemon(name, self._directory, variables)
            stack.callback(daemon.kill)
            self._daemons.append(daemon)
        for number in range(size.clients):
            made = chaos_client(conditions.seed, number, urls, self._history, change_sets, size)
            client = await stack.enter_async_context(made)
            self._clients.append(client)
        for daemon in self._daemons:
            await daemon.ready(within=120)
        if size.tables:
            await upload_tables(deployment, change_sets)

    async def sync(self) -> None:
        """As the kernel does when its time has come."""
        for volume in self._machines.volumes:
            await asyncio.to_thread(volume.sync)

    async def work(self, cuts: int) -> None:
        """Ask, and cut the power so many times."""
        over = asyncio.Event()
        asking = [asyncio.create_task(self._ask(n, over)) for n in range(len(self._clients))]
        window = self._conditions.window
        whats = [self._cut_one if self._conditions.alone else self._cut_all] * cuts
        whats += [self.sync] * _SYNCS
        moments = sorted((self._rng.uniform(0, window), n) for n in range(len(whats)))
        clock = asyncio.get_running_loop().time
        began = clock()
        for moment, number in moments:
            await asyncio.sleep(began + moment - clock())
            await whats[number]()
        over.set()
        await asyncio.gather(*asking)
        for client in self._clients:
            for reply in client.replies:
                reply.cancel()
            await asyncio.gather(*client.replies, return_exceptions=True)
        if self._conditions.alone:
            await self.sync()
            await self._cut_all(stands_for=cuts)

    async def _ask(self, number: int, over: asyncio.Event) -> None:
        client = self._clients[number]
        for change_set in list(client.change_sets)[number :: len(self._clients)]:
            await client.define(change_set)
        await client.ask(over)

    async def _cut_all(self, stands_for: int = 1) -> None:
        """All in one turn of the event loop: no client hears of anything meanwhile."""
        images = self._directory / f"cut-{len(self.cuts)}"
        images.mkdir()
        daemons = [daemon.process.pid for daemon in self._daemons]
        with standstill([*map(_pid, self._machines.servers), *daemons]):
            for volume in self._machines.volumes:
                volume.copy(images / volume.image.name)
            seen, at = len(self._history.events), self._history.now()
        self.cuts.append(Cut(len(self.cuts), images, seen, at, stands_for))

    async def _cut_one(self) -> None:
        """One server loses its power, and starts on what its disk has."""
        number = self._rng.randrange(len(self._machines.servers))
        server, volume = self._machines.servers[number], self._machines.volumes[number]
        image = self._directory / "cut"
        with standstill([_pid(server)]):
            volume.copy(image)
        server.kill()
        volume.go_back(image)
        await asyncio.to_thread(server.start)


def _pid(server: NatsServer) -> int:
    assert server.process is not None
    return server.process.pid
