"""One round of chaos: clients, daemons and faults from one seed, until all is at rest again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_client.errors import ClientError
from rebaser_client.registry import Registry
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, JetStreamError, connected
from rebaser_core.subjects import Subjects
from rebaser_server.fleet.members import PRESUMED_DEAD
from rebaser_server.server import prepare
from rebaser_server.settings import Settings
from tests.chaos.clients import RETRY_FOR, ChaosClient, WitnessedJetStream
from tests.chaos.faults import Target, drawn
from tests.chaos.fleet import nats_servers, seats
from tests.chaos.history import History, Kind
from tests.chaos.leads import ACTIONS, Leading
from tests.chaos.recorder import recording
from tests.chaos.resting import Resting
from tests.chaos.workload import Values
from tests.integration.deployment import SCALED, Deployment, new_change_sets
from tests.schedules.sheet import Sheet


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    window: float = 12.0
    """Seconds in which clients ask and faults begin."""
    faults: int = 7
    kinds: tuple[str, ...] = ()
    """Of faults, where not all are wanted."""
    daemons: int = 3
    clients: int = 5
    change_sets: int = 6
    pause: float = 0.08
    """Seconds between two requests of a client, on average."""
    lease: float = float(SCALED["ACK_WAIT"])
    """Seconds; the product's own are 60."""
    rest_within: float = 90.0
    """Seconds in which nothing is settled, and three leases: then it is stuck."""
    cluster: bool = False

    @property
    def progress(self) -> float:
        return self.lease / 6


@dataclass(slots=True)
class _Round:
    size: Size
    rng: random.Random
    history: History
    deployment: Deployment
    target: Target
    clients: list[ChaosClient]
    lead: RebaserClient
    leading: Leading
    resting: Resting

    async def run(self) -> None:
        variables = {
            "ATTEMPTS": "3",
            "CHECKPOINT_EVERY": "40",
            "HISTORY__COMMITS": "0",  # the log is purged as far as it may be
            "ACK_WAIT": str(self.size.lease),
            "PROGRESS_EVERY": str(self.size.progress),
            "NATS__REPLICAS": str(_replicas(self.size)),
        }
        for seat in self.target.seats:
            seat.start(variables)
        for seat in self.target.seats:
            if seat.daemon is not None:
                await seat.daemon.ready(within=120)
        for client, change_set in self._pairs():
            await client.define(change_set)
        await self.leading.create(self.lead)
        await self.leading.define(self.lead)
        await self._break()
        rested_after = await self.resting.come()
        for client, change_set in self._pairs():
            await client.die(change_set)  # nobody but the reconciler can find this one (X1)
        await self.resting.come()
        for client in self.clients:
            await client.settle()
        await self.leading.refresh(self.deployment.js)
        await self.resting.come()
        await self._write_down_the_end(rested_after)

    def _pairs(self) -> list[tuple[ChaosClient, ChangeSet]]:
        """Each change set, with one of the clients."""
        change_sets = list(self.clients[0].change_sets)
        return [(self.clients[n % len(self.clients)], c) for n, c in enumerate(change_sets)]

    async def _break(self) -> None:
        """Everything at once; then every fault is over and every client has stopped."""
        size, over = self.size, asyncio.Event()
        faults = drawn(
            self.rng,
            count=size.faults,
            window=size.window,
            seats=size.daemons,
            lease=self.target.lease,
            kinds=size.kinds,
        )
        asking = [asyncio.create_task(client.ask(over)) for client in self.clients]
        asking.append(asyncio.create_task(self._lead(over)))
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(fault.happen(self.target, self.history))
            group.create_task(asyncio.sleep(size.window))
        over.set()
        await asyncio.gather(*asking)

    async def _lead(self, over: asyncio.Event) -> None:
        """Have branches forked, edited and closed beside all that."""
        rng = random.Random(f"lead {self.rng.random()}")
        actions, weights = ("edit_head", *ACTIONS), (8, *ACTIONS.values())
        while not over.is_set():
            [what] = rng.choices(actions, weights)
            with suppress(JetStreamError, ClientError):
                await self.leading.do(self.lead, what, rng.randrange(100))
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0, 4 * self.size.pause)):
                    await over.wait()

    async def _write_down_the_end(self, rested_after: float) -> None:
        for seat in self.target.seats:
            for daemon, event, exception in seat.unforeseen():
                self.history.add(Kind.UNFORESEEN, daemon=daemon, event=event, exception=exception)
            for run in seat.runs():
                self.history.add(Kind.RUN, **run)
        change_sets = [*self.clients[0].change_sets, self.leading.head, *self.leading.branches]
        first_lines = {str(c): await self.resting.first_line(c) for c in change_sets}
        left = await self.resting.write_down(rested_after=rested_after, first_lines=first_lines)
        if left["requests"] or left["due"]:
            return
        for change_set in change_sets:
            state = (await self.deployment.archive(change_set).restored()).state
            if state.head.closing is not None:
                continue
            graph = state.graph
            found = {v.id: [v.status.value, v.value] for v in graph.values.values()}
            self.history.add(Kind.VALUES, change_set=str(change_set), values=found)
        for branch in self.leading.branches:
            record = await Registry(self.deployment.js, self.deployment.subjects).change_set(branch)
            self.history.add(Kind.RECORD, change_set=str(branch), record=record.wire())


async def run_round(seed: str, directory: Path, size: Size, history: History) -> None:
    """Write one round down. The same seed breaks the same things at the same times."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(nats_servers(directory, cluster=size.cluster))
        options = ConnectOptions(servers=tuple(server.url for server in servers))
        nc = await stack.enter_async_context(connected(options))
        deployment = await _deployed(stack, nc, directory, servers, size)
        recorder = await stack.enter_async_context(recording(nc, deployment.subjects, history))
        places = await stack.enter_async_context(seats(size.daemons, directory, history, servers))
        change_sets = {c: Values(rng) for c in new_change_sets(size.change_sets)}
        clients = [
            await stack.enter_async_context(_client(seed, n, options, history, change_sets, size))
            for n in range(size.clients)
        ]
        target = Target(
            servers,
            places,
            asyncio.Lock(),
            min(size.lease, PRESUMED_DEAD),
            deployment.js,
            deployment.subjects,
        )
        [head], chance = new_change_sets(1), random.Random(f"{seed}/lead")
        lead = await stack.enter_async_context(
            _client(seed, size.clients, options, history, change_sets, size)
        )
        leading = Leading(lead.js, history, chance, head, Sheet(chance))
        patience = size.rest_within + 3 * size.lease
        resting = Resting(deployment, history, recorder, patience)
        parts = size, rng, history, deployment, target, clients, lead.client, leading
        await _Round(*parts, resting).run()


def _replicas(size: Size) -> int:
    return 3 if size.cluster else 1


async def _deployed(
    stack: AsyncExitStack, nc: Client, directory: Path, servers: list, size: Size
) -> Deployment:
    settings = Settings.model_validate(
        {
            "nats": {"url": servers[0].url, "replicas": _replicas(size)},
            "store": {"root": str(directory / "store")},
            "ack_wait": size.lease,
            "progress_every": size.progress,
        }
    )
    js = JetStream(nc)
    async with asyncio.timeout(30):
        while True:  # a cluster takes seconds to agree on a leader
            try:
                await prepare(js, settings)
                break
            except JetStreamError:
                await asyncio.sleep(0.2)
    client = await stack.enter_async_context(RebaserClient.on(nc, js))
    return Deployment(servers[0], directory, nc, client, settings)


@asynccontextmanager
async def _client(
    seed: str,
    number: int,
    options: ConnectOptions,
    history: History,
    change_sets: dict[ChangeSet, Values],
    size: Size,
) -> AsyncIterator[ChaosClient]:
    rng, subjects = random.Random(f"{seed}/{number}"), Subjects()
    async with connected(options) as nc:
        js = WitnessedJetStream(nc, subjects, history, rng)
        async with RebaserClient.on(nc, js, retry_for=RETRY_FOR) as client:
            yield ChaosClient(js, client, subjects, history, rng, change_sets, size.pause)
