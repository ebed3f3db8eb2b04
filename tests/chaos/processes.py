"""The processes of a run: NATS servers, daemons that a supervisor starts again, proxies between."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rebaser_core.subjects import Subjects
from rebaser_server.runtime.ports import free_ports
from tests.chaos import deadly_steps
from tests.chaos.clock import Clock, library
from tests.chaos.functions import CALLS, install
from tests.chaos.history import History, Kind
from tests.chaos.proxy import Proxy
from tests.chaos.task_words import TaskWords
from tests.helpers.deployment import REBASER, SCALED, Daemon
from tests.helpers.eventually import eventually
from tests.helpers.fork_server import preload
from tests.helpers.graph_builder import children
from tests.helpers.loop_monitor import turns_in
from tests.helpers.nats_process import NatsServer

RESTART_AFTER = 0.5  # seconds until a daemon that ended by itself is started again
_LOOK = 0.1  # seconds between looks at a process
TOLD_OF_RUNS = ("taken", "ownership lost")
"""Events that a daemon logs of its work on one delivery of a task: the first, and an end."""


class Seat:
    """Where one daemon runs, one process after another, behind proxies of its own."""

    def __init__(
        self,
        name: str,
        directory: Path,
        history: History,
        ports: Sequence[int],
        clock: Clock,
        functions: Path,
    ) -> None:
        """`ports`: of the servers that it has proxies to, none of them started."""
        self.name = name
        words = TaskWords(history, Subjects().tasks_stream)
        self.proxies = [Proxy(port, lambda: words.ears(self.instance)) for port in ports]
        self.clock = clock
        self.arguments: Sequence[str] = ()
        """Arguments of its daemons' `serve`."""
        self.turn = asyncio.Lock()
        """Lock of a fault while it lasts: one at a time."""
        self.daemon: Daemon | None = None
        self.older: Path | None = None
        """A checkout of an older release, with an environment in `.venv`."""
        self.is_older = False
        """Whether the next daemon is of that release."""
        self._older: set[str] = set()
        """Daemons of that release, those that ended included."""
        self._directory = directory
        self._deadly_step = directory / f"{name}.step"
        self._history = history
        self._generation = 0
        self._wanted = False
        self._path = functions

    @property
    def instance(self) -> str:
        return f"{self.name}-{self._generation}"

    @property
    def pid(self) -> int:
        assert self.daemon is not None
        return self.daemon.process.pid

    def start(self, variables: Mapping[str, str]) -> None:
        self._generation += 1
        self._variables = variables
        urls = ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in self.proxies)
        store = {"STORE__ROOT": str(self._directory / "store")}
        own = {
            "NATS__URL": urls,
            "INSTANCE_ID": self.instance,
            "SPARK__STATE_DIRECTORY": str(self._directory / "spark"),
        }
        more = {
            deadly_steps.VARIABLE: str(self._deadly_step),
            CALLS: str(self._directory / "calls"),
        }
        with _environment(PYTHONPATH=str(self._path), **more, **self.clock.variables):
            self.daemon = Daemon(
                self.instance,
                self._directory,
                {**SCALED, **store, **variables, **own},
                self._command,
                self.arguments,
            )
        self._wanted = True
        if self.is_older:
            self._older.add(self.instance)
        self._tell("started", older=self.is_older)

    @property
    def _command(self) -> Sequence[str | Path]:
        if self.is_older and self.older is not None:
            return (self.older / ".venv/bin/rebaser",)
        return REBASER

    def again(self) -> None:
        self.start(self._variables)

    def kill(self) -> None:
        assert self.daemon is not None
        self._wanted = False
        self._tell("killed")
        self.daemon.kill()

    async def kill_at(self, step: str, within: float) -> None:
        """Have it die at this one of `deadly_steps.STEPS`, or after so many seconds anywhere."""
        self._wanted = False
        self._deadly_step.write_text(step)
        try:
            await self._ended(within)
        except AssertionError:
            step = "none"
        self._deadly_step.unlink()
        self.kill()
        self._tell("died", step=step)

    async def stop(self, *, impatient: bool = False) -> None:
        """Ask it to stop, twice if `impatient`, and wait until it has; kill it if it has not."""
        assert self.daemon is not None
        self._wanted = False
        self._tell("told to stop")
        self._send(signal.SIGTERM)
        if impatient:
            await asyncio.sleep(0.1)
            self._send(signal.SIGTERM)
        try:
            code = await self._ended(15)
        except AssertionError:
            self._tell("hung")
            self.daemon.kill()
        else:
            self._tell("exited", code=code, asked=True)

    def freeze(self) -> None:
        self._tell("frozen")
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)
        self._tell("thawed")

    def kill_evaluator(self) -> None:
        """End those in which functions run, or what they are forked from if there are none.

        The system does so when memory is short.
        """
        name = b"compute.local_worker"
        for template in self._children(name):
            if not _kill(children(template)):
                _kill([template])

    def kill_jvm(self) -> bool:
        """End the JVM of its Spark likewise; whether it has one."""
        return _kill(self._children(b"/java\0"))

    def _children(self, named: bytes) -> list[int]:
        """List those whose command line has the name in it."""
        found = []
        for pid in children(self.pid):
            with contextlib.suppress(OSError):
                if named in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    async def supervise(self) -> None:
        """Start it again whenever it ends by itself, as any supervisor does."""
        while True:
            await asyncio.sleep(_LOOK)
            if self._wanted and self.daemon is not None:
                code = self.daemon.process.poll()
                if code is not None:
                    self._wanted = False
                    self._tell("exited", code=code, asked=False)
                    await asyncio.sleep(RESTART_AFTER)
                    async with self.turn:
                        if self.daemon.process.poll() is not None and not self._wanted:
                            self.again()

    def rss(self) -> int | None:
        """Octets of memory that the daemon holds; None if none runs."""
        with contextlib.suppress(OSError, AttributeError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
            return int(line.split()[1]) * 1024
        return None

    def unforeseen(self) -> Iterator[tuple[str, str, str]]:
        """Errors in the logs of all its daemons that nobody meant to happen."""
        for name, log in self._logs():
            for event, exception in errors_in(log):
                yield name, event, exception

    def held(self) -> Iterator[tuple[str, float, str]]:
        """What held the event loops of its daemons of this release, for how many seconds."""
        for name, log in self._logs():
            if name not in self._older:
                yield from ((name, *turn) for turn in turns_in(log))

    def runs(self) -> Iterator[dict[str, Any]]:
        """What all its daemons say of the tasks that they took: which delivery, and its end."""
        for name, log in self._logs():
            for entry in map(json.loads, filter(_is_whole, log.splitlines())):
                if entry["event"] in TOLD_OF_RUNS and "delivery" in entry:
                    yield {"daemon": name, "told": entry["event"], **delivery_in(entry)}

    def _logs(self) -> Iterator[tuple[str, str]]:
        for generation in range(1, self._generation + 1):
            name = f"{self.name}-{generation}"
            yield name, (self._directory / f"{name}.log").read_text(errors="replace")

    def _send(self, number: signal.Signals) -> None:
        if self.daemon is not None and self.daemon.process.poll() is None:
            self.daemon.send(number)

    async def _ended(self, within: float) -> int:
        assert self.daemon is not None
        process = self.daemon.process
        await eventually(lambda: process.poll() is not None, within=within)
        code = process.poll()
        assert code is not None
        return code

    def _tell(self, what: str, **details: object) -> None:
        self._history.add(Kind.DAEMON, name=self.instance, what=what, **details)


def delivery_in(entry: dict[str, Any]) -> dict[str, Any]:
    """Which delivery of which task the logged event is about."""
    return {
        "change_set": f"{entry['workspace']}.{entry['change_set']}",
        "delivery": [entry["task"], entry["delivery"]],
    }


def _is_whole(line: str) -> bool:
    """Whether it is a logged event; the last one of a killed process may be half written."""
    return line.startswith("{") and line.endswith("}")


def errors_in(log: str) -> Iterator[tuple[str, str]]:
    """What nobody meant to happen, by event and exception, in what a daemon logged."""
    for line in log.splitlines():
        if not _is_whole(line):
            if line.startswith("Traceback"):
                yield "traceback", log[-1500:]
                return
            continue
        entry = json.loads(line)
        of_a_library = "logger" in entry and "exception" in entry
        if entry.get("event") == "work failed" or entry.get("level") == "critical" or of_a_library:
            yield entry["event"], entry.get("exception", "")[-1500:]


def prepare(tools: Path) -> None:
    """Have the daemons of all rounds with these tools be forks: a start takes a tenth.

    To be called before anything else is forked.
    """
    path, clocks = install(tools), library(tools)
    preload(**_joined({"PYTHONPATH": str(path), **({"LD_PRELOAD": str(clocks)} if clocks else {})}))


def _joined(variables: Mapping[str, str]) -> dict[str, str]:
    """With what the environment has."""
    return {n: os.pathsep.join(filter(None, (v, os.environ.get(n)))) for n, v in variables.items()}


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """For the one who is started in the body."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(_joined(variables))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@asynccontextmanager
async def nats_servers(
    directory: Path, *, cluster: bool, config: str = ""
) -> AsyncIterator[list[NatsServer]]:
    """One server, or three that form a cluster, with what else is to be in the configuration."""
    if cluster:
        servers = three_servers(directory, [config] * 3)
    else:
        servers = [NatsServer(directory / "nats", config)]
    try:
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        yield servers
    finally:
        for server in servers:
            server.kill()


def three_servers(directory: Path, more: Sequence[str] = ("", "", "")) -> list[NatsServer]:
    """A cluster of three, none of them started; `more` is for the configuration of each."""
    ports = free_ports(3)
    configs = (_cluster(number, ports) + more[number] for number in range(3))
    return [NatsServer(directory / f"nats-{n}", config) for n, config in enumerate(configs)]


def _cluster(number: int, ports: Sequence[int]) -> str:
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    return f"""
server_name: n{number}
cluster {{
  name: chaos, listen: "127.0.0.1:{ports[number]}", routes: [{routes}], no_advertise: true
}}
"""


@asynccontextmanager
async def seats(
    count: int,
    directory: Path,
    history: History,
    servers: Sequence[NatsServer],
    tools: Path | None = None,
) -> AsyncIterator[list[Seat]]:
    """Seats and their proxies, without daemons. When the body ends, so do all their processes.

    `tools`: where `prepare` was called; else they are made for these seats alone.
    """
    path, clocks = install(tools or directory), library(tools or directory)
    async with AsyncExitStack() as stack:
        made = []
        for number in range(count):
            clock = Clock(clocks, directory / f"seat{number}.clock")
            ports = [server.port for server in servers]
            seat = Seat(f"seat{number}", directory, history, ports, clock, path)
            for proxy in seat.proxies:
                await proxy.start()
                stack.push_async_callback(proxy.close)
            made.append(seat)
        supervisors = [asyncio.create_task(seat.supervise()) for seat in made]
        try:
            yield made
        finally:
            for supervisor in supervisors:
                supervisor.cancel()
            await asyncio.gather(*supervisors, return_exceptions=True)
            for seat in made:
                if seat.daemon is not None:
                    seat.daemon.kill()


def _kill(pids: list[int]) -> bool:
    """Kill them; whether there was one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)
