"""Waiting for what becomes true."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

POLL_INTERVAL: Final = 0.005  # seconds


async def eventually(
    condition: Callable[[], Awaitable[bool]] | Callable[[], bool], *, within: float = 60.0
) -> None:
    """Return once the condition holds; fail if it does not `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {condition}")
        await asyncio.sleep(POLL_INTERVAL)
