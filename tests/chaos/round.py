"""One round of chaos: clients, daemons and faults from one seed, until all is at rest again."""

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_core.errors import ClientError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError, connected
from rebaser_core.registry import Registry
from rebaser_core.requests import ensure_task
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import PRESUMED_DEAD
from rebaser_server.graph_application.content import graph_of
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.chaos.access import WITNESS, Access
from tests.chaos.branch_workload import ACTIONS, Leading
from tests.chaos.clients import RETRY_FOR, ChaosClient, SentRequest, WitnessedJetStream
from tests.chaos.faults import Target, drawn, rolls
from tests.chaos.history import History, Kind
from tests.chaos.processes import Seat, nats_servers, seats
from tests.chaos.quiescence import Resting
from tests.chaos.recorder import recording
from tests.chaos.tables import (
    QuerySheet,
    published_in,
    upload_tables,
    with_rows,
    write_down_tables,
)
from tests.chaos.workload import Values
from tests.helpers.batches import new_id
from tests.helpers.deployment import SCALED, Deployment, new_change_sets
from tests.helpers.nats_process import NatsServer
from tests.helpers.s3_server import BUCKET, unreliable_s3_running
from tests.schedules.example_batches import Sheet

OTHERS = 1_100
"""Requests between a request and its repetition: an id is remembered for at least 1,000."""
AT_ONCE = 100
"""Requests on their way at a time."""
PAUSE = 20.0
"""Seconds between two crowds, each of which is as much work as the rest of a short round."""
BEYOND = 125.0
"""Seconds after which an id may be forgotten, with some to spare: repeated then, a request may take
effect once more, which only long rounds see."""


class Crowd:
    """Floods one change set."""

    def __init__(self, client: ChaosClient, change_set: ChangeSet) -> None:
        self._client = client
        self._change_set = change_set
        self._sent: deque[tuple[float, SentRequest]] = deque()

    async def act(self, until: asyncio.Event) -> None:
        """Now and then a crowd until the event is set; the one in hand is sent whole."""
        while not until.is_set():
            first = await self._client.ask_for_little(self._change_set)
            self._sent.append((time.monotonic(), first))
            for _ in range(0, OTHERS, AT_ONCE):
                ask = self._client.ask_for_little
                await asyncio.gather(*(ask(self._change_set) for _ in range(AT_ONCE)))
            await self._client.repeat_unrecognised(first)
            at, earliest = self._sent[0]
            if time.monotonic() - at > BEYOND:
                self._sent.popleft()
                await self._client.repeat_unrecognised(earliest)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await until.wait()


_DIFFERENT = {
    "CHECKPOINT_EVERY": ("5", "40", "300"),
    "CONCURRENCY": ("1", "4", "16"),
    "HISTORY__MAX_COMMITS": ("100", "200"),
    "QUIET_PERIOD": ("0.2", "0.6", "3"),
    "RECONCILE_INTERVAL": ("0.5", "1", "3"),
}
"""What the settings of daemons are drawn from where they differ, and the lease."""

IDLE_TASKS = 5
"""Made for each change set at rest, one after another."""


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
    accounts: bool = False
    """Clients and daemons log in as `deploy/nats/accounts.conf` has it."""
    spark: bool = False
    """Every update runs on Spark."""
    tables: bool = False
    """Some values are tables: their queries run on Spark."""
    objects: bool = False
    """The store is in S3."""
    slots: int | None = None
    """Change sets that a daemon works on at a time; None: as many as by default."""
    queue: int | None = None
    """Requests that may wait in all; None: as many as by default."""
    crowded: bool = False
    """The first client repeats requests behind crowds of others."""
    upgrading: bool = False
    """Daemons of an older release and of this one are exchanged for each other."""
    older: Path | None = None
    """A checkout of that release, with an environment in `.venv`."""
    settings_differ: bool = False
    """Each daemon has settings of its own."""

    @property
    def access(self) -> Access:
        return Access(self.accounts)

    @property
    def variables(self) -> dict[str, str]:
        """Settings of the daemons, without their prefix, beyond those of every test."""
        variables = {
            "MAX_ATTEMPTS": "3",
            "DVU_MAX_ATTEMPTS": "1000",  # the checker does not know of values given up
            "CHECKPOINT_EVERY": "40",
            "HISTORY__MAX_COMMITS": str(self.kept_commits),
            "ACK_WAIT": str(self.lease),
            "NATS__REPLICAS": str(self.replicas),
        }
        if self.spark:
            variables |= {"SPARK__MIN_AFFECTED": "0"}
        if self.slots is not None:
            variables["CONCURRENCY"] = str(self.slots)
        if self.queue is not None:
            variables["QUEUE__REQUESTS"] = str(self.queue)
        return variables | self.access.variables

    @property
    def kept_commits(self) -> int:
        """Few: the log is purged nearly as far as it may be.

        While a cluster has no majority, or the disk of NATS is slow, the recorder reads nothing,
        and must find it all later; nor does it read as fast as a crowd is settled.
        """
        return 5_000 if self.crowded else 100 if self.cluster else 40

    def own_variables(self, rng: random.Random) -> dict[str, str]:
        """Settings of one daemon."""
        if not self.settings_differ:
            return self.variables
        lease = {"ACK_WAIT": str(self.lease * rng.choice((1, 1.5, 2.5)))}
        return self.variables | lease | {name: rng.choice(of) for name, of in _DIFFERENT.items()}

    @property
    def replicas(self) -> int:
        return 3 if self.cluster else 1


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
    legs: int = 0
    """Times that all daemons are exchanged; in the end all are of this release."""

    async def run(self) -> None:
        for seat in self.target.seats:
            seat.older = self.size.older
            seat.is_older = self.legs % 2 == 1
            store = self.deployment.settings.store
            own = self.size.own_variables(self.rng) | {
                "SPARK__MASTER": "local[2]",
                "STORE__ROOT": store.root,
                "STORE__OPTIONS": json.dumps(store.options),
            }
            if self.size.tables:
                own["STORE__PUBLISHED"] = str(published_in(self.deployment))
            seat.start(own)
        for seat in self.target.seats:
            if seat.daemon is not None:
                await seat.daemon.ready(within=120)
        if self.size.tables:
            await upload_tables(self.deployment, [*self.clients[0].change_sets, self.leading.head])
        for client, change_set in self._pairs():
            await client.define(change_set)
        await self.leading.create(self.lead)
        await self.leading.define(self.lead)
        await self._break()
        rested_after = await self.resting.come()
        if not self.resting.stuck:
            await self._ask_at_rest()
        await self._write_down_the_end(rested_after)

    async def _ask_at_rest(self) -> None:
        """What is only asked once nothing moves any more."""
        for client, change_set in self._pairs():
            await client.die(change_set)  # nobody but the reconciler can find this one (X1)
        await self.resting.come()
        for client in self.clients:
            await client.settle()
        await self.leading.refresh(self.deployment.js)
        await self.resting.come()
        await self._poke_what_rests()

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
            lacking=[
                "a plan",
                *(n for n in ("tables", "objects", "cluster") if not getattr(size, n)),
                *(() if size.spark or size.tables else ("spark",)),
            ],
        )
        faults += rolls(self.legs, window=size.window, seats=size.daemons)
        asking = [asyncio.create_task(client.ask(over)) for client in self.clients]
        if size.crowded:
            crowd = Crowd(self.clients[0], next(iter(self.clients[0].change_sets)))
            asking.append(asyncio.create_task(crowd.act(over)))
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

    async def _poke_what_rests(self) -> None:
        """Make tasks for change sets with nothing to do, known ones and others."""
        known = [*self.clients[0].change_sets, self.leading.head, *self.leading.branches]
        change_sets = [*known, *new_change_sets(3)]
        await self._poke(change_sets)  # a run that made room left a checkpoint to the next (W10d)
        before = self._lines()
        for _ in range(IDLE_TASKS):
            await self._poke(change_sets)
        for change_set, lines in (self._lines() - before).items():
            self.history.add(Kind.IDLE_TASKS, change_set=change_set, tasks=IDLE_TASKS, lines=lines)

    async def _poke(self, change_sets: Sequence[ChangeSet]) -> None:
        for change_set in change_sets:
            await ensure_task(self.deployment.streams, change_set)
        await self.resting.come()

    def _lines(self) -> Counter[str]:
        return Counter(event.data["change_set"] for event in self.history.of(Kind.COMMIT))

    async def _write_down_the_end(self, rested_after: float) -> None:
        calls = self.deployment.directory / "calls"
        self.history.add(Kind.CALLS, count=calls.stat().st_size if calls.exists() else 0)
        write_down_daemons(self.target.seats, self.history)
        change_sets = [*self.clients[0].change_sets, self.leading.head, *self.leading.branches]
        first_lines = {str(c): await self.resting.first_line(c) for c in change_sets}
        left = await self.resting.write_down(rested_after=rested_after, first_lines=first_lines)
        if left["requests"] or left["due"]:
            return
        if self.size.tables:
            await write_down_tables(self.deployment, self.leading.head, self.history)
        for change_set in change_sets:
            await write_down_values(self.deployment, change_set, self.history)
        for branch in self.leading.branches:
            record = await Registry(self.deployment.streams).change_set(branch)
            self.history.add(Kind.RECORD, change_set=str(branch), record=record.to_wire())


def write_down_daemons(places: Sequence[Seat], history: History) -> None:
    """Logs of all daemons, and what they hold in the end."""
    for seat in places:
        if rss := seat.rss():
            history.add(Kind.MEMORY, name=seat.instance, rss=rss)
        for daemon, event, exception in seat.unforeseen():
            history.add(Kind.UNFORESEEN, daemon=daemon, event=event, exception=exception)
        for daemon, seconds, what in seat.held():
            history.add(Kind.HELD, daemon=daemon, seconds=seconds, what=what)
        for run in seat.runs():
            history.add(Kind.RUN, **run)


async def write_down_values(
    deployment: Deployment, change_set: ChangeSet, history: History
) -> None:
    """The values that checkpoint and log hold; none of a change set that is closed."""
    state = await deployment.archive(change_set).load()
    if state.control.closing is None:
        workspace, values = str(change_set.workspace_id), graph_of(state).values.values()
        found = {v.id: [v.status.value, with_rows(deployment, workspace, v.value)] for v in values}
        history.add(Kind.VALUES, change_set=str(change_set), values=found)


async def run_round(
    seed: str, directory: Path, size: Size, history: History, tools: Path | None = None
) -> None:
    """Write one round down. The same seed breaks the same things at the same times.

    `tools`: as `seats` has it.
    """
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            nats_servers(directory, cluster=size.cluster, config=size.access.config)
        )
        urls = tuple(server.url for server in servers)
        nc = await stack.enter_async_context(connected(size.access.options(WITNESS, urls)))
        spoiler, options = None, dict[str, str]()
        if size.objects:
            spoiler, options = stack.enter_context(unreliable_s3_running(seed))
        deployment = await provisioned(stack, nc, directory, servers, size, options)
        recorder = await stack.enter_async_context(recording(nc, deployment.streams, history))
        places = await stack.enter_async_context(
            seats(size.daemons, directory, history, servers, tools)
        )
        change_sets = {
            c: Values(rng, tables=size.tables) for c in new_change_sets(size.change_sets)
        }
        clients = [
            await stack.enter_async_context(chaos_client(seed, n, urls, history, change_sets, size))
            for n in range(size.clients)
        ]
        target = Target(
            servers,
            places,
            asyncio.Lock(),
            min(size.lease, PRESUMED_DEAD),
            deployment.streams,
            spoiler,
        )
        [head], chance = new_change_sets(1), random.Random(f"{seed}/lead")
        lead = await stack.enter_async_context(
            chaos_client(seed, size.clients, urls, history, change_sets, size, role="operator")
        )
        sheet = QuerySheet(chance) if size.tables else Sheet(chance)
        leading = Leading(lead.js, history, chance, head, sheet)
        patience = size.rest_within + 3 * size.lease
        resting = Resting(deployment, history, recorder, patience)
        parts = size, rng, history, deployment, target, clients, lead.client, leading
        legs = rng.choice((2, 3)) if size.upgrading else 0
        await _Round(*parts, resting, legs).run()


async def provisioned(
    stack: AsyncExitStack,
    nc: Client,
    directory: Path,
    servers: Sequence[NatsServer],
    size: Size,
    objects: Mapping[str, str] = {},
) -> Deployment:
    """With its streams; no daemon is started. `objects`: options of the store, if it is in S3."""
    root = f"s3://{BUCKET}/{new_id()}" if objects else str(directory / "store")
    settings = Settings.model_validate(
        {
            "nats": {"url": servers[0].url, "replicas": size.replicas},
            "queue": {} if size.queue is None else {"requests": size.queue},
            "store": {"root": root, "options": objects},
            "ack_wait": size.lease,
        }
    )
    js = JetStream(nc)
    async with asyncio.timeout(30):
        while True:  # a cluster takes seconds to agree on a leader
            try:
                await prepare(js, settings)
                if size.upgrading:
                    await _store_commits_one_by_one(js)
                break
            except JetStreamError:
                await asyncio.sleep(0.2)
    client = await stack.enter_async_context(RebaserClient.on(nc, js))
    return Deployment(servers[0], directory, nc, client, settings)


async def _store_commits_one_by_one(js: JetStream) -> None:
    """As in a deployment that an older release made."""
    info = await js.stream_info(Subjects().commits_stream)
    await js.update_stream(replace(info.config, allow_atomic=False))


@asynccontextmanager
async def chaos_client(
    seed: str,
    number: int,
    urls: tuple[str, ...],
    history: History,
    change_sets: dict[ChangeSet, Values],
    size: Size,
    role: str = "client",
) -> AsyncIterator[ChaosClient]:
    """The client of that number, connected."""
    rng, subjects = random.Random(f"{seed}/{number}"), Subjects()
    async with connected(size.access.options(role, urls)) as nc:
        api_prefix = size.access.api_prefix(role)
        js = WitnessedJetStream(nc, subjects, history, rng, api_prefix=api_prefix)
        async with RebaserClient.on(nc, js, retry_for=RETRY_FOR) as client:
            chaos = ChaosClient(js, client, subjects, history, rng, change_sets, size.pause)
            try:
                yield chaos
            finally:
                for reply in chaos.replies:  # of a round that is stuck
                    reply.cancel()
