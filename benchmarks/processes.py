"""What other processes take of the machine: memory and processor time, where the system tells."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self


def seconds(pid: int, *, children: bool = False) -> float | None:
    """Return the CPU seconds of a process so far, user and system; None if it is gone.

    With `children`, those of all descendants are counted, too, that run or were waited for.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    used = sum(map(int, after_name[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")
    own = children_of(pid) if children else ()
    return used + sum(seconds(child, children=True) or 0.0 for child in own)


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except FileNotFoundError:
            continue
    return found


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


def memory(pid: int) -> int:
    """Bytes of it that are in memory now; 0 if that is not to be seen."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Meter:
    """Processor time of processes since it was made, and how much of a core that was."""

    pids: dict[str, int]
    _before: dict[str, float]
    _since: float

    @classmethod
    def of(cls, **pids: int) -> "Meter":
        return cls(pids, {name: _seconds(pid) for name, pid in pids.items()}, time.monotonic())

    def seconds(self, name: str) -> float:
        return _seconds(self.pids[name]) - self._before[name]

    def share(self, name: str) -> float:
        """Percent of one core."""
        return 100 * self.seconds(name) / (time.monotonic() - self._since)


def _seconds(pid: int) -> float:
    return seconds(pid) or 0.0
