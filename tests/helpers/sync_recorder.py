"""Which files and directories this process has synced, as `os.fsync` was called."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from rebaser_server.files import forget_directories


class SyncRecorder:
    """What a power cut at this moment would leave, as far as anybody may rely on it."""

    def __init__(self) -> None:
        self._synced: dict[int, tuple[int, int]] = {}
        """Inode → size and time of the last change when it was synced."""
        self._names: dict[int, set[str]] = {}
        """Inode of a directory → the names in it when it was synced."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            stat = os.fstat(descriptor)
            self._synced[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_dir():
                self._names[stat.st_ino] = {each.name for each in path.iterdir()}

        forget_directories()  # what was synced before was not recorded
        with mock.patch("os.fsync", fsync):
            yield

    def lost(self, root: Path) -> list[str]:
        """The files below `root` that a power cut may take, or some of their bytes."""
        return [
            str(path.relative_to(root))
            for path in sorted(root.rglob("*"))
            if path.is_file() and not self._is_safe(path, root)
        ]

    def _is_safe(self, path: Path, root: Path) -> bool:
        stat = path.stat()
        if self._synced.get(stat.st_ino) != (stat.st_size, stat.st_mtime_ns):
            return False
        while path != root:
            if path.name not in self._names.get(path.parent.stat().st_ino, ()):
                return False
            path = path.parent
        return True
