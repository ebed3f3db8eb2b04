"""One deployment for all that docs and examples show, as `rebaser up` has it, without Spark."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.command_line import Done, run_command
from tests.helpers.deployment import SCALED, Daemon
from tests.helpers.machine_requirements import lacking, program
from tests.helpers.nats_process import MONITORING, SYNC_ALWAYS, NatsServer, running
from tests.helpers.paths import ROOT


class Up:
    """What is running, and how programs reach it."""

    def __init__(self, nats: NatsServer, directory: Path) -> None:
        self.nats = nats
        self.directory = directory
        self.store = directory / "rebaser-data" / "store"
        """Where `rebaser up` has it, seen from where it was started."""

    def python(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, *command)

    def rebaser(self, *words: str) -> Done:
        """The command line, as where `rebaser up` was started."""
        variables = {"REBASER_NATS__URL": self.nats.url, "REBASER_STORE__ROOT": str(self.store)}
        return run_command(words, variables)

    def run(
        self, *command: str | Path, cwd: Path = ROOT, timeout: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            env=os.environ | {"REBASER_NATS__URL": self.nats.url},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def upped(directory: Path, functions: Path) -> Iterator[Up]:
    """A deployment with its data in `directory`, which knows the functions installed there."""
    with running(NatsServer(directory / "nats", MONITORING + SYNC_ALWAYS)) as nats:
        deployment = Up(nats, directory)
        own = {"NATS__URL": nats.url, "STORE__ROOT": str(deployment.store), "INSTANCE_ID": "up"}
        own |= {"NATS__MONITORING": nats.monitoring}
        with _python_path(functions):
            daemon = Daemon("up", directory, SCALED | own)
        try:
            asyncio.run(daemon.ready(within=120))
            yield deployment
        finally:
            daemon.kill()


def install(target: Path, source: Path = ROOT / "examples" / "own-function") -> None:
    """Install a distribution, as a user would."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, "--no-deps", "--target", target, source], check=True)


def javascript(directory: Path) -> Path:
    """Return a folder with the examples in JavaScript, and with the packages that they need."""
    there = shutil.copytree(ROOT / "examples" / "javascript", directory / "javascript")
    npm = program("npm", package="npm")
    install = (npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    try:
        installed = subprocess.run(
            install, cwd=there, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        lacking("an npm registry that answers", "npm install fetches a package")
    if installed.returncode != 0:
        lacking("an npm registry that has the package", installed.stderr[-300:])
    return there


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("functions")
    install(target)
    return target


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, functions: Path) -> Iterator[Up]:
    with upped(tmp_path_factory.mktemp("up"), functions) as deployment:
        yield deployment


@contextmanager
def _python_path(more: Path) -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(more), before)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
