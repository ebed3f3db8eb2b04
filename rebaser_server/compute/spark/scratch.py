"""The directory of temporary files of one JVM and its Python workers."""

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_PREFIX: Final = "rebaser-"
_MAX_SOCKET_PATH: Final = 60
"""Octets of a directory for sockets: an address has 108, and the names in it are long."""
_PLAIN: Final = re.compile(r"[\w./@+=~-]+", re.ASCII)
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - a directory that only we may enter is made


def plain_directory() -> Path:
    """A new directory with a short name, in which no program finds a character of a meaning."""
    for parent in (tempfile.gettempdir(), *_TEMPORARY):
        if _is_plain(Path(parent) / f"{_PREFIX}12345678"):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def _is_plain(path: Path) -> bool:
    return bool(_PLAIN.fullmatch(str(path))) and len(str(path)) <= _MAX_SOCKET_PATH


class ScratchDirectory:
    """Gone with `close`, or else when the next one is made beside it by whichever process.

    That of a living process is left alone: it holds a lock.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for lock in parent.glob("*.lock"):
            _remove_if_dead(lock)
        self.directory: Final = parent / uuid4().hex[:12]
        self._lock = _locked(self.directory.with_suffix(".lock"))
        self.directory.mkdir()
        self.sockets: Final = self._sockets()
        os.write(self._lock, os.fsencode(self.sockets))  # for who may have to clear it away

    def _sockets(self) -> Path:
        return self.directory if _is_plain(self.directory) else plain_directory()

    @property
    def listable(self) -> Path:
        """A directory for what takes several, with commas between them."""
        return self.sockets if "," in str(self.directory) else self.directory

    def close(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():  # taken for one that was left behind, in between
        os.close(lock)
        return _locked(path)
    return lock


def _remove_if_dead(path: Path) -> None:
    """Remove the directory of a process that is gone."""
    with suppress(OSError):  # it is in use, or another process removes it
        lock = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sockets = Path(os.fsdecode(os.read(lock, 4096)))
            if sockets.name.startswith(_PREFIX):
                shutil.rmtree(sockets, ignore_errors=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink()
        finally:
            os.close(lock)
