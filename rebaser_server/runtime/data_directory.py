"""The directory with the data of one `rebaser up`: who uses it, and at which address.

One process at a time uses it. Commands that are started beside it find the deployment there.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rebaser_core.errors import RebaserError

_LOCK: Final = "lock"
_LOCK_TIMEOUT: Final = 5.0  # seconds for the NATS server of a killed `up` to end after it
_POLL_INTERVAL: Final = 0.05  # seconds

DATA: Final = Path("rebaser-data")
"""Directory in which `rebaser up` keeps its data, below the one where it is started."""


class DirectoryInUse(RebaserError):
    """The directory is in use by another `rebaser up`, which is named; nothing was started."""


class DirectoryUnusable(RebaserError):
    """The directory, which is named, takes no file; nothing was started."""


class DataDirectory:
    """A directory that belongs to this process, by the operating system's lock on a file in it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self.file = file
        """Descriptor of the lock. A process that inherits it holds the lock, too."""

    def describe(self, url: str | None) -> None:
        """Write the address of its NATS server for others who find the directory in use.

        Raises:
            DirectoryUnusable: the disk is full.
        """
        with _usable(self._path):
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps({"pid": os.getpid(), "nats": url}).encode(), 0)


@contextmanager
def data_directory(path: Path) -> Iterator[DataDirectory]:
    """Lock the directory for this process alone while the body runs. Blocks.

    The lock ends with the process, also if it is killed, and with those that inherited it.

    Raises:
        DirectoryInUse: another process has the lock.
        DirectoryUnusable: no file can be written there.
    """
    with _usable(path):
        path.mkdir(parents=True, exist_ok=True)
        file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(file, path)
        directory = DataDirectory(path, file)
        directory.describe(None)
        yield directory
    finally:
        os.close(file)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raise `DirectoryUnusable` in place of errors of files in the directory."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise DirectoryUnusable(
            f"{where}: {error.strerror}; give a directory to write into with --data"
        ) from error


def _lock(file: int, path: Path) -> None:
    end = time.monotonic() + _LOCK_TIMEOUT
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = _holder(file)
        if _is_alive(holder.get("pid")) or time.monotonic() >= end:
            raise DirectoryInUse(_in_use_message(path, holder))
        time.sleep(_POLL_INTERVAL)


def _holder(file: int) -> dict[str, object]:
    """Data that the holder of the lock wrote; empty if it has not written yet."""
    with suppress(ValueError):
        holder = json.loads(os.pread(file, 4096, 0))
        if isinstance(holder, dict):
            return holder
    return {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    with suppress(ProcessLookupError, OverflowError):
        try:
            os.kill(pid, 0)
        except PermissionError:  # another user's
            return True
        return True
    return False


def address_of(path: Path) -> str | None:
    """Return the URL of the NATS of the `rebaser up` that uses the directory; None if none does."""
    try:
        with (path / _LOCK).open("rb") as file:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None  # the address is that of one that has ended
            url = _holder(file.fileno()).get("nats")
    except OSError:
        return None
    return url if isinstance(url, str) else None


def _in_use_message(path: Path, holder: dict[str, object]) -> str:
    pid, url = holder.get("pid"), holder.get("nats")
    who = f"pid {pid}" if _is_alive(pid) else f"what is left of pid {pid}"
    where = f", NATS at {url}" if url else ""
    use = f"use that one (REBASER_NATS__URL={url}), " if url else "use that one, "
    return (
        f"{path} is in use by another `rebaser up` ({who}{where}): {use}stop it, or name another "
        "directory with --data"
    )
