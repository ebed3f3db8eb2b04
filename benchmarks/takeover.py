"""Part `takeover`: how long a change set stands still after the Rebaser that has it ended."""

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.broker import DURABILITY, Broker, broker
from benchmarks.commits import following
from benchmarks.deployment import MeasuredDaemon, client_of
from benchmarks.lanes import RebaserLane
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_core.commits import Commit
from rebaser_core.subjects import Subjects
from tests.helpers.deployment import new_change_sets

LOAD_EVERY = 0.02
"""Seconds between the requests that clients send meanwhile, to one change set after another."""
REST = 2.0
"""Seconds before each fault: every daemon has heard the others."""

Say = Callable[[str], None]


class Cluster:
    """Daemons with default settings beside one server, and the owners that the logs name."""

    def __init__(self, server: Broker, files: Path) -> None:
        self._server = server
        self._files = files
        self._starts = 0
        self.lanes: list[RebaserLane] = []
        self.daemons: dict[str, MeasuredDaemon] = {}

    async def start(self) -> MeasuredDaemon:
        self._starts += 1
        name = f"daemon-{self._starts}"
        variables = {
            "NATS__URL": self._server.url,
            "STORE__ROOT": str(self._files / "store"),
            "SPARK__STATE_DIRECTORY": str(self._files / "spark"),
            "SPARK__WARM": "false",
            "INSTANCE_ID": name,
        }
        daemon = self.daemons[name] = MeasuredDaemon(name, self._files, variables)
        await daemon.ready(within=120)
        return daemon

    def owner(self, lane: RebaserLane) -> str:
        """Name of the daemon that the last line names; empty if none."""
        last = lane.commits.last[lane.subject]
        return Commit.decode(last.headers, last.payload).control.owner.partition("/")[0]

    def owned_by(self, daemon: MeasuredDaemon) -> list[RebaserLane]:
        return [lane for lane in self.lanes if self.owner(lane) == daemon.name]

    def busiest(self) -> MeasuredDaemon:
        return max(self.daemons.values(), key=lambda daemon: len(self.owned_by(daemon)))

    def kill(self, daemon: MeasuredDaemon) -> None:
        del self.daemons[daemon.name]
        daemon.kill()

    async def taken(self, lanes: Sequence[RebaserLane], before: str) -> list[float]:
        """When the first line of another owner came, by `time.time()`, for each of `lanes`."""

        async def taken(lane: RebaserLane) -> float:
            while self.owner(lane) in ("", before):
                count = lane.commits.count(lane.subject)
                await lane.commits.line(lane.subject, count + 1)
            return time.time()

        return list(await asyncio.gather(*map(taken, lanes)))


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    """Both durability modes, each on a server of its own, under load."""
    rows: list[list[Cell]] = []
    for durability in DURABILITY:
        files = directory / durability.replace(" ", "-")
        with broker(files / "nats", durability) as server:
            found = await _measured(server, files, sizes, say)
            rows += [
                [server.durability, what, len(took), median(took), max(took)]
                for what, took in found.items()
            ]
    columns = ["synced", "what ended, and from when", "takeovers", "median s", "worst s"]
    title = "From the end of a Rebaser to the next owner's first commit"
    return [Table(title, columns, rows, [_NOTE])]


async def _measured(server: Broker, files: Path, sizes: Sizes, say: Say) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {what: [] for what in _NAMES.values()}
    cluster = Cluster(server, files)
    try:
        await cluster.start()
        async with _lanes(server, sizes.change_sets) as cluster.lanes, _load(cluster.lanes):
            for number in range(sizes.rounds):
                for fault, what in _NAMES.items():
                    say(f"takeover: {what}, {number + 1} of {sizes.rounds}")
                    found[what] += await fault(cluster)
    finally:
        for daemon in cluster.daemons.values():
            daemon.kill()
    return found


@asynccontextmanager
async def _lanes(server: Broker, count: int) -> AsyncIterator[list[RebaserLane]]:
    """Change sets that a daemon has taken up."""
    subjects = Subjects()
    async with (
        client_of(server) as (client, js),
        following(js, subjects.commits_stream) as commits,
    ):
        lanes = [RebaserLane(client, commits, subjects, each) for each in new_change_sets(count)]
        for lane in lanes:
            await lane.open()
        yield lanes


@asynccontextmanager
async def _load(lanes: Sequence[RebaserLane]) -> AsyncIterator[None]:
    """Send requests to one change set after the other while the body runs."""

    async def send() -> None:
        for lane in itertools.cycle(lanes):
            await lane.send()
            await asyncio.sleep(LOAD_EVERY)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def _beside(cluster: Cluster) -> list[float]:
    """Kill the one of two that has most."""
    await cluster.start()
    await asyncio.sleep(REST)
    daemon = cluster.busiest()
    lanes, began = cluster.owned_by(daemon), time.time()
    cluster.kill(daemon)
    return [at - began for at in await cluster.taken(lanes, daemon.name)]


async def _only(cluster: Cluster) -> list[float]:
    """Kill the only one, and start another."""
    [daemon] = cluster.daemons.values()
    await asyncio.sleep(REST)
    lanes = cluster.owned_by(daemon)
    cluster.kill(daemon)
    taking = asyncio.create_task(cluster.taken(lanes, daemon.name))
    [ready] = (await cluster.start()).said("ready")
    began = datetime.fromisoformat(ready["timestamp"]).timestamp()
    return [at - began for at in await taking]


async def _frozen(cluster: Cluster) -> list[float]:
    """Stop the one of two that has most: its connection stays."""
    await cluster.start()
    await asyncio.sleep(REST)
    daemon = cluster.busiest()
    lanes, began = cluster.owned_by(daemon), time.time()
    daemon.send(signal.SIGSTOP)
    took = await cluster.taken(lanes, daemon.name)
    cluster.kill(daemon)
    return [at - began for at in took]


_NAMES = {
    _beside: "killed beside another, from the kill",
    _frozen: "frozen beside another, from the freeze",
    _only: "the only one killed and started again, from its `ready`",
}
_NOTE = """\
Default settings; a client sends 50 requests a second to all change sets, one after the other. Each
takeover is that of one change set, which the daemon that ended had in hand."""
