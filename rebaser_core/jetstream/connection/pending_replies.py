"""The replies that a connection awaits, each by a token that ends its subject."""

import asyncio
import secrets
from typing import Final

from nats.aio.msg import Msg

from rebaser_core.jetstream.errors import NatsUnreachable

MIN_SWEEP: Final = 1_000
"""Replies awaited from which on those that the caller gave up are looked for."""
MAX_PENDING: Final = 100_000
"""Replies awaited at once; a caller that leaves so many unread will not read the next one."""

_TOKEN_BYTES: Final = 8
"""Octets that a reply must know: only who got the request can make one up."""


class PendingReplies:
    """Futures of replies; each is None if the connection goes down before its reply comes."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Msg | None]] = {}
        self._sweep_threshold = MIN_SWEEP

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, token: str) -> bool:
        return token in self._futures

    def expect(self) -> "tuple[str, asyncio.Future[Msg | None]]":
        """Return a new token and the future reply to it; cancel the future to stop waiting.

        Raises:
            NatsUnreachable: as many replies are awaited already as ever will be.
        """
        if len(self._futures) > self._sweep_threshold:
            self._sweep()
        token = secrets.token_hex(_TOKEN_BYTES)
        future: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
        self._futures[token] = future
        return token, future

    def _sweep(self) -> None:
        """Forget those that the caller gave up."""
        self._futures = {t: each for t, each in self._futures.items() if not each.done()}
        if len(self._futures) >= MAX_PENDING:
            raise NatsUnreachable(f"{len(self._futures)} questions are not answered")
        self._sweep_threshold = min(max(MIN_SWEEP, 2 * len(self._futures)), MAX_PENDING)

    def deliver(self, token: str, reply: Msg) -> None:
        """Hand over a reply, unless the caller gave it up."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail_all(self) -> None:
        """Tell all callers that no reply comes: the connection went down."""
        futures, self._futures = self._futures, {}
        for future in futures.values():
            expire(future)


def expire(future: "asyncio.Future[Msg | None]") -> None:
    """Tell the caller that no reply comes, unless it came."""
    if not future.done():
        future.set_result(None)
