"""Scale, `start`: from `exec` to the first request handled, step by step."""

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from ulid import ULID

from benchmarks.broker import Broker, broker
from benchmarks.deployment import MeasuredDaemon
from benchmarks.scale_active import new_change_sets
from benchmarks.tables import Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.eventually import eventually

MODULES = ("nats", "pydantic", "structlog", "numpy", "pyarrow", "deltalake", "scipy", "pyspark")
IMPORTS = {
    "bare Python": "pass",
    "`rebaser_client`": "import rebaser_client.client",
    "`rebaser settings`": "import rebaser_server.commands.cli, rebaser_server.settings.settings",
    "`rebaser serve`": "import rebaser_server.service.daemon",
}

STEPS = {
    "starting": "interpreter, imports, settings",
    "connected": "connection",
    "ready": "streams, consumer, buckets",
}
"""Event of the log → what comes before it."""

Say = Callable[[str], None]


async def run(directory: Path, rounds: int, say: Say) -> list[Table]:
    imports = Table("Importing (ms, a process each)", ["what", "median", "fastest"])
    took: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        say(f"start: round {number + 1} of {rounds}")
        for what, code in IMPORTS.items():
            started = time.perf_counter()
            command = [sys.executable, "-c", code]
            await asyncio.to_thread(subprocess.run, command, check=True)
            took[what].append(1e3 * (time.perf_counter() - started))
        files = directory / str(number)
        with broker(files / "nats") as server:
            for name, seconds in (await _start(server, files)).items():
                steps[name].append(1e3 * seconds)
    imports.rows.extend([what, median(found), min(found)] for what, found in took.items())
    whole = Table(
        "A daemon's start, and a change set's (ms)",
        ["step", "median", "fastest"],
        [[name, median(found), min(found)] for name, found in steps.items()],
        notes=[_NOTE],
    )
    return [imports, whole, _modules()]


_NOTE = """\
*ready* is from `exec` to the log line, with streams to be made, and before it its parts; *again* is
with streams that are there. A request's time is from the call of `enqueue_updates` to the reply:
for the first change set of the process, for others that nobody had in hand before, for one that has
a checkpoint and is taken up again, and for one in hand. Spark starts a second after *ready*."""


async def _start(server: Broker, files: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in ("ready", "ready again"):
        began = time.time()
        daemon = MeasuredDaemon(step.replace(" ", "-"), files, _variables(server, files))
        try:
            await daemon.ready(within=120)
            before = began
            for mark, what in STEPS.items():
                moment = _when(daemon, mark)
                found[f"{step}: {what}"] = moment - before
                before = moment
            found[step] = before - began
            if step == "ready again":
                await _requests(server, found)
        finally:
            daemon.kill()
    return found


def _when(daemon: MeasuredDaemon, event: str) -> float:
    [said] = daemon.said(event)
    return datetime.fromisoformat(said["timestamp"]).timestamp()


async def _requests(server: Broker, found: dict[str, float]) -> None:
    async with (
        connected(ConnectOptions(servers=(server.url,), name="client")) as nc,
        RebaserClient.on(nc, JetStream(nc)) as client,
    ):

        async def settled(number: int) -> float:
            define = [{"putValue": {"valueId": str(ULID()), "value": 1}}]
            started = time.perf_counter()
            _, reply = await client.enqueue_updates_with_reply(*change_sets[number], define)
            await reply
            return time.perf_counter() - started

        change_sets = new_change_sets(20)
        found["first request of the first change set"] = await settled(0)
        others = [await settled(number) for number in range(1, 20)]
        found["first request of another change set"] = median(others)
        in_hand = [await settled(number) for number in range(20)]
        found["request of a change set in hand"] = median(in_hand)

        async def all_quiet() -> bool:
            info = await JetStream(nc).stream_info("REBASER_TASKS")
            return not info.state.messages

        await eventually(all_quiet, within=120)
        again = [await settled(number) for number in range(20)]
        found["first request of a change set with a checkpoint"] = median(again)


def _variables(server: Broker, files: Path) -> dict[str, str]:
    return {
        "NATS__URL": server.url,
        "STORE__ROOT": str(files / "store"),
        "SPARK__STATE_DIRECTORY": str(files / "spark"),
        "QUIET_PERIOD": "2",
    }


def _modules() -> Table:
    """What `rebaser serve` imports of others, in the interpreter's own count."""
    code = "import json, sys, rebaser_server.service.daemon; print(json.dumps(sorted(sys.modules)))"
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(traced.stdout))
    spent: dict[str, int] = defaultdict(int)
    for line in traced.stderr.splitlines():
        own, _, name = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            spent[name.strip().partition(".")[0]] += int(own)
    rows = [[name, spent[name] / 1e3, str(name in loaded)] for name in MODULES]
    rest = sum(spent.values()) - sum(spent[name] for name in MODULES)
    return Table(
        "What the imports of `rebaser serve` are made of",
        ["package", "ms", "loaded"],
        [*rows, ["all else", rest / 1e3, "True"]],
        notes=["Once, with the interpreter's own counting, which slows it down."],
    )
