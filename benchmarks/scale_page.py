"""Scale, `page`: what one refresh of the status page costs daemon and browser."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser
from ulid import ULID

from benchmarks.broker import broker
from benchmarks.deployment import MeasuredDaemon, client_of, running
from benchmarks.processes import Meter
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.subjects import Subjects
from tests.helpers.browser import browsing, chromium
from tests.helpers.eventually import eventually

AT_ONCE: Final = 64
WATCHED: Final = 10.0
"""Seconds of each measurement; a refresh comes every second."""
_BUSY: Final = "Performance.getMetrics"

Say = Callable[[str], None]


@dataclass(slots=True)
class World:
    """A daemon that holds so many change sets, while requests of as many others wait."""

    count: int
    daemon: MeasuredDaemon
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.daemon.said("ops endpoint started")[0]["url"])

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


async def run(directory: Path, counts: Sequence[int], rounds: int, say: Say) -> list[Table]:
    """The worlds are there at once and measured in turns."""
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(browsing()) if chromium() else None
        worlds = []
        for count in counts:
            say(f"page: {count} change sets")
            world = await stack.enter_async_context(_world(directory / str(count), count))
            worlds.append(world)
        for world in worlds:
            await eventually(lambda world=world: asyncio.to_thread(_is_at_rest, world), within=60)
        for number in range(rounds):
            say(f"page: round {number + 1} of {rounds}")
            for world in worlds if number % 2 else reversed(worlds):
                await _status(world)
                await _watched(world, browser)
        return [_table(worlds)]


async def _status(world: World) -> None:
    for _ in range(5):
        await asyncio.sleep(1.1)  # a status is good for a second
        began = time.perf_counter()
        body = await asyncio.to_thread(_get, world.url + "status")
        world.add("status", time.perf_counter() - began)
        world.add("octets", len(body))


def _is_at_rest(world: World) -> bool:
    """No result of an update is in line any more."""
    shown = json.loads(_get(world.url + "status"))
    held, waiting = shown["rebasers"][0]["slots"]["busy"], shown["queues"]["change_sets_waiting"]
    return bool(held == waiting == world.count)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - loopback
        return bytes(response.read())


async def _watched(world: World, browser: Browser | None) -> None:
    """What a page that is open adds to the daemon's processor time, and takes of the browser's."""
    meter = Meter.of(daemon=world.daemon.process.pid)
    await asyncio.sleep(WATCHED)
    idle = meter.seconds("daemon")
    if browser is None:
        return
    page = await browser.new_page()
    await page.goto(world.url)
    await page.get_by_text("NATS answers").wait_for()
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    refreshes = "performance.getEntriesByName('refresh', 'measure').map((each) => each.duration)"
    before = len(await page.evaluate(refreshes))
    busy, meter = await _busy(session), Meter.of(daemon=world.daemon.process.pid)
    await asyncio.sleep(WATCHED)
    shown = (await page.evaluate(refreshes))[before:]
    world.add("daemon", (meter.seconds("daemon") - idle) / len(shown))
    world.add("main thread", (await _busy(session) - busy) / len(shown))
    world.add("script", median(shown) / MILLI)
    world.add("script, most", max(shown) / MILLI)
    await page.close()


async def _busy(session: Any) -> float:
    """Seconds for which the page's main thread has been busy: script, style, layout, paint."""
    metrics = (await session.send(_BUSY))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _table(worlds: Sequence[World]) -> Table:
    table = Table(
        "One refresh of the status page (ms, medians)",
        [
            *("change sets", "/status", "KiB", "daemon's CPU"),
            *("browser's main thread", "script in it", "slowest"),
        ],
        notes=[
            "So many in hand, and so many others with a request that waits. NATS: default sync."
        ],
    )
    for world in worlds:
        found = world.figures
        row: list[Cell] = [world.count, MILLI * median(found["status"])]
        row.append(median(found["octets"]) / 1024)
        seen = "script" in found
        for name in ("daemon", "main thread", "script"):
            row += [MILLI * median(found[name]) if seen else None]
        table.rows.append([*row, MILLI * max(found["script, most"]) if seen else None])
    return table


@asynccontextmanager
async def _world(files: Path, count: int) -> AsyncIterator[World]:
    with broker(files / "nats") as server:
        more = {
            "SPARK__WARM": "false",
            "SPARK__MIN_AFFECTED": "1000000000",
            "CONCURRENCY": str(count + count // 20 + 2),  # as many as a workspace must leave free
            "QUIET_PERIOD": "3600",
            "RECONCILE_INTERVAL": "3600",
            "ACK_WAIT": "3600",
            "OPS__PORT": "0",
        }
        with running(server.url, files, 1, **more) as daemon:
            await daemon.ready(within=120)
            async with client_of(server) as (client, js):
                await _touch(client, _new(count))
                subjects = Subjects()
                for change_set in _new(count):  # no task, and no reconciler to make one
                    await js.publish(subjects.requests(change_set), b"waits")
                yield World(count, daemon)


def _new(count: int) -> list[ChangeSet]:
    workspaces = [WorkspaceId() for _ in range(20)]
    return [ChangeSet(workspaces[n % 20], ChangeSetId()) for n in range(count)]


async def _touch(client: RebaserClient, change_sets: Sequence[ChangeSet]) -> None:
    """A value and one that follows from it, in each."""
    several = asyncio.Semaphore(AT_ONCE)

    async def one(change_set: ChangeSet) -> None:
        source, func = str(ULID()), str(ULID())
        code = {"funcId": func, "name": "same", "runtime": "builtin", "code": "identity"}
        inputs = {"value": source}
        batch = [
            {"putFunc": code},
            {"putValue": {"valueId": source, "value": 1}},
            {"putValue": {"valueId": str(ULID()), "funcId": func, "inputs": inputs}},
        ]
        async with several:
            _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
            await reply

    async with asyncio.TaskGroup() as group:
        for change_set in change_sets:
            group.create_task(one(change_set))
