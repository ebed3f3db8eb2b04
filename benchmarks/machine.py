"""Where a run took place, and whether the machine was quiet enough for it."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from tests.helpers.nats_process import nats_server_binary

BUSY = 1.0
"""Load average at the start above which figures are those of a machine that does other work."""


def load_average() -> float:
    """Of the last minute; the run itself is part of it at the end."""
    return round(os.getloadavg()[0], 2)


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures cannot be compared without."""

    facts: dict[str, Any]

    @classmethod
    def look(cls, directory: Path) -> Self:
        """See what there is; `directory` is where the servers of the run keep their files."""
        said = subprocess.run(
            [nats_server_binary(), "--version"], capture_output=True, text=True, check=True
        )
        return cls(
            {
                "cores": os.cpu_count(),
                "Python": platform.python_version(),
                "nats-server": said.stdout.split()[-1].removeprefix("v"),
                "nats-py": version("nats-py"),
                "Spark": version("pyspark"),
                "file system": _file_system(directory),
                "network": "loopback; client, servers and Rebaser share the cores",
                "load average at the start": load_average(),
            }
        )

    @property
    def is_busy(self) -> bool:
        return bool(self.facts["load average at the start"] > BUSY)

    def text(self) -> str:
        lines = [f"{name}: {fact}" for name, fact in self.facts.items()]
        if self.is_busy:
            lines.append("WARNING: the machine was busy at the start; only ratios may be believed")
        return "\n".join(lines)


def _file_system(directory: Path) -> str:
    """Syncing costs nothing on a file system in memory: say which it is, if the machine tells."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except FileNotFoundError:
        return "unknown"
    real = directory.resolve()
    above = [(len(m[1]), m[2]) for m in mounts if real.is_relative_to(m[1])]
    return max(above)[1]
