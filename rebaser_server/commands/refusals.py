"""What NATS does not permit this user: it says so beside an answer that never comes."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import connection

T = TypeVar("T")

_VIOLATION: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)


class NotPermitted(RebaserError):
    """The user that the settings name may not do this; nothing was done by the last step."""


class _Listening(logging.Handler):
    """Hears what the connection logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        found = _VIOLATION.search(record.getMessage())
        if found and not self.refused.done():
            verb = "subscribe to" if found[1].lower().startswith("subs") else "publish to"
            self.refused.set_result(f"{verb} {found[2]!r}")


@contextmanager
def _heard() -> Iterator["asyncio.Future[str]"]:
    handler, before = _Listening(), connection.log.level
    connection.log.addHandler(handler)
    connection.log.setLevel(logging.INFO)
    try:
        yield handler.refused
    finally:
        connection.log.removeHandler(handler)
        connection.log.setLevel(before)


async def permitted(body: Awaitable[T], user: str | None) -> T:
    """What `body` returns, unless NATS refuses something to this user meanwhile.

    Raises:
        NotPermitted: it does; nobody waits for an answer that will not come.
    """
    with _heard() as refused:
        work = asyncio.ensure_future(body)
        try:
            both: list[asyncio.Future[Any]] = [work, refused]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if refused.done() and not (work.done() and work.exception() is None):
                who = f"user {user!r}" if user else "this user"
                raise NotPermitted(f"NATS does not let {who} {refused.result()}")
            return await work
        finally:
            work.cancel()
            await asyncio.wait([work])
