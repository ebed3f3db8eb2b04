"""A Restate for one round of benchmarks, installed beside the environment, if it can be."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

WHERE: Final = Path(sys.prefix) / "restate"
PATIENCE: Final = 900
"""Seconds for installing each half of it."""
SYNCED: Final = {"default": "off", "sync always": "on"}
"""Whether its log is on the disk before an answer. On is Restate's default; off, the system writes
the log when it likes."""
WORKER: Final = Path(__file__).with_name("restate_worker.py")

_SERVER: Final = "@restatedev/restate-server@1.7.12"
_SDK: Final = ("restate-sdk[serde]==1.3.0", "hypercorn==0.18.0")
_STARTED_WITHIN: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Restate:
    server: Path
    python: Path
    """Of the environment that has the SDK."""


def installed() -> Restate | None:
    """Install it if it is not there yet; None if that cannot be done here."""
    npm, python = shutil.which("npm"), WHERE / "bin" / "python"
    if npm is None:
        return None
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(WHERE)], check=True)
        _install(str(python), "-m", "pip", "install", "--quiet", *_SDK)
        node = WHERE / "node"
        # Without scripts: they would report the installation to its makers.
        _install(npm, "install", "--prefix", str(node), "--ignore-scripts", "--no-audit", _SERVER)
    except (OSError, subprocess.SubprocessError):
        return None
    # What is named `restate-server` in `.bin` starts this one as a child.
    servers = [*node.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")]
    return Restate(servers[0], python) if servers else None


def _install(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)


class RestateServer:
    """A running server, which listens on sockets in its directory."""

    def __init__(self, sockets: Path, process: subprocess.Popen[bytes]) -> None:
        self._sockets = sockets
        self._process = process
        self.pid = process.pid

    async def register(self, port: int) -> None:
        """Have it call the handlers that are served at the port."""
        body = {"uri": f"http://127.0.0.1:{port}"}
        end = time.monotonic() + _STARTED_WITHIN
        async with self._session("admin", 1) as admin:
            while self._process.poll() is None and time.monotonic() < end:
                try:
                    async with admin.post("http://restate/deployments", json=body) as answer:
                        if answer.ok:
                            return
                except aiohttp.ClientError:
                    pass  # it does not listen yet
                await asyncio.sleep(0.05)
        raise RuntimeError("Restate did not start")

    @asynccontextmanager
    async def ingress(self, connections: int) -> AsyncIterator[aiohttp.ClientSession]:
        """Connections over which it is asked."""
        async with self._session("ingress", connections) as session:
            yield session

    def _session(self, name: str, connections: int) -> aiohttp.ClientSession:
        where = str(self._sockets / f"{name}.sock")
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(where, limit=connections))


@contextmanager
def restate(found: Restate, directory: Path, durability: str) -> Iterator[RestateServer]:
    """Run one whose files are in `directory`, with its defaults but for what is said here."""
    directory.mkdir(parents=True)
    settings = {
        "RESTATE_BASE_DIR": str(directory),
        "RESTATE_NODE_NAME": "node",
        "RESTATE_LISTEN_MODE": "unix",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC": str(SYNCED[durability] == "off").lower(),
    }
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            [found.server], env={**os.environ, **settings}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield RestateServer(directory / "node", process)
        finally:
            process.kill()
