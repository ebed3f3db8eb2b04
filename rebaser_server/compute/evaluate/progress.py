"""Reports the progress of an evaluation from a thread, also between two slow values."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Final

REPORT_SECONDS: Final = 1.0
"""Seconds."""


class ProgressReporter:
    """A thread for each process, since one for each unit would cost more than small units do."""

    def __init__(self) -> None:
        self._process = 0
        self._tell: Callable[[], None] | None = None
        self._lock = Lock()

    @contextmanager
    def reporting(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` each second, on another thread, and not once the body has ended.

        What it raises is dropped: progress is a hint.
        """
        if self._process != os.getpid():  # threads are not forked, locks are as they were
            self._process, self._lock = os.getpid(), Lock()
            Thread(target=self._run, args=(self._lock,), name="teller", daemon=True).start()
        self._tell = tell
        try:
            yield
        finally:
            with self._lock:
                self._tell = None

    def _run(self, lock: Lock) -> None:
        while True:
            time.sleep(REPORT_SECONDS)
            with lock, suppress(Exception):
                if self._tell is not None:
                    self._tell()


REPORTER: Final = ProgressReporter()
