"""Who looks at which change set, as the pages that this Rebaser serves say by asking."""

import time
from collections.abc import Callable
from typing import Final

from rebaser_core.ids import ChangeSet

EXPIRY: Final = 40.0
"""Seconds after which a page that is looked at has asked twice."""


class Onlookers:
    """In memory: after a restart they are known again once their pages have asked again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[ChangeSet, str], float] = {}

    def see(self, change_set: ChangeSet, name: str) -> None:
        """The page of the visitor of that name has just asked."""
        now = self._clock()
        self._seen[change_set, name] = now
        for key in [key for key, at in self._seen.items() if now - at > EXPIRY]:
            del self._seen[key]

    def of(self, change_set: ChangeSet) -> list[str]:
        """The names of those who look at it."""
        since = self._clock() - EXPIRY
        return sorted(
            name for (seen, name), at in self._seen.items() if seen == change_set and at >= since
        )
