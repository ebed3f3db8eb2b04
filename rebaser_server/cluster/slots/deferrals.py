"""Tasks that got no slot: when each is redelivered."""

import asyncio
from collections import Counter, deque
from typing import Final

from rebaser_core.ids import ChangeSet, WorkspaceId

SOONEST: Final = 0.25  # seconds

DEFERRED_PER_SECOND: Final = 50
"""Deferred tasks that are redelivered per second: bounds what a crowd costs this process. Of a
process that takes tasks faster, more are: else slots would wait for tasks."""

PER_TAKEN: Final = 1.5
"""Deferred tasks that are redelivered for each that is taken, if they are more than that."""

_LATELY: Final = 5.0  # seconds in which tasks were taken that count

MAX_DEFERRAL: Final = 120.0  # seconds

PREEMPT_AHEAD: Final = 1.0  # seconds before a deferred task's redelivery that a slot is requested


class Deferrals:
    """The tasks that a process deferred. They return one after the other, workspaces in turns.

    So they are no flood, the other tasks in the stream are reached quickly, and no workspace
    waits for another's crowd.
    """

    def __init__(self) -> None:
        self._due: dict[ChangeSet, float] = {}
        """When the tasks of deferred change sets are redelivered."""
        self._last: dict[WorkspaceId, float] = {}
        """When the last deferred task of each workspace is redelivered, if that is not past."""
        self._taken: deque[float] = deque()
        """When tasks were taken lately."""

    def __len__(self) -> int:
        return len(self._due)

    def defer(self, change_set: ChangeSet) -> float:
        """Return for how many seconds to nak the change set's task, since it got no slot."""
        now = asyncio.get_running_loop().time()
        workspace = change_set.workspace_id
        last = max(self._last.setdefault(workspace, now), now)
        soonest = max(last + len(self._last) / self._per_second(now), now + SOONEST)
        redelivery = min(soonest, now + MAX_DEFERRAL)
        self._last[workspace] = self._due[change_set] = redelivery
        return redelivery - now

    def _per_second(self, now: float) -> float:
        self._forget(now)
        return max(DEFERRED_PER_SECOND, PER_TAKEN * len(self._taken) / _LATELY)

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0] < now - _LATELY:
            self._taken.popleft()

    def on_taken(self, change_set: ChangeSet) -> None:
        """Forget the change set's task, which has a slot."""
        now = asyncio.get_running_loop().time()
        self._taken.append(now)
        self._forget(now)
        self._due.pop(change_set, None)

    def due(self) -> Counter[WorkspaceId]:
        """Count the deferred tasks of each workspace that are redelivered about now."""
        now = asyncio.get_running_loop().time()
        self._last = {whose: at for whose, at in self._last.items() if at > now}
        late = now - PREEMPT_AHEAD  # another Rebaser took those
        self._due = {which: due for which, due in self._due.items() if due > late}
        return Counter(c.workspace_id for c, due in self._due.items() if due < now + PREEMPT_AHEAD)
