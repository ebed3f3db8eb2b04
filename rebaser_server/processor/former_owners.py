"""Whether the owner before a run died or lost its lease: only deaths are counted (L1, D6)."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rebaser_core.ids import ChangeSet

log: Final = structlog.get_logger()

LOST_LEASES_PER_DEATH: Final = 10
"""Lost leases of a change set, without a release between them, of which the last one counts as a
death: what keeps a process from reporting for a whole lease each time is as bad as what kills it,
but a busy machine, too, costs a lease now and then."""


class FormerOwners:
    """The owners that did not release what this process took over, and their lost leases."""

    def __init__(self, is_gone: Callable[[str], Awaitable[bool]]) -> None:
        """`is_gone` returns whether the process of an instance has ended."""
        self._is_gone = is_gone
        self._lost_leases: Counter[ChangeSet] = Counter()

    async def counts_as_death(self, change_set: ChangeSet, owner: str) -> bool:
        """Whether the unreleased `owner` counts as one that died at what it was doing.

        That is so if its process is gone, or if too many leases were lost, one after the other.
        """
        if await self._is_gone(owner.rpartition("/")[0]):
            return True
        self._lost_leases[change_set] += 1
        lost_leases = self._lost_leases[change_set]
        log.warning("owner lost its lease", former=owner, lost_leases=lost_leases)
        if lost_leases < LOST_LEASES_PER_DEATH:
            return False
        self.forget(change_set)
        return True

    def forget(self, change_set: ChangeSet) -> None:
        """Forget the lost leases of a change set that this process has released."""
        self._lost_leases.pop(change_set, None)
