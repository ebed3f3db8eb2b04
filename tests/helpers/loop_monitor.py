"""A monitor of the event loops of daemons: a line in their log for each turn that is too long.

A turn is what the loop calls without a look at anything else. It is measured in processor time of
the loop's thread, which does not grow on a machine that has other work. A thread looks what a turn
is at, so that the line names it.
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LONG: Final = 0.05
"""Seconds of processor time from which a turn is logged."""
HELD: Final = "event loop held"
"""The event in the log."""
_LOOK: Final = LONG / 2


_CODE: Final = """\
import sys

if any(word in " ".join(sys.orig_argv) for word in ("/rebaser", "forkserver")):
    sys.path.append({checkout!r})
    from {module} import watch

    watch()
{more}
    sys.path.remove({checkout!r})
"""


def install(root: Path, more: str = "") -> Path:
    """Have daemons, and what they are forked from, watch themselves with `root` in `PYTHONPATH`.

    `more`: code that they run, too, in an indented block.
    """
    root.mkdir(parents=True, exist_ok=True)
    checkout = str(Path(__file__).parent.parent.parent)
    code = _CODE.format(checkout=checkout, module=__name__, more=more)
    (root / "sitecustomize.py").write_text(code)
    return root


def turns_in(log: str) -> Iterator[tuple[float, str]]:
    """Seconds of each long turn in a daemon's log after it was ready, and what it was at."""
    _, _, log = log.partition('"event": "ready"')
    for line in log.splitlines():
        if line.startswith("{") and line.endswith("}") and HELD in line:
            entry = json.loads(line)
            yield entry["seconds"], " < ".join(reversed(entry["stack"])) or entry["what"]


def watch() -> None:
    """Measure all turns of all loops of this process, and of processes forked from it."""
    monitor = _Monitor()
    os.register_at_fork(after_in_child=monitor.forget_thread)
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        monitor.begin(handle)
        try:
            run(handle)
        finally:
            monitor.end()

    asyncio.Handle._run = measured  # type: ignore[method-assign]


class _Monitor:
    """The turn that runs, and what it was at when the thread last looked."""

    def __init__(self) -> None:
        self._looking = False
        self._turns = 0
        self._began = 0.0
        self._handle: asyncio.Handle | None = None
        self._thread = 0
        self._seen: tuple[int, list[str]] = 0, []
        """Number of a turn, and the stack in it."""

    def forget_thread(self) -> None:
        """A fork has none but the one that forked."""
        self._looking = False

    def begin(self, handle: asyncio.Handle) -> None:
        if not self._looking:
            self._looking, self._thread = True, threading.get_ident()
            threading.Thread(target=self._look, name="loop monitor", daemon=True).start()
        self._handle = handle
        self._turns += 1
        self._began = time.thread_time()

    def end(self) -> None:
        seconds, handle, self._handle = time.thread_time() - self._began, self._handle, None
        if seconds >= LONG:
            number, stack = self._seen
            what = {"what": repr(handle), "stack": stack if number == self._turns else []}
            _log(event=HELD, level="warning", seconds=round(seconds, 3), **what)

    def _look(self) -> None:
        before = 0
        while True:
            time.sleep(_LOOK)
            number = self._turns
            frame = sys._current_frames().get(self._thread)
            if number == before and self._handle is not None and frame is not None:
                stack = traceback.extract_stack(frame)
                own = [i for i, f in enumerate(stack) if f.filename == __file__]
                inner = stack[own[-1] + 2 :] if own else []  # or the turn is over by now
                self._seen = number, [f"{f.filename}:{f.lineno} {f.name}" for f in inner]
            before = number


def _log(**entry: Any) -> None:
    os.write(2, json.dumps(entry).encode() + b"\n")
