"""What a command that takes long says it is waiting for."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from rebaser_client.outcomes import Progress
from rebaser_core.errors import many
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.pauses import pause_text
from rebaser_server.terminal.tables import ProgressBar

T = TypeVar("T")

_INTERVAL: Final = 2.0  # seconds until a wait is explained, and between two explanations


class WaitText:
    """Explains a wait beside a progress bar."""

    def __init__(self, deployment: Deployment, change_set: ChangeSet, bar: ProgressBar) -> None:
        self._deployment = deployment
        self._change_set = change_set
        self._bar = bar
        self._start = asyncio.get_running_loop().time()

    async def until(self, reply: Awaitable[T]) -> T:
        """Wait for the reply to a request."""
        waiting = asyncio.ensure_future(reply)
        try:
            while not (await asyncio.wait([waiting], timeout=_INTERVAL))[0]:
                await self._describe("waiting for its commit", may_be_paused=True)
            return waiting.result()
        finally:
            waiting.cancel()

    async def show(self, progress: Progress) -> None:
        """Show how far the update is."""
        if progress.total is not None:
            self._bar.draw(progress.done, progress.total)
        if self._elapsed >= _INTERVAL:
            await self._describe(describe(progress), may_be_paused=progress.total is None)

    @property
    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._start

    async def _describe(self, text: str, *, may_be_paused: bool) -> None:
        if may_be_paused and self._bar.is_seen:
            text = await pause_text(self._deployment, self._change_set, text) or text
        self._bar.describe(f"{text} ({self._elapsed:.0f} s)")


def describe(progress: Progress) -> str:
    """What is going on, in a few words."""
    if progress.total is None:
        return "waiting for a Rebaser to begin the update"
    text = f"computing {progress.done:,} of {many(progress.total, 'value')}"
    return text if progress.done else f"{text}; Spark may be starting"
