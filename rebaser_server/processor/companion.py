"""What a run does for its change set beside the requests and the background job."""

import asyncio
from typing import Final, Never

POLL_EVERY: Final = 1.0
"""Seconds between two looks whether what keeps a change set from being idle is done."""


class Companion:
    """Does nothing but measure idleness; an application's may do more, for branches for one."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._last_request = self._clock()

    async def start(self) -> None:
        """Do what comes before the first request.

        Raises:
            RetryLater: that cannot be done now.
        """

    async def run(self) -> Never:
        """Work beside the requests until cancelled."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def on_request(self, sequence: int) -> None:  # noqa: ARG002 - for those that do more
        """The request of that stream sequence was handled and committed."""
        self._last_request = self._clock()

    def idle_timeout(self, period: float, *, unfinished: bool) -> float:
        """Seconds without a request until the run asks whether the change set is idle.

        Args:
            period: the quiet period.
            unfinished: whether a background job is due.
        """
        least = POLL_EVERY if unfinished or self.busy else 0.0
        return max(least, self._last_request + period - self._clock())

    @property
    def busy(self) -> bool:
        """Whether the run must go on although no request comes."""
        return False

    @property
    def must_yield(self) -> bool:
        """Whether what keeps it busy may wait for the very slot that the run holds."""
        return False
