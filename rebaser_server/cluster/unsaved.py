"""Make up for the checkpoints that runs of this process left out to make room (X2b)."""

from collections.abc import Callable
from itertools import islice
from math import ceil
from typing import Final, Never

from rebaser_client.requests import ensure_task
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.state_loader import ReleasedStates
from rebaser_server.runtime.tasks import repeat_every

CHECK_EVERY: Final = 1.0
"""Seconds between two checks whether slots are free."""

SHARE: Final = 4
"""One free slot of so many is used: requests that come meanwhile need some."""


class UnsavedChangeSets:
    """The change sets that this process released without a checkpoint of their last requests.

    Those whose states it does not keep any more are found by the reconciler.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        released: ReleasedStates,
        age: float,
        free: Callable[[], int],
    ) -> None:
        """`age`: seconds since the release; `free` counts the slots that no task waits for."""
        self._js = js
        self._subjects = subjects
        self._released = released
        self._age = age
        self._free = free

    async def run(self) -> Never:
        """Make tasks for them while slots are free, until cancelled."""
        await repeat_every(CHECK_EVERY, self._check, "unsaved")

    async def _check(self) -> None:
        due = list(islice(self._released.unsaved(self._age), ceil(self._free() / SHARE)))
        for change_set in due:
            await ensure_task(self._js, self._subjects, change_set)
            self._released.on_task(change_set)
