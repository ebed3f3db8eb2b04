"""Part `store`: commits beside raw publishes, checkpoints, loading, tidying, and space."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ulid import ULID

from benchmarks.broker import DURABILITY, broker
from benchmarks.deployment import deployed
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Table, median, percentile
from rebaser_client.client import RebaserClient
from rebaser_core.commits import Commit, CommitV2
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.registry import Workspace
from rebaser_core.subjects import Subjects
from rebaser_core.updates import AnyUpdate, PutValue, SetValue
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of, open_state_loader
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from rebaser_server.store.compaction import compact, drop_superseded
from rebaser_server.values.rebase import rebase
from tests.helpers.scripted_owner import Owner

_BATCH: Final = 50_000
"""Values that are put into a head at once."""
_FORKS: Final = 20
"""Number of forks of each head that are timed; one of them is then taken up."""


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


KEEP_REPLACED: Final = 24 * 3600.0  # seconds, as by default


class Small(NamedTuple):
    seconds: float
    """Seconds that the whole checkpoint took."""
    held: float
    """Seconds in which no commit was possible, since the checkpoint held the lock."""


class Busy(NamedTuple):
    commits: list[float]
    seconds: float
    """Seconds that the work beside the commits took."""


@dataclass(slots=True)
class Case:
    """Requests set one value of the change set each, to something new."""

    js: JetStream
    owner: Owner
    settings: Settings
    root: Path
    ids: list[str]
    commits: int = 0

    async def fill(self, count: int) -> None:
        """Give it so many values, by one commit."""
        self.ids = [str(ULID()) for _ in range(count)]
        values: list[AnyUpdate] = [
            PutValue(value_id=value_id, name=f"value {n}", value=n)
            for n, value_id in enumerate(self.ids)
        ]
        rebase(graph_of(self.owner.own.state), 1, values)
        await self.owner.own.write()

    async def commit(self) -> float:
        """Commit one request; seconds of what follows its rebase."""
        self.commits += 1
        value_id = self.ids[self.commits * 7919 % len(self.ids)]
        prepared = await self.owner.prepared([SetValue(value_id=value_id, value=self.commits)])
        started = time.perf_counter()
        await prepared()
        return time.perf_counter() - started

    async def raw(self) -> "Raw":
        """The same bytes as the next commits', without us."""
        return await Raw.of(self)

    async def loading(self) -> float:
        """Seconds in which the state is there, from store and log."""
        started = time.perf_counter()
        await self.owner.archive.load()
        return time.perf_counter() - started

    async def checkpointing(self) -> Small:
        """Write what changed; return the time of all, and the part in which the lock is held."""
        started = time.perf_counter()
        task = asyncio.create_task(self.owner.checkpoint())
        await asyncio.sleep(0)
        async with self.owner.own.lock:
            held = time.perf_counter() - started
        await task
        return Small(time.perf_counter() - started, held)

    async def tidy(self) -> None:
        own = self.owner.own
        start = own.state.checkpoints[0].commit if own.state.checkpoints else 0
        archive = self.owner.archive
        await asyncio.to_thread(
            compact, checkpoints_of(archive), archive.change_set, start, KEEP_REPLACED
        )

    async def commits_while_tidying(self) -> Busy:
        """Commit one by one for as long as all rows are looked through and written anew."""
        archive = self.owner.archive
        table = checkpoints_of(archive).open(archive.change_set)
        assert table is not None  # noqa: S101 - there is a checkpoint
        started = time.perf_counter()
        work = asyncio.create_task(
            asyncio.to_thread(drop_superseded, table, self.owner.own.state.checkpoint_commit)
        )
        commits = []
        while not work.done():
            commits.append(await self.commit())
        await work
        return Busy(commits, time.perf_counter() - started)

    async def log_size(self) -> tuple[int, int]:
        """Lines and octets, of the one change set there is."""
        state = (await self.js.stream_info(Subjects().commits_stream)).state
        return state.messages, state.bytes

    def stored(self) -> int:
        """Octets under the store's root."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def files(self) -> int:
        return sum(path.is_file() for path in self.root.rglob("*"))


class Raw:
    """Publishes a line's payload and headers with nats-py alone."""

    def __init__(
        self, js: JetStream, subject: str, payload: bytes, headers: dict[str, str]
    ) -> None:
        self._js = js.nc.jetstream()
        self._subject = subject
        self._payload = payload
        self._headers = headers
        self._last = 0

    @classmethod
    async def of(cls, case: Case) -> "Raw":
        """Return a writer of messages as large as the last line, to a subject of its own."""
        await case.commit()
        _, line = await case.owner.archive.log.last()
        assert isinstance(line, CommitV2)  # noqa: S101 - written just now
        headers, payload = Commit.encode(line)
        subject = Subjects().commits(ChangeSet(WorkspaceId(), ChangeSetId()))
        return cls(case.js, subject, payload, headers)

    async def publish(self, *, expect: bool) -> float:
        headers = {**self._headers, MESSAGE_ID: str(ULID())}
        if expect:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(self._last)
        started = time.perf_counter()
        ack = await self._js.publish(self._subject, self._payload, headers=headers)
        taken = time.perf_counter() - started
        self._last = ack.seq
        return taken


@asynccontextmanager
async def opened(url: str, root: Path) -> AsyncIterator[Case]:
    """A change set of its own, with the store at `root`."""
    settings = Settings.model_validate({"nats": {"url": url}, "store": {"root": str(root)}})
    async with connected(ConnectOptions(servers=(url,))) as nc:
        js = JetStream(nc)
        await prepare(js, settings)
        stream = Subjects().commits_stream
        await js.purge(stream)
        change_set = ChangeSet(WorkspaceId(), ChangeSetId())
        own = await acquire_ownership(open_state_loader(js, settings, change_set), "measured")
        owner = Owner(own, Retention.of(settings.history))
        case = Case(js, owner, settings, root, [])
        await case.fill(10)
        yield case


EVERY: Final = 500
"""Commits from one checkpoint to the next, as production has it."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes for what NATS does, one for what it has no part in."""
    commits = _commits()
    for durability in DURABILITY:
        files = directory / durability
        with broker(files / "nats", durability) as server:
            say(f"store: commits, synced {server.durability}")
            async with opened(server.url, files / "store") as case:
                commits.rows.append([server.durability, *await _commit_and_publish(case, sizes)])
    with broker(directory / "nats") as server:
        async with opened(server.url, directory / "store") as case:
            say(f"store: {sizes.store_values:,} values")
            large = await _large(case, sizes)
        async with opened(server.url, directory / "many") as case:
            say(f"store: {sizes.store_commits:,} commits")
            space = await _space(case, sizes, server.durability)
    return [commits, *large, space, *await forks(directory, sizes, say)]


def _commits() -> Table:
    return Table(
        "One commit beside one raw publish of the same bytes, ms",
        [
            *("synced", "commit p50", "p99", "with expectation p50", "p99", "plain p50", "p99"),
            *("commit / with", "commit / plain"),
        ],
        notes=[
            (
                "A commit is `Ownership.write`: encode, publish under compare-and-swap, take over. "
                "Raw is nats-py's `publish` of the same payload and headers to the same stream, "
                "each awaited, with or without the expected sequence. Blocks alternate."
            )
        ],
    )


async def _commit_and_publish(case: Case, sizes: Sizes) -> list[float]:
    times: dict[str, list[float]] = {"commit": [], "with": [], "plain": []}
    raw = await case.raw()
    for _ in range(sizes.rounds):
        for _ in range(sizes.one_by_one // 5):
            times["commit"] += [await case.commit() for _ in range(5)]
            times["with"] += [await raw.publish(expect=True) for _ in range(5)]
            times["plain"] += [await raw.publish(expect=False) for _ in range(5)]
    p50 = {name: median(values) for name, values in times.items()}
    figures = [f(v) * MILLI for v in times.values() for f in (median, lambda v: percentile(v, 99))]
    return [*figures, p50["commit"] / p50["with"], p50["commit"] / p50["plain"]]


async def _large(case: Case, sizes: Sizes) -> list[Table]:
    """A change set of many values: written, loaded, and tidied while commits go on."""
    await case.fill(sizes.store_values)
    started = time.perf_counter()
    await case.owner.checkpoint()
    written = time.perf_counter() - started
    loads = [await case.loading() for _ in range(sizes.rounds)]
    for _ in range(EVERY):
        await case.commit()
    tails = [await case.loading() for _ in range(sizes.rounds)]
    small = await case.checkpointing()
    load = Table(
        "A change set of many values, s",
        [
            *("values", "first checkpoint", "load", f"load and {EVERY} lines"),
            *("next checkpoint", "commits held up for", "MB stored"),
        ],
        [
            [
                *(sizes.store_values, written, median(loads), median(tails)),
                *(small.seconds, small.held, case.stored() / 1e6),
            ]
        ],
        notes=[f"The next checkpoint writes what {EVERY} commits changed."],
    )
    quiet = [await case.commit() for _ in range(sizes.one_by_one)]
    busy = await case.commits_while_tidying()
    tidied = Table(
        "Commits while the table is tidied beside them, ms",
        ["values", "quiet p50", "p99", "tidying p50", "p99", "p50 ratio", "tidying, s"],
        [
            [
                sizes.store_values,
                *(median(quiet) * MILLI, percentile(quiet, 99) * MILLI),
                *(median(busy.commits) * MILLI, percentile(busy.commits, 99) * MILLI),
                *(median(busy.commits) / median(quiet), busy.seconds),
            ]
        ],
        notes=["Tidying rewrites the whole table, in a thread of the process that commits."],
    )
    return [load, tidied]


async def _space(case: Case, sizes: Sizes, durability: str) -> Table:
    """After so many commits to a thousand values, with a checkpoint every 500."""
    table = Table(
        f"Space after commits to 1,000 values, a checkpoint every {EVERY}",
        [
            *("commits", "lines kept", "MB of log", "octets a line", "files", "MB in tables"),
            *("load, s", "commits/s"),
        ],
        notes=[f"Past kept as by default. Synced {durability}."],
    )
    await case.fill(1_000)
    started = time.perf_counter()
    for number in range(1, sizes.store_commits + 1):
        await case.commit()
        if number % EVERY == 0:
            await case.owner.checkpoint()
            await case.tidy()
        if number in (sizes.store_commits // 10, sizes.store_commits):
            taken = time.perf_counter() - started
            lines, octets = await case.log_size()
            table.rows.append(
                [
                    *(number, lines, octets / 1e6, octets // max(lines, 1), case.files()),
                    *(case.stored() / 1e6, await case.loading(), number / taken),
                ]
            )
    await asyncio.sleep(0)
    return table
