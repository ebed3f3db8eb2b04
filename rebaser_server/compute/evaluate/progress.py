"""Tells how far an evaluation is while it computes, which may be one dear value after another."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Final

EVERY: Final = 1.0
"""Seconds."""


class Teller:
    """A thread for each process, since one for each blob would cost more than small blobs do."""

    def __init__(self) -> None:
        self._process = 0
        self._tell: Callable[[], None] | None = None
        self._lock = Lock()

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
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
            time.sleep(EVERY)
            with lock, suppress(Exception):
                if self._tell is not None:
                    self._tell()


TELLER: Final = Teller()
