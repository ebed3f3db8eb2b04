"""One run of a plan's blobs: what of it is done already, what to ask for, and how far it is."""

from collections.abc import Sequence
from typing import Final

from rebaser_server.dvu.blob import size
from rebaser_server.dvu.outcome import Outcome
from rebaser_server.dvu.shelf import Saved, Shelf, Stored, chain, digest_of
from rebaser_server.dvu.work import FIRST, order, read_done, stored_in

BESIDE: Final = 256 * 1024
"""Octets of a blob that travels with the job; a larger one lies on the shelf, where there is one:
in a job it would be held several times over by driver, scheduler and worker."""


class Run:
    """Its methods block."""

    def __init__(self, run_id: str, blobs: Sequence[bytes], shelf: Shelf | None) -> None:
        self.id: Final = run_id
        self.shelf: Final = shelf
        self._blobs = blobs
        self._sizes = list(map(size, blobs))
        self.size: Final = sum(self._sizes)
        self._known: dict[int, Stored] = {}
        self._known_size = 0
        self._asked: list[int] = []

    def orders(self) -> list[bytes]:
        """What is to be asked for: all but the blobs that an earlier run has completed."""
        if self.shelf is None:
            self._expect(range(len(self._blobs)))
            return [order("", blob, ()) for blob in self._blobs]
        names = self.shelf.names() if self.size > FIRST else []
        orders, asked = [], []
        for place, (blob, count) in enumerate(zip(self._blobs, self._sizes, strict=True)):
            digest = digest_of(blob)
            found = chain(names, digest)
            if found and found[-1].stop == count:
                self._known[place] = stored_in(self.shelf, found)
                continue
            orders.append(self._order(digest, blob, found, names))
            asked.append(place)
        self._expect(asked)
        return orders

    def _order(self, digest: str, blob: bytes, found: list[Saved], names: list[str]) -> bytes:
        there = [saved.name for saved in found]
        if self.shelf is None or len(blob) <= BESIDE:
            return order(digest, blob, there)
        if f"{digest}.blob" not in names:
            self.shelf.put_blob(digest, blob)
        return order(digest, None, there)

    def _expect(self, asked: Sequence[int]) -> None:
        self._asked = [self._sizes[place] for place in asked]
        self._known_size = sum(self._sizes[place] for place in self._known)

    def outcomes(self, done: Sequence[bytes]) -> list[Outcome | Stored]:
        """Of each blob, from what was done about each order."""
        new = map(read_done, done)
        known = self._known
        return [known[n] if n in known else next(new) for n in range(len(self._blobs))]

    def done_in_order(self, count: int) -> int:
        """Values done when the first `count` orders are."""
        return self._known_size + sum(self._asked[:count])

    def done_at_least(self, count: int) -> int:
        """Likewise when any `count` are: the smallest, perhaps."""
        return self._known_size + sum(sorted(self._asked)[:count])

    def told(self) -> int:
        """Values done by what workers tell, who do so only in blobs that take long."""
        return 0 if self.shelf is None else self._known_size + self.shelf.progress(self.id)
