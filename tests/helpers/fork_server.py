"""Daemons as forks of a process that has imported all they need: that is most of a start."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

from rebaser_server.__main__ import run

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["__main__", __name__, "rebaser_server.service.daemon", "rebaser_server.commands.cli"]
)
_LOOK: Final = 0.02
"""Seconds between looks at a process that is waited for."""


def forkable(environment: Mapping[str, str]) -> bool:
    """Whether a fork is what a start would be: nothing wants another interpreter or library."""
    return not {"PYTHONPATH", "LD_PRELOAD"} & environment.keys()


class Fork:
    """A process that runs `rebaser`, with as much of `subprocess.Popen` as tests need."""

    def __init__(
        self, *words: str, environment: Mapping[str, str], directory: Path, log: Path
    ) -> None:
        """Start it in `directory`; what it prints is appended to `log`."""
        self._process = _SERVER.Process(
            target=_become, args=(words, dict(environment), directory, log), daemon=True
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


def _become(
    words: tuple[str, ...], environment: dict[str, str], directory: Path, log: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.close(out)
    sys.argv = ["rebaser", *words]
    try:
        run()
    finally:
        atexit._run_exitfuncs()
