"""Scale, `active`: what it takes to keep many change sets in hand that have nothing to do."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ulid import ULID

from benchmarks.broker import Broker, broker
from benchmarks.deployment import MeasuredDaemon, client_of, running
from benchmarks.processes import Meter, memory
from benchmarks.tables import Table
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects

WORKSPACES = 100
QUIET = 600.0
"""Seconds; longer than the measurement."""
IDLE = 20.0
"""Seconds over which an idle daemon's processor time is measured, after as many to settle."""
AT_ONCE = 64
WARM_UP = 20
"""Change sets of those in hand that are there before it is measured."""
KIB = 1024

_NOTE = """\
One value each. Memory is what was added, divided by the change sets. Idle is {idle:g} s, from
{idle:g} s after the last request. All quiet: from SIGTERM of the daemon that holds them and the
start of one whose quiet period is 1 s, until no task is left."""

Say = Callable[[str], None]


async def run(directory: Path, counts: Sequence[int], say: Say) -> list[Table]:
    """For each count a server and a daemon of their own."""
    table = Table(
        "Change sets in hand with nothing to do",
        [
            *("change sets", "taken up in s", "a second"),
            *("daemon KiB each", "nats-server KiB each"),
            *("daemon % of a core", "nats-server % of a core"),
            *("all quiet in s", "a second quiet"),
        ],
        notes=[
            _NOTE.format(idle=IDLE),
        ],
    )
    for count in counts:
        table.rows.append(await _one(directory / str(count), count, say))
    return [table]


async def _one(files: Path, count: int, say: Say) -> list[float | int]:
    with broker(files / "nats") as server:
        async with (
            _daemon(server, files, "holder", count, QUIET) as daemon,
            client_of(server) as (client, js),
        ):
            await _touch(client, new_change_sets(WARM_UP))
            pids = {"daemon": daemon.process.pid, "server": server.pid}
            before = [memory(pid) for pid in pids.values()]
            say(f"active: {count} change sets")
            change_sets = new_change_sets(count - WARM_UP)
            started = time.monotonic()
            await _touch(client, change_sets)
            took = time.monotonic() - started
            await asyncio.sleep(IDLE)
            after = [memory(pid) for pid in pids.values()]
            meter = Meter.of(**pids)
            await asyncio.sleep(IDLE)
            idle = [meter.share(name) for name in pids]
            say("active: until all are quiet")
            quiet = await _quiet(server, files, daemon, js, count)
    added = count - WARM_UP
    each = [(later - earlier) / added / KIB for earlier, later in zip(before, after, strict=True)]
    return [count, took, added / took, *each, *idle, quiet, count / quiet]


async def _quiet(
    server: Broker, files: Path, daemon: MeasuredDaemon, js: JetStream, count: int
) -> float:
    """Seconds until nobody holds anything any more."""
    started = time.monotonic()
    daemon.process.terminate()
    async with _daemon(server, files, "quiet", count, 1.0):
        while True:
            info = await js.stream_info(Subjects().tasks_stream)
            if not info.state.messages:
                return time.monotonic() - started
            await asyncio.sleep(0.1)


def new_change_sets(count: int) -> list[ChangeSet]:
    workspaces = [WorkspaceId() for _ in range(WORKSPACES)]
    return [ChangeSet(workspaces[n % WORKSPACES], ChangeSetId()) for n in range(count)]


async def _touch(client: RebaserClient, change_sets: Sequence[ChangeSet]) -> None:
    """Return when each has applied a request."""
    todo = iter(change_sets)

    async def send() -> None:
        for change_set in todo:
            define = [{"putValue": {"valueId": str(ULID()), "value": 1}}]
            _, reply = await client.enqueue_updates_with_reply(*change_set, define)
            await reply

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


@asynccontextmanager
async def _daemon(
    server: Broker, files: Path, name: str, count: int, quiet: float
) -> AsyncIterator[MeasuredDaemon]:
    more = {"INSTANCE_ID": name, "CONCURRENCY": str(count), "QUIET_PERIOD": str(quiet)}
    with running(server.url, files, SPARK__WARM="false", **more) as daemon:
        await daemon.ready(within=120)
        yield daemon
