"""`--wait` of commands and `--timeout`, after which they end; what they sent goes on."""

import argparse
from collections.abc import Coroutine
from typing import Any, Final

from rebaser_core.errors import RebaserError

COMPUTED: Final = "wait until the values that depend on it are computed"


class NotInTime(RebaserError):
    """What a command waited for did not happen within its `--timeout`."""


def add_wait(parser: argparse.ArgumentParser, about: str = COMPUTED) -> None:
    """Declare `--wait` and `--timeout`."""
    parser.add_argument("--wait", action="store_true", help=about)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="wait no longer than that, and end with exit code 7 (default: no limit)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


async def limited(command: Coroutine[Any, Any, int | None], seconds: float | None) -> int | None:
    """Run a command, for no longer than so many seconds.

    Raises:
        NotInTime: it had not ended by then, and was cancelled.
    """
    if seconds is None:
        return await command
    import asyncio

    work = asyncio.ensure_future(command)
    try:
        done, _ = await asyncio.wait([work], timeout=seconds)
    finally:
        work.cancel()
    if done:
        return work.result()
    await asyncio.wait([work])
    raise NotInTime(f"not done within {seconds:g} s; what was sent is not taken back, and goes on")
