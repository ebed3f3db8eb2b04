"""What NATS does not permit this user: it says so beside an answer that never comes."""

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream.connection import connect

_VIOLATION: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)


class NotPermitted(RebaserError):
    """The user that the settings name may not do this; nothing was done by the last step."""


class _Listening(logging.Handler):
    """Hears what the connection logs, and stops who waits for an answer that will not come."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        super().__init__(logging.INFO)
        self._task = task
        self.refused: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = _VIOLATION.search(record.getMessage())
        if found and self.refused is None:
            verb = "subscribe to" if found[1].lower().startswith("subs") else "publish to"
            self.refused = f"{verb} {found[2]!r}"
            self._task.cancel()


@contextmanager
def permitted(user: str | None) -> Iterator[None]:
    """The body ends as soon as NATS refuses something to this user, as with a timeout.

    Raises:
        NotPermitted: it did.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - called in a coroutine
    listening, before = _Listening(task), connect.log.level
    cancelled = task.cancelling()
    connect.log.addHandler(listening)
    connect.log.setLevel(logging.INFO)
    try:
        yield
    except asyncio.CancelledError:
        if listening.refused is None or task.uncancel() > cancelled:
            raise
        who = f"user {user!r}" if user else "this user"
        raise NotPermitted(f"NATS does not let {who} {listening.refused}") from None
    finally:
        connect.log.removeHandler(listening)
        connect.log.setLevel(before)
