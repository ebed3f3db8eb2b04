"""The replies that a connection awaits, each by a token that ends its subject."""

import asyncio
import heapq
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
_TOKENS_AT_ONCE: Final = 64
"""Tokens made together: one call of the system for all of them."""


class PendingReplies:
    """Futures of replies; each is None if the connection goes down before its reply comes.

    One timer serves all deadlines, since nearly all replies come long before theirs.
    """

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Msg | None]] = {}
        self._tokens: list[str] = []
        """Not used yet."""
        self._sweep_threshold = MIN_SWEEP
        self._deadlines: list[tuple[float, str]] = []
        """A heap of the tokens that have one, also of those whose reply has come."""
        self._timer: asyncio.TimerHandle | None = None
        """At the first deadline or before."""

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, token: str) -> bool:
        return token in self._futures

    def expect(self, end: float | None = None) -> "tuple[str, asyncio.Future[Msg | None]]":
        """Return a new token and the future reply to it; cancel the future to stop waiting.

        The future is None at `end`, by the loop's clock, if no reply came.

        Raises:
            NatsUnreachable: as many replies are awaited already as ever will be.
        """
        if len(self._futures) > self._sweep_threshold:
            self._sweep()
        token = (self._tokens or self._make_tokens()).pop()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg | None] = loop.create_future()
        self._futures[token] = future
        if end is not None:
            heapq.heappush(self._deadlines, (end, token))
            if self._timer is None or end < self._timer.when():
                self._set_timer(end)
        return token, future

    def _make_tokens(self) -> list[str]:
        digits, length = secrets.token_hex(_TOKENS_AT_ONCE * _TOKEN_BYTES), 2 * _TOKEN_BYTES
        self._tokens = [digits[at : at + length] for at in range(0, len(digits), length)]
        return self._tokens

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
            _complete_without_reply(future)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._on_deadline)

    def _on_deadline(self) -> None:
        now, self._timer = asyncio.get_running_loop().time(), None
        if len(self._deadlines) > 2 * len(self._futures):  # most have come: all at once
            self._deadlines = [each for each in self._deadlines if each[1] in self._futures]
            heapq.heapify(self._deadlines)
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1] not in self._futures):
            _, token = heapq.heappop(deadlines)
            if (future := self._futures.pop(token, None)) is not None:
                _complete_without_reply(future)
        if deadlines:
            self._set_timer(deadlines[0][0])


def _complete_without_reply(future: "asyncio.Future[Msg | None]") -> None:
    if not future.done():
        future.set_result(None)
