"""Memory of other processes, where the system tells."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.cpu import children_of

_EVERY: Final = 0.25  # seconds


def proportional(pid: int, *, inner: bool = True) -> int:
    """Octets of the process, what it shares with others divided among them; 0 if it is gone.

    With `inner`, and of all that it has started.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return own + sum(map(proportional, children_of(pid)) if inner else ())


def peak(pid: int) -> int:
    """Octets that the process itself had in memory at its most, so far; takes no time of it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Peaks:
    """The most that a daemon, its Spark, a nats-server and this process had; looked at often."""

    def __init__(self, daemon: int, server: int) -> None:
        self._daemon = daemon
        self._server = server
        self._most = [0] * 5
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def most(self) -> list[int]:
        """Octets: of the daemon, of Spark, of the server, of these three at once, and of us."""
        return self._most

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            daemon = proportional(self._daemon, inner=False)
            spark = sum(map(proportional, children_of(self._daemon)))
            server = proportional(self._server)
            seen = [daemon, spark, server, daemon + spark + server]
            seen.append(proportional(os.getpid(), inner=False))
            self._most = list(map(max, self._most, seen))
            if self._ended.wait(_EVERY):
                return
