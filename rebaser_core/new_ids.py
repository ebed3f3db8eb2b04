"""What new ids consist of: the time, and chance, which is read for many ids at once."""

import os
import sys
import threading
import time
from typing import Final

_CHANCE_OCTETS: Final = 10
_CHANCE_BITS: Final = 8 * _CHANCE_OCTETS
_IDS_AT_ONCE: Final = 64
"""Ids whose chance is read together: one call of the system for all of them."""

MAX_MILLISECONDS: Final = 2**48 - 1


class NewIds:
    """Makes ids for any number of threads; of one millisecond, each is the one before plus one."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Make no id of what was read before: a forked process has the same in its memory."""
        self._lock = threading.Lock()
        self._last = 0
        self._chances: list[int] = []
        """Not used yet."""

    def make(self, milliseconds: int) -> bytes:
        with self._lock:
            if self._last >> _CHANCE_BITS == milliseconds:
                self._last += 1
            else:
                chance = (self._chances or self._read_chances()).pop()
                self._last = milliseconds << _CHANCE_BITS | chance
            return self._last.to_bytes(16, "big")

    def _read_chances(self) -> list[int]:
        octets = os.urandom(_IDS_AT_ONCE * _CHANCE_OCTETS)
        ends = range(_CHANCE_OCTETS, len(octets) + 1, _CHANCE_OCTETS)
        self._chances = [int.from_bytes(octets[end - _CHANCE_OCTETS : end], "big") for end in ends]
        return self._chances


_new: Final = NewIds()
if sys.platform != "win32":  # where nothing forks
    os.register_at_fork(after_in_child=_new.forget)


def octets(milliseconds: int | None = None) -> bytes:
    """The octets of a new id: of now, or of that time.

    Raises:
        ValueError: no id has such a time.
    """
    if milliseconds is None:
        return _new.make(time.time_ns() // 1_000_000)
    if not 0 <= milliseconds <= MAX_MILLISECONDS:
        raise ValueError(f"{milliseconds} ms of the epoch are beyond what an id can say")
    return _new.make(milliseconds)
