"""Whether files were replaced or written."""

from collections.abc import Sequence
from pathlib import Path


class FileChanges:
    """Compares files with what they were at the last call of `found`; reads none of them."""

    def __init__(self, files: Sequence[Path | None]) -> None:
        self._files = [file for file in files if file is not None]
        self._states = self._look()

    def found(self) -> bool:
        """Whether one of the files has changed since the last call."""
        before, self._states = self._states, self._look()
        return self._states != before

    def _look(self) -> list[tuple[int, ...]]:
        """Inode, octets and time of the last change of each file; of a lost one, nothing."""
        return [_state(file) for file in self._files]


def _state(file: Path) -> tuple[int, ...]:
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
