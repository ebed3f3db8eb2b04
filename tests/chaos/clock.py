"""A wall clock that can be set while its process runs, by a library loaded before all others."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def library(directory: Path) -> Path | None:
    """The library, made in `directory`; None where nothing can be compiled."""
    made = directory / "clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    if not made.exists():
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, SOURCE], check=True)
    return made


class Clock:
    """What one process, and those that it starts, take for the time."""

    def __init__(self, library: Path | None, file: Path) -> None:
        self._library = library
        self._file = file
        self.set(0)

    @property
    def settable(self) -> bool:
        return self._library is not None

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that is to go by this clock."""
        if self._library is None:
            return {}
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file)}

    def set(self, ahead: float) -> None:
        """Have it differ from ours by so many seconds from now on."""
        mode = "r+b" if self._file.exists() else "wb"
        with self._file.open(mode) as file:  # written in place: it is mapped
            file.write(round(ahead * 1e9).to_bytes(8, "little", signed=True))
