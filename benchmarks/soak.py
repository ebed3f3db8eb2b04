"""Two hours in which 300 change sets come and go beside bad functions and visitors of all kinds.

`python -m benchmarks.soak [--minutes 120] [--known N] [--json FILE]`: a table on stdout of what one
daemon, its processes, its Spark, its nats-server and its store hold, a line each minute on stderr,
and how many of the sums and tables that were read came out wrong. What is kept for days is kept for
minutes here, so that it levels within the run. With `--known`, so many more are there from the
start, at rest. A run of two hours, or of one with many known, also writes its table to
`results.md`.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from nats.aio.client import Client
from ulid import ULID

from benchmarks import results
from benchmarks.deployment import running
from benchmarks.machine import Machine
from benchmarks.processes import children_of, proportional
from benchmarks.tables import Cell, Table
from rebaser_client.change_set import WorkspaceHandle
from rebaser_client.client import RebaserClient
from rebaser_client.draft import builtin, python, sql
from rebaser_core.ids import ChangeSet  # noqa: TC001
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.streams import Streams
from tests.helpers.deployment import Daemon
from tests.helpers.graph_builder import install
from tests.helpers.idle_change_sets import load
from tests.helpers.nats_process import MONITORING, NatsServer
from tests.helpers.nats_process import running as running_nats
from tests.helpers.poison_queries import poison_question

WORKSPACES, BRANCHES = 30, 9
"""300 change sets at a time: a head and so many branches each."""
LIFE: Final = 240.0
"""Seconds from the creation of a workspace to its deletion, at least."""
EDITS: Final = 4
"""Number of edits of each branch."""
HARMED: Final = 2
"""Change sets whose functions harm, of each kind."""
WHOLE, WHOLE_KNOWN = 120, 60
"""Minutes of a run whose table is kept, without and with many that are known."""
MARKS: Final = (0, 0.25, 0.5, 0.75, 1)
"""Parts of the run at which the table has a row."""
_CODE: Final = """\
import os, time

KEPT = []


def slow(value):
    time.sleep(3)
    return value


def huge(value):
    data = [value] * 25_000_000
    return "x" * 500_000 + str(len(data))


def leaking(value):
    KEPT.extend(open(os.devnull) for _ in range(5_000))
    return value


def crashing(value):
    os.abort()
"""
_HARMFUL: Final = ("slow", "huge", "leaking", "crashing")
_SETTINGS: Final[dict[str, str]] = {
    "QUIET_PERIOD": "30",
    "CHECKPOINT_EVERY": "20",
    "HISTORY__RETENTION": "PT10M",
    "CHANGE_SETS__DELETED_RETENTION": "PT10M",
    "STORE__ORPHAN_RETENTION": "PT10M",
    "STATE_CACHE_BYTES": str(32 << 20),
    "FUNCTIONS__MEMO_BYTES": str(16 << 20),
    "FUNCTIONS__TIMEOUT": "10",
    "OPS__LOCAL_ROLE": "operator",
}
_QUERY: Final = "SELECT k, sum(n * :rate) AS n FROM rows GROUP BY k"
_COLUMNS: Final = (
    *("minute", "daemon MiB", "threads", "descriptors", "processes beside", "of these MiB"),
    *("JVM MiB", "nats-server MiB", "consumers", "messages", "streams MiB"),
    *("files of the store", "store MiB", "log MiB", "workspaces ended", "wrong"),
)
_NOTE: Final = """\
{workspaces} workspaces with {branches} branches each at a time, each deleted after {life:.0f} s at
least; {harmed} change sets of each kind of harmful functions; pages, event streams, half-said
headers, bytes at random and questions at random all the while. What is kept for a time
is kept for minutes."""


class Soak:
    """Life, visitors and harm on one daemon, and the mistakes that were seen."""

    def __init__(self, client: RebaserClient, streams: Streams, nc: Client, url: str) -> None:
        self._client = client
        self._streams = streams
        self._nc = nc
        self._inbox = nc.new_inbox()  # answers to it are dropped
        self._url = url.rstrip("/")
        self._host, _, port = self._url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._rng = random.Random(7)
        self.ended = 0
        self.wrong: list[str] = []
        self.troubles = Counter[str]()
        self._known: list[ChangeSet] = []

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """All of it while the body runs."""
        whole: list[Callable[[], Awaitable[None]]] = [
            *((lambda number=number: self._live(number)) for number in range(WORKSPACES)),
            *(self._look, self._follow, self._half_say, self._babble, self._ask),
            *((lambda kind=kind: self._harm(kind)) for kind in _HARMFUL for _ in range(HARMED)),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._again(each)) for each in whole]
            yield
            for task in tasks:
                task.cancel()

    async def _again(self, what: Callable[[], Awaitable[None]]) -> None:
        """For ever; what goes wrong is counted, and is no reason to stop."""
        while True:
            try:
                await what()
            except (Exception, TimeoutError) as error:  # noqa: BLE001 - it is what we look for
                self.troubles[f"{type(error).__name__}: {error}"[:160]] += 1
                await asyncio.sleep(1)

    async def _live(self, number: int) -> None:
        """The life of one workspace, from its creation to its deletion."""
        began = time.monotonic()
        name = f"w{number}-{ULID()}".lower()
        shop = await self._client.workspace(name).create()
        self._known = [*self._known[-50:], await shop.ids()]
        has_table = number % 5 == 0
        size = 3_000 if number % 10 == 3 else 20  # Spark computes the large ones
        await self._define(shop, size, has_table=has_table)
        names = [f"b{n}" for n in range(BRANCHES)]
        branches = []
        for each in names:
            branches.append(await shop.fork(each))
            await self._pause(LIFE / 60)
        applied = 0
        for _ in range(EDITS):
            for branch in branches:
                new = self._rng.randrange(1_000)
                applied = new if branch is branches[0] else applied
                async with branch.edit() as g:
                    g.source("n0", new)
                found = (await branch.values("sum"))["sum"].value
                self._check(f"{name}: sum of a branch", found, sum(range(size)) + new)
                await self._pause(LIFE / 60)
        await branches[0].apply()
        for branch in branches[1:]:
            await branch.abandon()
        await shop.settled()
        found = (await shop.values("sum"))["sum"].value
        self._check(f"{name}: sum of head", found, sum(range(size)) + applied)
        if has_table:
            rows = (await (await shop.table("table")).to_arrow()).sort_by("k").to_pylist()
            self._check(f"{name}: table", [row["n"] for row in rows], [2 * 4_950.0] * 2)
        await self._pause(began + LIFE - time.monotonic())
        await self._client.workspaces.delete_workspace((await shop.ids()).workspace_id)
        self.ended += 1

    async def _define(self, shop: WorkspaceHandle, size: int, *, has_table: bool) -> None:
        async with shop.edit() as g:
            sources = [g.source(f"n{n}", n) for n in range(size)]
            each = [
                g.value(f"v{n}", builtin("sum"), values=[source])
                for n, source in enumerate(sources)
            ]
            g.value("sum", builtin("sum"), values=each)
            if has_table:
                rate = g.source("rate", 2.0)
                numbers = pa.table({"k": [0, 1] * 100, "n": [n // 2 for n in range(200)]})
                rows = await asyncio.to_thread(g.table, "rows", numbers)
                g.value("table", sql(_QUERY), rows=rows, rate=rate)

    def _check(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {found!r}, not {expected!r}")
            print("wrong:", self.wrong[-1], file=sys.stderr, flush=True)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) * self._rng.uniform(0.5, 1.5))

    async def _harm(self, kind: str) -> None:
        """Set the input of a harmful value every few seconds for some minutes; then delete all."""
        shop = await self._client.workspace(f"harm-{kind}-{ULID()}".lower()).create()
        async with shop.edit(wait="stored") as g:
            source = g.source("source", 0)
            g.value("harm", python(f"harm-{kind}"), value=source)
        for number in range(30):
            await asyncio.sleep(5)
            async with shop.edit(wait="stored") as g:
                g.source("source", number + 1)
        await self._client.workspaces.delete_workspace((await shop.ids()).workspace_id)

    async def _look(self) -> None:
        """Open pages and what they read, one after the other."""
        paths = ["", "updates", "letters", "operator", "deployment", "status", "metrics", "nowhere"]
        paths += ["readyz", "config", "change-sets", "dead-letters"]
        if self._known:
            workspace, change_set = self._rng.choice(self._known)
            about = f"?workspace={workspace}&changeSet={change_set}"
            reads = ("values", "log", "about", "discussion", "difference")
            paths += [f"change-set{about}", *(f"change-set/{each}{about}" for each in reads)]
        for path in paths:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            with contextlib.closing(writer):
                head = f"GET /{path} HTTP/1.1\r\nHost: {self._host}\r\nConnection: close"
                writer.write(f"{head}\r\n\r\n".encode())
                async with asyncio.timeout(30):
                    await reader.read()
            await asyncio.sleep(0.2)

    async def _follow(self) -> None:
        """Follow the event stream for a while, and leave without a word."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        with contextlib.closing(writer):
            writer.write(f"GET /events HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(1, 20)):
                    while await reader.read(1 << 16):
                        pass

    async def _half_say(self) -> None:
        """Hold many connections with half a header each."""
        held = []
        try:
            for _ in range(200):
                _, writer = await asyncio.open_connection(self._host, self._port)
                held.append(writer)
                writer.write(b"GET / HTTP/1.1\r\nHost: local")
            await asyncio.sleep(20)
        finally:
            for writer in held:
                writer.close()
        await asyncio.sleep(20)

    async def _babble(self) -> None:
        """Send bytes that are no HTTP, and bodies that are no JSON."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            if self._rng.random() < 0.5:
                writer.write(self._rng.randbytes(self._rng.randrange(1, 20_000)))
            else:
                body = self._rng.randbytes(self._rng.randrange(100_000))
                head = "POST /actions/set-value HTTP/1.1\r\nHost: local\r\nConnection: close"
                writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await reader.read(1 << 16)
        await asyncio.sleep(1)

    async def _ask(self) -> None:
        """A question that no client of ours would ask."""
        if self._known:
            asked = poison_question(self._rng, self._rng.choice(self._known), self._streams)
            await self._nc.publish(
                asked.subject, asked.payload, reply=self._inbox, headers=asked.headers
            )
        await asyncio.sleep(0.5)


def measured(daemon: Daemon, server: NatsServer, directory: Path) -> list[Cell]:
    """Return the memory, threads, files and so on that they hold now, in the table's order."""
    pid, broker = daemon.process.pid, server.process
    beside = [each for child in children_of(pid) for each in (child, *children_of(child))]
    spark = [each for each in beside if "java" in _name(each)]
    others = [each for each in beside if each not in spark]
    jetstream = _get(server.monitoring.removeprefix("http://"), "/jsz?consumers=true")
    # `walk` passes over directories that are removed meanwhile.
    files = [Path(at) / name for at, _, names in os.walk(directory / "store") for name in names]
    stored = sum(_size(path) for path in files)
    log = sum(_size(path) for path in directory.glob("*.log"))
    return [
        _mib(proportional(pid, inner=False)),
        *(_count(f"/proc/{pid}/task"), _count(f"/proc/{pid}/fd")),
        *(len(others), _mib(sum(proportional(each, inner=False) for each in others))),
        _mib(sum(proportional(each, inner=False) for each in spark)),
        _mib(proportional(broker.pid if broker else 0)),
        *(jetstream["consumers"], jetstream["messages"], _mib(jetstream["bytes"])),
        *(len(files), _mib(stored), _mib(log)),
    ]  # fmt: skip


def _mib(octets: int) -> int:
    return octets >> 20


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _count(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except FileNotFoundError:
        return ""


def _get(url: str, path: str) -> Any:
    with contextlib.closing(http.client.HTTPConnection(url, timeout=30)) as connection:
        connection.request("GET", path)
        return json.load(connection.getresponse())


async def run(
    directory: Path, minutes: float, known: int, say: Callable[[Sequence[Cell]], None]
) -> list[Table]:
    functions = directory / "functions"
    functions.mkdir()
    code = {f"harm-{kind}": f"harmful:{kind}" for kind in _HARMFUL}
    install(functions, "harmful", _CODE, code)
    server = NatsServer(directory / "nats", MONITORING)
    with (
        running_nats(server),
        mock.patch.dict(os.environ, {"PYTHONPATH": str(functions)}),
        running(server.url, directory, 1, **_SETTINGS) as daemon,
    ):
        await daemon.ready()
        url = daemon.said("ops endpoint started")[0]["url"]
        async with connected(ConnectOptions(servers=(server.url,), name="soak")) as nc:
            js = JetStream(nc)
            if known:
                await load(js, known)
            async with RebaserClient.on(nc, js) as client:
                soak = Soak(client, Streams(js=js), nc, url)
                rows: list[Sequence[Cell]] = []
                began = time.monotonic()
                async with soak.going_on():
                    while (passed := time.monotonic() - began) < 60 * minutes + 1:
                        held = await asyncio.to_thread(measured, daemon, server, directory)
                        rows.append([round(passed / 60), *held, soak.ended, len(soak.wrong)])
                        say(rows[-1])
                        if daemon.process.poll() is not None:
                            soak.wrong.append(f"the daemon ended: {daemon.process.poll()}")
                            break
                        await asyncio.sleep(began + 60 * len(rows) - time.monotonic())
    marked = [rows[round(mark * (len(rows) - 1))] for mark in MARKS]
    told = [f"wrong: {each}" for each in soak.wrong[:20]]
    told += [f"{number} x {what}" for what, number in soak.troubles.most_common(20)]
    note = _NOTE.format(workspaces=WORKSPACES, branches=BRANCHES, life=LIFE, harmed=HARMED)
    title = f"A soak of {minutes:g} minutes" + (f" beside {known:,} at rest" if known else "")
    return [Table(title, _COLUMNS, marked, [note, *told])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=WHOLE)
    parser.add_argument("--known", type=int, default=0, help="change sets at rest beside them")
    parser.add_argument("--json", type=Path, help="a file that each minute's figures are added to")
    asked = parser.parse_args()

    def say(row: Sequence[Cell]) -> None:
        line = json.dumps(dict(zip(_COLUMNS, row, strict=True)))
        print(line, file=sys.stderr, flush=True)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(line + "\n")

    with tempfile.TemporaryDirectory(prefix="rebaser-soak-", ignore_cleanup_errors=True) as name:
        machine = Machine.look(Path(name))
        tables = asyncio.run(run(Path(name), asked.minutes, asked.known, say))
        for table in tables:
            print(table.text())
        if asked.minutes >= (WHOLE_KNOWN if asked.known else WHOLE):
            results.record("soak-known" if asked.known else "soak", machine, tables)


if __name__ == "__main__":
    main()
