"""The process that handles the messages of a peer, and says when it has."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class PeerWorker:
    """Says so when it has handled all messages of a run."""

    def __init__(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> None:
        self._out = out
        self.pid = process.pid

    async def said(self, word: bytes) -> None:
        line = await asyncio.to_thread(self._out.readline)
        if line != word + b"\n":
            raise RuntimeError(f"the worker said {line!r}, not {word!r}")


@contextmanager
def working(*command: object, fds: Sequence[int] = ()) -> Iterator[PeerWorker]:
    """Run it with these files open, too."""
    arguments, root = [str(part) for part in command], Path(__file__).parent.parent
    with subprocess.Popen(arguments, cwd=root, stdout=subprocess.PIPE, pass_fds=fds) as process:
        try:
            if process.stdout is not None:
                yield PeerWorker(process, process.stdout)
        finally:
            process.kill()


def ours(module: str) -> tuple[str, str, str]:
    """The command that runs a module of this package."""
    return sys.executable, "-m", f"benchmarks.{module}"
