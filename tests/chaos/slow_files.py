"""Slow disks: `strace` stops each thread of a process before calls that touch files, for a while.

The process finds its files slow and everything else as it was, which is what a disk under load,
or a network file system, looks like from inside. What a disk loses, it does not show.
"""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator

CALLS = (
    "openat", "pread64", "pwrite64", "fsync", "fdatasync", "ftruncate", "rename", "renameat",
    "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat",
)  # fmt: skip
"""What is slowed down. Not `read` and `write`, which sockets and pipes know, too."""
_ATTACH = 0.3  # seconds in which it fails if it may not


class NotPossible(Exception):
    """There is no `strace` here, or it may not look at other processes."""


@contextlib.asynccontextmanager
async def slow_files(pid: int, delay: float) -> AsyncIterator[None]:
    """Have the process, and those it starts, wait `delay` seconds before each call.

    Raises:
        NotPossible: nothing was slowed down.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise NotPossible
    process = await asyncio.create_subprocess_exec(
        strace, "-f", "-qq", "-o", "/dev/null",
        "-e", f"trace={','.join(CALLS)}",
        "-e", f"inject={','.join(CALLS)}:delay_enter={round(delay * 1e6)}",
        "-p", str(pid),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _ATTACH)
        raise NotPossible
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)  # it lets go of the process, which runs on
        await process.wait()
