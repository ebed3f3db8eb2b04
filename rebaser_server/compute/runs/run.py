"""One run of a plan's blobs: what of it is done already, what to ask for, and how far it is."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rebaser_server.compute.evaluate.task_protocol import FIRST, TURN, order, read_done, stored_in
from rebaser_server.compute.units.run_store import Saved, Shelf, Stored, chain
from rebaser_server.compute.units.unit_result import Outcome
from rebaser_server.compute.units.work_unit import digest_of, limits_of, size

BESIDE: Final = 256 * 1024
"""Octets of a blob that travels with the job; a larger one lies on the shelf, where there is one:
in a job it would be held several times over by driver, scheduler and worker."""
_PUT_AT_ONCE: Final = 4
"""Large blobs written to the shelf at a time."""


class Run:
    """Asked for in rounds: workers give way to other runs' now and then, and are asked again.

    Its methods block.
    """

    def __init__(
        self,
        run_id: str,
        blobs: Sequence[bytes | memoryview],
        shelf: Shelf | None,
        *,
        turn: float = TURN,
    ) -> None:
        """`turn`: seconds, see `work.TURN`."""
        self.id: Final = run_id
        self.shelf: Final = shelf
        self._turn = turn
        self._blobs = blobs
        self._digests = [""] * len(blobs)
        self._sizes = list(map(size, blobs))
        self.size: Final = sum(self._sizes)
        self._stops = [0] * len(blobs)
        """Of each blob, how many values are done for sure."""
        self._ended: dict[int, Outcome | Stored] = {}

    def orders(self) -> dict[int, bytes]:
        """What is to be asked for now, by the number of its blob; nothing once all is done."""
        names = self.shelf.names() if self.shelf and self.size > FIRST else []
        if self.shelf and "" in self._digests:
            self._digests = list(map(digest_of, self._blobs))
        orders = {}
        for number, digest in enumerate(self._digests):
            if number in self._ended:
                continue
            found = chain(names, digest)
            self._stops[number] = found[-1].stop if found else 0
            if self.shelf and found and found[-1].stop == self._sizes[number]:
                self._ended[number] = stored_in(self.shelf, found)
            else:
                orders[number] = self._order(number, found)
        if self.shelf:
            self._put_large(self.shelf, orders, names)
        return orders

    def _order(self, number: int, found: list[Saved]) -> bytes:
        blob = None if self._lies_on_shelf(number) else self._blobs[number]
        there = [saved.name for saved in found]
        limits = limits_of(self._blobs[number])
        return order(self._digests[number], blob, there, turn=self._turn, limits=limits)

    def _lies_on_shelf(self, number: int) -> bool:
        return self.shelf is not None and len(self._blobs[number]) > BESIDE

    def _put_large(self, shelf: Shelf, numbers: Iterable[int], names: list[str]) -> None:
        missing = {
            self._digests[number]: self._blobs[number]
            for number in numbers
            if self._lies_on_shelf(number) and f"{self._digests[number]}.blob" not in names
        }
        if missing:
            with ThreadPoolExecutor(_PUT_AT_ONCE) as pool:
                list(pool.map(shelf.put_blob, missing.keys(), missing.values()))

    def answered(self, number: int, answer: bytes) -> None:
        """Take note of what was done about the order for a blob."""
        ended = read_done(answer)
        if ended is not None:
            self._ended[number] = ended
            self._stops[number] = self._sizes[number]

    def outcomes(self) -> list[Outcome | Stored]:
        """Of each blob, once there is nothing to ask for any more."""
        return [self._ended[number] for number in range(len(self._blobs))]

    def done(self) -> int:
        """Values done, at least: workers tell only of blobs that take long."""
        told = self.shelf.progress(self.id) if self.shelf else {}
        return sum(
            max(stop, told.get(digest, 0))
            for stop, digest in zip(self._stops, self._digests, strict=True)
        )
