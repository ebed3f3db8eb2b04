"""What other processes take of the machine: memory and processor time, where the system tells."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cpu


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
    return cpu.seconds(pid) or 0.0
