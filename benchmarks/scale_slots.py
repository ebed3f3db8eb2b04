"""Scale, `slots`: more active change sets than slots, beside the same work with enough of them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.msg import Msg
from ulid import ULID

from benchmarks.broker import Broker, broker
from benchmarks.deployment import MeasuredDaemon, client_of
from benchmarks.processes import Meter
from benchmarks.tables import Table, median, percentile
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId

AT_ONCE = 32
ROUNDS_EACH = 5
"""Requests for each change set in a round."""
API = "$JS.API."

_NOTE = """\
{change_sets} change sets, one request each in turn, {rounds} times round, {at_once} at any time,
each awaited; one daemon, synced {synced}. *One*: all in one workspace, which may have four fifths
of the slots. *Each*: in a workspace of its own. With enough slots no run ends. Calls: of the
JetStream API, of daemon and client together; p50 and p99 from the call to the reply."""

Say = Callable[[str], None]
Layout = Callable[[int], list[ChangeSet]]


def in_one_workspace(count: int) -> list[ChangeSet]:
    workspace = WorkspaceId()
    return [ChangeSet(workspace, ChangeSetId()) for _ in range(count)]


def in_a_workspace_each(count: int) -> list[ChangeSet]:
    return [ChangeSet(WorkspaceId(), ChangeSetId()) for _ in range(count)]


LAYOUTS: dict[str, Layout] = {"one": in_one_workspace, "each": in_a_workspace_each}


async def run(directory: Path, change_sets: int, slots: int, rounds: int, say: Say) -> list[Table]:
    """Few slots and enough of them, in turns, each time on a server of their own."""
    with_enough = 2 * change_sets
    found: dict[tuple[str, int], list[dict[str, float]]] = {
        (layout, count): [] for layout in LAYOUTS for count in (slots, with_enough)
    }
    synced = ""
    for number in range(rounds):
        for (layout, count), measured in found.items():
            say(f"slots: {layout}, {count} slots, round {number + 1} of {rounds}")
            files = directory / f"{number} {layout} {count}"
            with broker(files / "nats") as server:
                synced = server.durability
                figures = await _measure(server, files, LAYOUTS[layout](change_sets), count)
            measured.append(figures)
            say(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    note = _NOTE.format(change_sets=change_sets, rounds=ROUNDS_EACH, at_once=AT_ONCE, synced=synced)
    names = list(next(iter(found.values()))[0])
    table = Table(
        "More active change sets than slots",
        ["workspaces", "slots", *names, "of the rate with enough"],
        notes=[note],
    )
    medians = {
        which: {name: median([each[name] for each in figures]) for name in names}
        for which, figures in found.items()
    }
    for (layout, count), figures in medians.items():
        enough = medians[layout, with_enough]["requests a second"]
        ratio = figures["requests a second"] / enough
        table.rows.append([layout, count, *figures.values(), ratio])
    return [table]


async def _measure(
    server: Broker, files: Path, change_sets: Sequence[ChangeSet], slots: int
) -> dict[str, float]:
    async with _daemon(server, files, slots) as daemon, client_of(server) as (client, nc_js):
        await _work(client, change_sets, 1)  # each is known then, and has a state
        calls, meter = Counter[str](), Meter.of(daemon=daemon.process.pid, server=server.pid)

        async def called(message: Msg) -> None:
            calls[message.subject] += 1

        started = time.perf_counter()
        took = await _work(client, change_sets, ROUNDS_EACH)
        seconds, done = time.perf_counter() - started, len(took)
        figures = {
            "requests a second": done / seconds,
            "p50 ms": 1e3 * percentile(took, 50),
            "p99 ms": 1e3 * percentile(took, 99),
            "daemon's CPU ms a request": 1e3 * meter.seconds("daemon") / done,
            "nats-server's": 1e3 * meter.seconds("server") / done,
        }
        subscription = await nc_js.nc.subscribe(f"{API}>", cb=called)  # apart: it costs time
        counted = len(await _work(client, change_sets, 1))
        await nc_js.connection.ping(5)
        await subscription.unsubscribe()
        pulls = sum(n for subject, n in calls.items() if ".MSG.NEXT." in subject)
        return {**figures, "API calls a request": (calls.total() - pulls) / counted}


async def _work(
    client: RebaserClient, change_sets: Sequence[ChangeSet], rounds: int
) -> list[float]:
    """Return the seconds of each request once all are answered."""
    todo, took = iter([each for _ in range(rounds) for each in change_sets]), list[float]()

    async def send() -> None:
        for change_set in todo:
            began = time.perf_counter()
            define = [{"putValue": {"valueId": str(ULID()), "value": 1}}]
            _, reply = await client.enqueue_updates_with_reply(*change_set, define)
            await reply
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return took


@asynccontextmanager
async def _daemon(server: Broker, files: Path, slots: int) -> AsyncIterator[MeasuredDaemon]:
    variables = {
        "NATS__URL": server.url,
        "STORE__ROOT": str(files / "store"),
        "SPARK__STATE_DIRECTORY": str(files / "spark"),
        "SPARK__WARM": "false",
        "CONCURRENCY": str(slots),
        "NATS__CONNECT_TIMEOUT": "60",
    }
    daemon = MeasuredDaemon("daemon", files, variables)
    try:
        await daemon.ready(within=120)
        yield daemon
    finally:
        daemon.kill()
