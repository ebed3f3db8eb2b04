"""The files of the product that one request and one update enter, recorded in a running daemon.

What the daemon does beside or after them is left out: heartbeats, pages, the last checkpoint.
"""

import asyncio
import re
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from rebaser_client import connect
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.tasks import TaskRunner
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.dvu import claim_update
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service import daemon
from rebaser_server.service.composition import _Rebaser, prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import ExampleGraph, put
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.paths import ROOT

CLIENT = "client, from `enqueue` to the reply"
REQUEST = "daemon, from the task to the request's deletion"
UPDATE = "daemon, from an update's claim to its commit on Spark"
_BEGINS = {TaskRunner._process.__code__: REQUEST, claim_update.__code__: UPDATE}
_ABOUT_TABLES = re.compile(
    r"rebaser_core/table_(values|schemas)\.py|rebaser_server/(tables|compute/tables|"
    r"graph_application/(tables|publisher|openlineage)|store/(publications|sources)|"
    r"compute/functions/(arrow|sql|partition_wise)|compute/spark/(spark_call|table_job)|"
    r"queries/table_.*)\.py"
)
_VISITOR = "visitor"
_ENDS = {_Rebaser.running.__wrapped__.__code__, Checkpointer.on_end.__code__}
_is_beside = ContextVar("_is_beside", default=False)
"""Whether a task runs with or without a request, as heartbeats do, or the run goes idle."""


class Ways:
    """What was entered on each way, while it is recorded."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {CLIENT: set(), REQUEST: set(), UPDATE: set()}
        self.expected: str | None = None
        """The way of the daemon that begins next, or goes on."""
        self.is_client_on = False
        self._began = False

    def expect(self, way: str | None) -> None:
        """Record this way from its beginning on; the one before ends."""
        self.expected, self._began = way, False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Note the file of a function that is called, for `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if threading.current_thread().name == _VISITOR:
            if self.is_client_on:
                self._note(CLIENT, code.co_filename)
            return
        if code in _ENDS or code in _BEGINS:
            _is_beside.set(code in _ENDS)
        if self.expected is not None and not _is_beside.get():
            self._began = self._began or _BEGINS.get(code) == self.expected
            if self._began:
                self._note(self.expected, code.co_filename)

    def _note(self, way: str, path: str) -> None:
        if path.startswith(f"{ROOT}/rebaser_"):
            self.files[way].add(path.removeprefix(f"{ROOT}/"))


async def _visit(url: str, ways: Ways, shutdown: Shutdown, loop: asyncio.AbstractEventLoop) -> None:
    """Send a request for a source, then one for a computed value, each of a change set."""
    warm, first, second = new_change_sets(3)
    try:
        async with connected(ConnectOptions(servers=(url,))) as nc, connect(url) as client:
            graph, js = ExampleGraph(), JetStream(nc)

            async def are_gone(stream: str) -> bool:
                return not (await js.stream_info(stream)).state.messages

            # It starts Spark, too.
            await client.change_set(*warm).enqueue(graph.define(), wait="computed")
            await eventually(lambda: are_gone(Subjects().tasks_stream), within=60)
            ways.expect(REQUEST)
            ways.is_client_on = True
            _, reply = await client.enqueue_updates_with_reply(*first, [put(graph.net, 1)])
            await reply
            ways.is_client_on = False
            await eventually(lambda: are_gone(Subjects().requests_stream), within=60)
            ways.expect(None)
            await eventually(lambda: are_gone(Subjects().tasks_stream), within=60)
            ways.expect(UPDATE)
            await client.change_set(*second).enqueue(graph.define(), wait="computed")
            ways.expect(None)
    finally:
        loop.call_soon_threadsafe(shutdown.set)


def about_tables(files: Iterable[str]) -> list[str]:
    """Return those of the files that are about tables: plain numbers, as here, enter none."""
    return sorted(filter(_ABOUT_TABLES.fullmatch, files))


def record() -> dict[str, set[str]]:
    """The files of each way, by its name. Takes some ten seconds, and a JVM."""
    ways = Ways()
    with tempfile.TemporaryDirectory() as directory, running(NatsServer(Path(directory))) as nats:
        settings = Settings.model_validate(
            {
                "nats": {"url": nats.url},
                "store": {"root": f"{directory}/store"},
                "spark": {"min_affected": 0, "state_directory": f"{directory}/spark"},
                "quiet_period": 0.2,
                "log_level": "error",
            }
        )

        async def serve() -> None:
            async with connected(ConnectOptions(servers=(nats.url,))) as nc:
                await prepare(JetStream(nc), settings)
            shutdown, loop = Shutdown(), asyncio.get_running_loop()
            visit = lambda: asyncio.run(_visit(nats.url, ways, shutdown, loop))  # noqa: E731
            visitor = Thread(target=visit, name=_VISITOR)
            await daemon.run(settings, shutdown, lambda _: visitor.start())
            await asyncio.to_thread(visitor.join)

        threading.setprofile(ways.profile)
        sys.setprofile(ways.profile)
        try:
            asyncio.run(serve())
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return ways.files
