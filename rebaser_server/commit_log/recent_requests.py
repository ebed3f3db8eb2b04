"""The ids of the requests that a change set settled lately, by which duplicates are recognised."""

import base64
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Self

from rebaser_client.requests import DIGEST_BYTES, RETRY_FOR
from rebaser_core.commits import RequestOutcome
from rebaser_core.ids import RequestId

MIN_REMEMBERED: Final = 1_000
"""Requests that are remembered however long ago they were."""

REMEMBERED_FOR: Final = round(2 * RETRY_FOR * 1000)
"""Milliseconds for which a request is remembered however many follow it: twice the time in which
its client sends it again. They count from the moment at which NATS stored that request to the one
at which it stored a later one: no repetition is stored later, whenever it is handled."""

_ID_BYTES: Final = 16
_NUMBER_BYTES: Final = 8
_UNKNOWN: Final = bytes(DIGEST_BYTES)
"""Digest of a request that an older release settled, in place of the real one."""
_OUTCOMES: Final = tuple(RequestOutcome)
_ROW_BYTES: Final = _ID_BYTES + 1 + 2 * _NUMBER_BYTES


class RecentRequest(NamedTuple):
    """What the state keeps of a settled request; the request's commit has the rest."""

    commit: int
    outcome: RequestOutcome
    digest: str = ""
    """Digest of the request, see `request_digest`; empty if it is unknown."""


class RecentRequests(Mapping[RequestId, RecentRequest]):
    """The memory of request ids: columns, oldest first, of about 175 bytes for each id.

    An id is forgotten once it is neither among the last `MIN_REMEMBERED` nor stored within
    `REMEMBERED_FOR` before the last one.
    """

    def __init__(self) -> None:
        self._ids = bytearray()
        self._digests = bytearray()
        self._outcomes = bytearray()
        self._commits = array("q")
        self._stored = array("q")
        self._first = 0
        """Rows before it are forgotten."""
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._commits) - self._first

    def __iter__(self) -> Iterator[RequestId]:
        return self._last(len(self))

    @property
    def last_stored(self) -> int:
        """When NATS stored the last one, in milliseconds since 1970; 0 if that is not known."""
        return self._stored[-1] if self._stored else 0

    def _last(self, count: int) -> Iterator[RequestId]:
        end = len(self._commits)
        return (RequestId.from_bytes(self._id(row)) for row in range(end - count, end))

    def __contains__(self, request_id: object) -> bool:
        return isinstance(request_id, RequestId) and request_id.bytes in self._rows

    def __getitem__(self, request_id: RequestId) -> RecentRequest:
        row = self._rows[request_id.bytes]
        digest = self._digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
        return RecentRequest(
            self._commits[row],
            _OUTCOMES[self._outcomes[row]],
            "" if digest == _UNKNOWN else digest.hex(),
        )

    def remember(
        self,
        request_id: RequestId,
        commit: int,
        outcome: RequestOutcome,
        stored: int,
        digest: str = "",
    ) -> None:
        """Add the last settled request, and forget what is too old.

        Args:
            request_id: the request's.
            commit: the commit that settled it.
            outcome: of the request.
            stored: when NATS stored the request, in milliseconds since 1970.
            digest: see `RecentRequest`.
        """
        self._append(request_id, commit, outcome, stored, digest)
        surplus_ends, too_old = len(self._commits) - MIN_REMEMBERED, stored - REMEMBERED_FOR
        while self._first < surplus_ends and self._stored[self._first] < too_old:
            forgotten = self._id(self._first)
            if self._rows[forgotten] == self._first:
                del self._rows[forgotten]
            self._first += 1
        if 2 * self._first > len(self._commits):
            self._compact()

    def _append(
        self,
        request_id: RequestId,
        commit: int,
        outcome: RequestOutcome,
        stored: int,
        digest: str = "",
    ) -> None:
        self._rows[request_id.bytes] = len(self._commits)
        self._ids += request_id.bytes
        self._digests += bytes.fromhex(digest) or _UNKNOWN
        self._outcomes.append(_OUTCOMES.index(outcome))
        self._commits.append(commit)
        self._stored.append(stored)

    def _id(self, row: int) -> bytes:
        return bytes(self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES])

    def _compact(self) -> None:
        first, self._first = self._first, 0
        del self._ids[: first * _ID_BYTES], self._digests[: first * DIGEST_BYTES]
        del self._outcomes[:first]
        del self._commits[:first], self._stored[:first]
        self._rows = {request_id: row - first for request_id, row in self._rows.items()}

    def metadata(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: about 20 bytes for each id.

        `recent` is what releases read that count ids and know no times; `digests` are apart from
        `remembered`, whose columns releases read that know no digests.
        """
        last = [(i, self[i]) for i in self._last(min(len(self), MIN_REMEMBERED))]
        first = self._first
        ids = bytes(self._ids[first * _ID_BYTES :])
        columns = [ids[place::_ID_BYTES] for place in range(_ID_BYTES)]  # which compress better
        columns += [bytes(self._outcomes[first:])]
        columns += map(_differences, (self._commits[first:], self._stored[first:]))
        return {
            "recent": [[str(i), known.commit, known.outcome] for i, known in last],
            "remembered": base64.b64encode(zlib.compress(b"".join(columns), 1)).decode(),
            "digests": base64.b64encode(self._digests[first * DIGEST_BYTES :]).decode(),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Read `metadata`. Ids without times, of an older release, are remembered by number."""
        requests = cls()
        if "remembered" in metadata:
            requests._read(zlib.decompress(base64.b64decode(metadata["remembered"])))
            if "digests" in metadata:
                requests._digests[:] = base64.b64decode(metadata["digests"])
        else:
            for text, commit, outcome in metadata["recent"]:
                requests._append(RequestId.from_str(text), commit, RequestOutcome(outcome), 0)
        return requests

    def _read(self, columns: bytes) -> None:
        count = len(columns) // _ROW_BYTES
        self._ids = bytearray(count * _ID_BYTES)
        for place in range(_ID_BYTES):
            self._ids[place::_ID_BYTES] = columns[place * count : (place + 1) * count]
        self._digests = bytearray(count * DIGEST_BYTES)
        self._outcomes += columns[_ID_BYTES * count : (_ID_BYTES + 1) * count]
        numbers = array("q", columns[(_ID_BYTES + 1) * count :])
        self._commits.extend(accumulate(numbers[:count]))
        self._stored.extend(accumulate(numbers[count:]))
        self._rows = {self._id(row): row for row in range(count)}


def _differences(numbers: Sequence[int]) -> bytes:
    return array("q", (after - before for before, after in pairwise((0, *numbers)))).tobytes()
