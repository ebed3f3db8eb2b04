"""How long to wait before the next attempt: ever longer, up to a limit."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

_MOST_DOUBLINGS: Final = 64  # a larger number would overflow a float some day


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that double from the first to the longest; attempts count from 1."""

    first: float
    longest: float

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt."""
        doublings = min(max(0, attempt - 1), _MOST_DOUBLINGS)
        return min(self.first * 2.0**doublings, self.longest)

    def jittered(self, attempt: int) -> float:
        """Return the delay less up to half of it, at random: many do not try at the same moment."""
        return self.delay(attempt) * random.uniform(0.5, 1.0)

    def __iter__(self) -> Iterator[float]:
        """Yield the delays after the first attempt, the second and so on, without end."""
        return map(self.delay, count(1))
