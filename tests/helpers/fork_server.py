"""Forks of a process that has imported what `rebaser` needs: importing is most of a start."""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Final

from rebaser_server.__main__ import run

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["__main__", __name__, "rebaser_server.service.daemon", "rebaser_server.commands.cli"]
)
_AT_START: Final = dict(os.environ)
"""What an interpreter that is forked here has read."""
_AT_SITE: Final = "sitecustomize.py"
"""What only a start runs, of all that a directory in PYTHONPATH may have."""
_LOOK: Final = 0.02
"""Seconds between looks at a process that is waited for."""


def preload(**variables: str) -> None:
    """Fork from an interpreter that is started with these variables, before any other was."""
    _AT_START.update(variables)
    _start()
    sys.path += filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))  # forks have ours


@cache
def _start() -> None:
    """Start what forks, in the environment that ours started in and not in that of a test."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(_AT_START)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def forkable(environment: Mapping[str, str]) -> bool:
    """Whether a fork is what a start would be: what an interpreter reads at its start is ours."""
    same = all(
        environment.get(name) == _AT_START.get(name)
        for name in environment
        if name.startswith(("PYTHON", "LC_", "LANG", "LD_")) and name != "PYTHONPATH"
    )
    added = _added_to_path(environment)
    return same and added is not None and not any(Path(d, _AT_SITE).exists() for d in added)


def _added_to_path(environment: Mapping[str, str]) -> list[str] | None:
    """Return the directories that it has before ours in PYTHONPATH; None if it lacks ours."""
    wanted, ours = (each.get("PYTHONPATH", "") for each in (environment, _AT_START))
    if not wanted.endswith(ours):
        return None
    return [each for each in wanted.removesuffix(ours).split(os.pathsep) if each]


class Fork:
    """A process that runs `rebaser`, with as much of `subprocess.Popen` as tests need."""

    def __init__(
        self, *words: str, environment: Mapping[str, str], streams: "StandardStreams"
    ) -> None:
        _start()
        path = _added_to_path(environment) or []
        self._process = _SERVER.Process(
            target=_become, args=(words, dict(environment), path, streams), daemon=True
        )
        self._process.start()
        self._turn = threading.Lock()  # of two that look at once one would miss the exit code
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, the negative signal if one ended it, or `None` while it runs."""
        with self._turn:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended; raise `TimeoutExpired` if that takes longer."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise TimeoutExpired("rebaser", timeout or 0)
            time.sleep(_LOOK)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def rebaser(
    *words: str, environment: Mapping[str, str], says: str = "", timeout: float = 120
) -> CompletedProcess[str]:
    """Run the command to its end, with `says` on its stdin; kill it if it takes longer."""
    if not forkable(environment):
        command = [Path(sys.executable).parent / "rebaser", *words]
        return subprocess.run(
            command,
            env=environment,
            input=says,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    with tempfile.TemporaryDirectory() as directory:
        out, err, standard_in = (Path(directory, name) for name in ("out", "err", "in"))
        standard_in.write_text(says)
        streams = StandardStreams(Path.cwd(), out, err, standard_in)
        fork = Fork(*words, environment=environment, streams=streams)
        try:
            code = fork.wait(timeout)
        finally:
            fork.kill()
        return CompletedProcess(words, code, out.read_text(), err.read_text())


@dataclass(frozen=True)
class StandardStreams:
    """Where a fork runs, the files that stdout and stderr are appended to, and its stdin."""

    directory: Path
    out: Path
    err: Path
    standard_in: Path = Path(os.devnull)


def _become(
    words: tuple[str, ...], environment: dict[str, str], path: list[str], streams: StandardStreams
) -> None:
    sys.path[:0] = path
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(streams.directory)
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    _redirect(0, streams.standard_in, os.O_RDONLY)
    _redirect(1, streams.out, appending)
    _redirect(2, streams.err, appending)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
    sys.argv = ["rebaser", *words]
    try:
        run()
    finally:
        atexit._run_exitfuncs()


def _redirect(number: int, file: Path, flags: int) -> None:
    opened = os.open(file, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
