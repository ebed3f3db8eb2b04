"""The data directory of `rebaser up`, which one of them uses at a time."""

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


class DirectoryInUse(RebaserError):
    """Another `rebaser up` uses the directory; nothing was started. The message names it."""


class DataDirectory:
    """A directory that is ours, as a lock of the operating system on a file in it says."""

    def __init__(self, file: int) -> None:
        self.file = file
        """Descriptor of the lock. A process that inherits it holds the lock, too."""

    def describe(self, url: str) -> None:
        """Say to others who find it in use where its NATS server listens."""
        os.truncate(self.file, 0)
        os.pwrite(self.file, json.dumps({"pid": os.getpid(), "nats": url}).encode(), 0)


@contextmanager
def data_directory(path: Path) -> Iterator[DataDirectory]:
    """Have the directory, for this process alone as long as the body runs. Blocks.

    The lock ends with the process, however that ends, and with those that inherited it.

    Raises:
        DirectoryInUse: another process has it.
    """
    path.mkdir(parents=True, exist_ok=True)
    file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(file, path)
        os.truncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid()}).encode(), 0)
        yield DataDirectory(file)
    finally:
        os.close(file)


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
    """What its holder wrote; not yet anything, perhaps."""
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


def _in_use_message(path: Path, holder: dict[str, object]) -> str:
    pid, url = holder.get("pid"), holder.get("nats")
    who = f"pid {pid}" if _is_alive(pid) else f"what is left of pid {pid}"
    where = f", NATS at {url}" if url else ""
    use = f"use that one (REBASER_NATS__URL={url}), " if url else "use that one, "
    return (
        f"{path} is in use by another `rebaser up` ({who}{where}): {use}stop it, or name another "
        "directory with --data"
    )
