"""`rebaser demo`: compute and recompute real input with a daemon, NATS and Spark."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from debian_demo.client import DemoClient, demo_client
from debian_demo.graph import Packages, UnknownPackage, load_packages
from debian_demo.report import Report, histogram
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.errors import RebaserError
from rebaser_server.runtime.tasks import Shutdown, on_signals
from rebaser_server.service import daemon
from rebaser_server.service.dev_server import ANY_PORT, nats_server, settings_in_directory
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal import lines
from rebaser_server.terminal.tables import cell, console
from rebaser_server.values.graph import Graph


class DemoFailed(RebaserError):
    """The demo cannot run."""


async def demo(settings: Settings, package: str, *, as_json: bool) -> None:
    """Load all packages as a change set, recompute, fix `package`, recompute; print the answer.

    All data is in a temporary directory.

    Raises:
        DemoFailed: there is no such package, or a request was refused.
    """
    steps = Steps()
    shutdown = Shutdown()
    with (
        on_signals(shutdown),
        tempfile.TemporaryDirectory(prefix="rebaser-demo-", ignore_cleanup_errors=True) as data,
    ):
        async with nats_server(Path(data) / "nats", ANY_PORT) as nats:
            here = settings_in_directory(settings, Path(data), nats)
            report = await _beside_daemon(here, package, steps, shutdown)
    if as_json:
        lines.say_json(report.as_json())
    else:
        report.show()


def _packages(package: str) -> Packages:
    packages = load_packages()
    try:
        packages.own_id(package)
    except UnknownPackage as error:
        raise DemoFailed(str(error)) from None
    return packages


async def _beside_daemon(
    settings: Settings, package: str, steps: "Steps", shutdown: Shutdown
) -> Report:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(daemon.run(settings, shutdown, warm_after=0))
            try:
                async with shutdown.interrupts(), demo_client(settings) as client:
                    return await _report(client, package, steps)
            finally:
                shutdown.set()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _report(client: DemoClient, package: str, steps: "Steps") -> Report:
    with steps.step("read the packages"):
        packages = await asyncio.to_thread(_packages, package)
    with steps.step("send them as one batch"):
        answer = await client.enqueue(await asyncio.to_thread(packages.batch))
    with steps.step("apply the batch"):
        await answer
    with steps.step("recompute all values"):
        first = await client.dvu_finished(steps.progress)
    with steps.step("read the values"):
        before = _distances(await client.graph(), packages)
    with steps.step(f"fix {package}"):
        fix = {"setValue": {"valueId": packages.own_id(package), "value": False}}
        await (await client.enqueue([fix]))
    pending = packages.is_pending(package)
    with steps.step("recompute what depends on it"):
        second = await client.dvu_finished(steps.progress) if pending else _NOTHING
    with steps.step("read the values again"):
        graph = await client.graph()
        after = _distances(graph, packages)
    return Report(
        package=package,
        pending=pending,
        packages=len(packages.names),
        exposed_before=sum(hops is not None for hops in before),
        exposed_after=_exposed(graph, packages),
        distance_changed=sum(a != b for a, b in zip(before, after, strict=True)),
        distances_before=histogram(before),
        distances_after=histogram(after),
        values=len(graph.values),
        affected_first=first["affected"],
        affected_second=second["affected"],
        recomputed_first=first["recomputed"],
        recomputed_second=second["recomputed"],
        seconds=steps.seconds,
    )


_NOTHING: Final = {"affected": 0, "recomputed": 0}


def _distances(graph: Graph, packages: Packages) -> list[int | None]:
    return [graph.values[value_id].value for value_id in packages.distance_ids]


def _exposed(graph: Graph, packages: Packages) -> int:
    return sum(graph.values[value_id].value for value_id in packages.exposed_ids)


class Steps:
    """Prints the steps of the demo, and how long each took."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._status = self._console.status("")
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the body under `name`."""
        started = time.monotonic()
        with self._console.status(cell(name)) as self._status:
            yield
        self.seconds[name] = round(time.monotonic() - started, 3)
        took = cell(f"{self.seconds[name]:.1f} s", "dim")
        self._console.print(cell("✓", "green"), cell(name), took)

    def progress(self, activity: ActivityV1) -> None:
        """Show the progress of an update beside the name of the step."""
        details: dict[str, Any] = activity.details
        if activity.kind is ActivityKind.DVU_PROGRESS:
            self._status.update(cell(f"recompute: {details['done']:,} of {details['of']:,} values"))
