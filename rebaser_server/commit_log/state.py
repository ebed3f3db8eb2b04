"""The state of a change set as of one commit of its log, and what an application adds to it.

A `Content` is the application's part, which a `StateMachine` makes and keeps checkpoints of; a
`Batch` changes it. A `State` adds the control record, the books of its checkpoints, and the ids of
the requests settled lately, by which duplicates are recognised. `Retention` says how much of the
past is kept: the log goes back to the checkpoint that it chooses.
"""

import base64
import zlib
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Protocol, Self

from pydantic import TypeAdapter

from rebaser_core.commits import (
    NO_REQUEST,
    CallEffect,
    CommitV2,
    ControlState,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.messages import Correction, DvuResultInfo, Inline, UpdatesAddress
from rebaser_core.requests import DIGEST_BYTES, RETRY_FOR
from rebaser_core.updates import AnyUpdate
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.files import StoreFiles
from rebaser_server.settings.settings import HistorySettings

SMALL_BATCH: Final = 200
"""Number of updates up to which a batch is applied on the event loop: more would hold up others."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Files in which a background job left its results; the application knows their format."""

    files: StoreFiles
    run: str
    """Key of the directory in which the files lie."""
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Batch:
    updates: Sequence[AnyUpdate]
    computed: DvuResultInfo | None = None
    """The claim under which a background job computed it."""
    head_side: Sequence[AnyUpdate] | None = None
    """Values of head under the updates, for a batch by which head's changes reach a branch."""
    results: ResultFiles | None = None
    """Results that are too many for `updates`."""
    payload: bytes | None = field(default=None, repr=False)
    """Bytes that were read, for a client's batch."""
    from_client: bool = False
    """Whether it is as a client sent it; in the log it is as it was performed."""


class AppliedBatch(Protocol):
    @property
    def updates(self) -> Sequence[AnyUpdate]:
        """Updates as performed, after corrections. Applied to an equal state they need none."""

    @property
    def corrections(self) -> Sequence[Correction]: ...

    @property
    def dirty(self) -> bool:
        """Whether it left work to the background job."""

    @property
    def failed(self) -> int:
        """Number of a background job's results that are failures."""

    @property
    def failing(self) -> int:
        """Number of failures that stand after a background job's results."""


class Content(Protocol):
    """The application's part of a change set's state.

    The core calls it in the order of the commits, from one task at a time.
    """

    async def apply(self, sequence: int, batch: Batch, covers: int | None = None) -> AppliedBatch:
        """Apply a batch: live, and again when the commit log is replayed, with an equal outcome.

        Args:
            sequence: the stream sequence of the request; 0 for a background job's results.
            batch: as the client sent it; in a replay, as it was performed.
            covers: for a background job's results, the sequence up to which requests are in them.

        Raises:
            MissingBatch: files that it names are gone; nothing was changed.
        """

    def take_over(self, settled: SettledRequest, call: CallEffect) -> None:
        """Change as a call did that the log has the effect of."""
        raise HistoryInconsistent(
            f"request {settled.id} is a call of a handler: {call.result!r:.40}"
        )

    def why_kept(self) -> str | None:
        """Return the reason why the change set cannot be closed or deleted, if there is one."""
        return None

    def complete(self, covers: int) -> None:
        """Note that the background job has done the work that requests up to this sequence left."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    commit: int
    metadata: dict[str, Any]
    """The protocol's part, as `State.metadata` gave it, and what the application added."""
    content: Content
    damage: str = ""
    """Reason why a later checkpoint cannot be read; empty if there is none."""


MIN_REMEMBERED: Final = 1_000
"""Number of requests that are remembered at any age."""

REMEMBERED_FOR: Final = round(2 * RETRY_FOR * 1000)
"""Milliseconds for which any number of requests is remembered: twice the time in which a client
sends its request again. They count from the moment at which NATS stored that request to the one at
which it stored a later one: no repetition is stored later, whenever it is handled."""

_ID_BYTES: Final = 16
_NUMBER_BYTES: Final = 8
_UNKNOWN: Final = bytes(DIGEST_BYTES)
"""Placeholder for a digest that is not known."""
_OUTCOMES: Final = tuple(RequestOutcome)
_ROW_BYTES: Final = _ID_BYTES + 1 + 2 * _NUMBER_BYTES


class RecentRequest(NamedTuple):
    """Memory of a settled request; the request's commit has the rest."""

    commit: int
    outcome: RequestOutcome
    digest: str = ""
    """Digest of the request, see `request_digest`; empty if it is unknown."""


class RecentRequests(Mapping[RequestId, RecentRequest]):
    """Recently settled request ids, oldest first; about 175 bytes each.

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
        """Number of rows at the beginning that are forgotten."""
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._commits) - self._first

    def __iter__(self) -> Iterator[RequestId]:
        rows = range(self._first, len(self._commits))
        return (RequestId.from_bytes(self._id(row)) for row in rows)

    @property
    def last_stored(self) -> int:
        """Time at which NATS stored the last one, in milliseconds since 1970; 0 if unknown."""
        return self._stored[-1] if self._stored else 0

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
        """Add the last settled request, and forget requests that are too old.

        Args:
            request_id: the request's.
            commit: the commit that settled it.
            outcome: the request's.
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
        # Not at each forgotten row: so the cost of moving rows stays small for each of them.
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

        `digests`, which do not compress, are apart from the columns in `remembered`.
        """
        first = self._first
        ids = bytes(self._ids[first * _ID_BYTES :])
        columns = [ids[place::_ID_BYTES] for place in range(_ID_BYTES)]  # which compress better
        columns += [bytes(self._outcomes[first:])]
        columns += map(_differences, (self._commits[first:], self._stored[first:]))
        return {
            "remembered": base64.b64encode(zlib.compress(b"".join(columns), 1)).decode(),
            "digests": base64.b64encode(self._digests[first * DIGEST_BYTES :]).decode(),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        requests = cls()
        requests._read(zlib.decompress(base64.b64decode(metadata["remembered"])))
        requests._digests[:] = base64.b64decode(metadata["digests"])
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


_LARGE_BATCHES: Final = 20
"""Number of commits of a change set whose batch is too large for the log, and is kept: a loader
reads each of them, and one may have 128 MiB."""
_CHECKPOINTS_KEY: Final = "checkpoints"
"""Key under which a checkpoint's metadata lists the checkpoints before it."""


class CheckpointRef(NamedTuple):
    """A kept checkpoint: every state between it and the next one can be loaded from it."""

    commit: int
    time: float
    """Time at which it was written, in seconds since 1970."""
    entries: int
    """Number of commits between the checkpoint before it and this one."""

    @classmethod
    def read_all(cls, small: dict[str, Any]) -> list[Self]:
        """Read the checkpoints that a checkpoint's metadata lists: oldest first, itself last."""
        return [cls(*what) for what in small.get(_CHECKPOINTS_KEY, ())]


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of the past that is kept. The checkpoint before the last is always kept."""

    seconds: float
    """Seconds for which the past is kept, unless it exceeds a limit below."""
    entries: int
    """Maximum number of commits."""
    batches: int
    """Maximum number of commits whose batch is too large to be inline."""

    @classmethod
    def of(cls, history: HistorySettings) -> Self:
        return cls(history.retention.total_seconds(), history.max_commits, _LARGE_BATCHES)

    def purge_point(self, kept: Sequence[CheckpointRef], batches: Sequence[int], now: float) -> int:
        """Return the commit at which the past may begin; 0 for the very first.

        `kept` is oldest first; `batches` are the commits whose batch is not inline. The checkpoint
        before the last is the latest choice: a store that loses its last write, for want of an
        fsync, must still meet a log that goes back far enough.
        """
        latest = len(kept) - 2
        old = [index for index in range(latest + 1) if kept[index].time <= now - self.seconds]
        first = max(old, default=-1)
        while first < latest and self._is_long(kept, first, batches):
            first += 1
        return kept[first].commit if first >= 0 else 0

    def _is_long(self, kept: Sequence[CheckpointRef], first: int, batches: Sequence[int]) -> bool:
        commit = kept[first].commit if first >= 0 else 0
        lines = sum(checkpoint.entries for checkpoint in kept[first + 1 :])
        return lines > self.entries or sum(entry > commit for entry in batches) > self.batches


_EXTERNAL_BATCHES: Final = TypeAdapter(list[tuple[int, UpdatesAddress]])


_MEASURED_EVERY: Final = 8
"""Number of requests with small batches after which a state's size is measured again."""


class Unsaved(NamedTuple):
    """Number of commits behind the last checkpoint."""

    commits: int
    requests: int
    """Number of these commits that settle a request."""


class CheckpointAttempt(NamedTuple):
    snapshot: "Snapshot"
    checkpoints: list[CheckpointRef]
    """Checkpoints to keep once it is written."""
    covered: Unsaved


@dataclass(slots=True)
class State:
    """The whole state of one change set, and which checkpoints hold how much of it.

    Only `advance`, `content.apply` and the methods about checkpoints change it; and what starts a
    branch, its `code`.
    """

    content: Content
    control: ControlState = field(default_factory=ControlState)
    commit: int = 0
    """Sequence of the last commit that the state includes."""
    commit_id: RequestId | None = None
    """Id of that commit; None if the checkpoint that the state was loaded from does not name it."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    external_batches: list[tuple[int, UpdatesAddress]] = field(default_factory=list)
    """Commits with a batch that is not inline, and its address: deleted after the commit is
    purged."""
    checkpoint_commit: int = 0
    """Commit of the last checkpoint; 0 for none."""
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    """Checkpoints that the past can be restored from, oldest first, the last one included."""
    damage: str = ""
    """Reason why a later checkpoint could not be read; empty if there is none. The log made up for
    it."""
    code: str = ""
    """Code that values were computed with, as the application writes it; empty: unknown."""
    _commits: int = field(default=0, init=False)
    _requests: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)
    _unmeasured: int = field(default=_MEASURED_EVERY, init=False)

    @property
    def unsaved(self) -> Unsaved:
        """Commits after the last checkpoint that is known to be written."""
        return Unsaved(self._commits, self._requests)

    def advance(self, commit: CommitV2, sequence: int) -> None:
        """Take over the control record of `commit`, whose batch the content already includes."""
        closed = commit.control.closing is not None and commit.control.closing.status != "applying"
        if commit.control.clean_sequence > self.control.clean_sequence and not closed:
            # A closed branch keeps what was left to do: a fork of it does it.
            self.content.complete(commit.control.clean_sequence)
        self.control = commit.control
        self.commit, self.commit_id = sequence, commit.id
        self.code = commit.code or self.code
        self._commits += 1
        if commit.settled is not None:
            self._requests += 1
            is_small = isinstance(commit.settled.updates, Inline | None)
            self._unmeasured += 1 if is_small else _MEASURED_EVERY  # nothing else adds content
            self._remember(commit, commit.settled, sequence)

    def _remember(self, commit: CommitV2, settled: SettledRequest, sequence: int) -> None:
        # W7: a duplicate would hide the outcome and the digest of the first request with its id.
        if settled.outcome is not RequestOutcome.DUPLICATE and settled.sequence != NO_REQUEST:
            stored, digest = commit.id.milliseconds, commit.request_digest
            self.recent.remember(settled.id, sequence, settled.outcome, stored, digest)
        if settled.updates is not None and not isinstance(settled.updates, Inline):
            self.external_batches.append((sequence, settled.updates))

    def metadata(self) -> dict[str, Any]:
        """Return all but the content, as plain data for a checkpoint."""
        return {
            "commitId": None if self.commit_id is None else str(self.commit_id),
            "control": self.control.model_dump(mode="json", by_alias=True),
            "code": self.code,
            **self.recent.metadata(),
            "stored": _EXTERNAL_BATCHES.dump_python(
                self.external_batches, mode="json", by_alias=True
            ),
        }

    def size(self, machine: "StateMachine") -> int:
        """Estimated bytes of memory, measured again once enough was committed. May block."""
        if self._unmeasured >= _MEASURED_EVERY:
            self._size, self._unmeasured = machine.footprint(self), 0
        return self._size

    def begin_checkpoint(self, machine: "StateMachine", now: float) -> CheckpointAttempt:
        """Take the changes since the last checkpoint. Blocks; nothing is committed meanwhile.

        Each attempt must end with `finish_checkpoint` or `abandon_checkpoint`; otherwise the state
        is worthless. `now`: seconds since 1970.
        """
        checkpoints = [*self.checkpoints, CheckpointRef(self.commit, now, self._commits)]
        metadata = {**self.metadata(), _CHECKPOINTS_KEY: checkpoints}
        snapshot = machine.take(self, metadata, whole=self.checkpoint_commit == 0)
        return CheckpointAttempt(snapshot, checkpoints, self.unsaved)

    def finish_checkpoint(self, attempt: CheckpointAttempt) -> None:
        """Record that the checkpoint is written; commits may have followed it."""
        self.checkpoint_commit, self.checkpoints = attempt.snapshot.commit, attempt.checkpoints
        self._commits -= attempt.covered.commits
        self._requests -= attempt.covered.requests

    def abandon_checkpoint(self, machine: "StateMachine", attempt: CheckpointAttempt) -> None:
        """Leave the changes of the attempt, which is not written, to the next checkpoint."""
        machine.put_back(self, attempt.snapshot)

    def forget_checkpoints(self) -> None:
        """Make the next checkpoint whole: no table exists to which changes could be added."""
        self.checkpoint_commit, self.checkpoints = 0, []

    def cut_past(self, retention: Retention, now: float) -> int:
        """Return the commit at which the past may begin; checkpoints before it are forgotten."""
        batches = [commit for commit, _ in self.external_batches]
        begin = retention.purge_point(self.checkpoints, batches, now)
        self.checkpoints = [each for each in self.checkpoints if each.commit >= begin]
        return begin

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "State":
        metadata, commit_id = checkpoint.metadata, checkpoint.metadata.get("commitId")
        return cls(
            checkpoint.content,
            ControlState.model_validate(metadata["control"]),
            checkpoint.commit,
            None if commit_id is None else RequestId.from_str(commit_id),
            RecentRequests.from_metadata(metadata),
            _EXTERNAL_BATCHES.validate_python(metadata["stored"]),
            checkpoint.commit,
            CheckpointRef.read_all(metadata),
            checkpoint.damage,
            metadata.get("code", ""),
        )


LoadState = Callable[[ChangeSetId, int], Awaitable[State]]
"""Function that loads another change set of the workspace as of a commit. Raises `NotRetained`."""


class Snapshot(Protocol):
    """Content of a checkpoint: taken from a state at one moment, written later."""

    @property
    def commit(self) -> int: ...

    def __len__(self) -> int:
        """Number of rows that it writes."""


class StateMachine(Protocol):
    """Maker of contents, and keeper of their checkpoints in the shared store.

    The calls about checkpoints block; the core makes them in threads.
    """

    def empty(self) -> Content:
        """Return the content of a change set without commits."""

    async def initial(self, first: CommitV2 | None, load: LoadState) -> Content:
        """Return the content before the first commit; for a branch, that of its base.

        Args:
            first: the oldest commit that the log has; None for none.
            load: reads the change set that a branch was forked from.
        """
        del first, load
        return self.empty()

    def require_sound(self, state: State) -> None:
        """Raise `HistoryInconsistent` if a loaded state lacks what its commits rely on."""

    def load(self, change_set: ChangeSet, at: int | None = None) -> Checkpoint | None:
        """The last checkpoint, or the last at or before commit `at`; None if there is none.

        Raises:
            StoreDamaged: the checkpoint is not as it was written.
            OSError: the store cannot be read now.
        """

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """The metadata of the last checkpoint alone. Raises as `load`."""

    def kept_metadata(self, change_set: ChangeSet, since: int) -> Sequence[bytes]:
        """The metadata of each checkpoint from commit `since` on, encoded: tables named there stay.

        Raises:
            StoreDamaged: not all can be read.
            OSError: the store cannot be read now.
        """
        del change_set, since
        return ()

    def is_checkpoint_due(self, state: State) -> bool:
        """Whether so much has changed since the last checkpoint that loading would take long."""
        del state
        return False

    def is_worth_saving(self, state: State) -> bool:
        """Whether a run that ends should write a checkpoint of requests since the last one."""
        return state.unsaved.requests > 0

    def footprint(self, state: State) -> int:
        """Estimate the bytes of memory that the state takes."""

    def take(self, state: State, metadata: dict[str, Any], *, whole: bool) -> Snapshot:
        """Take the changes since the last call, or everything."""

    def save(self, change_set: ChangeSet, snapshot: Snapshot) -> None:
        """Write a snapshot whole or not at all, once even if it is called again.

        Raises:
            OSError: the store failed. It may hold the snapshot or not.
        """

    def put_back(self, state: State, snapshot: Snapshot) -> None:
        """Add the changes of this snapshot, which was not written, to the next one."""

    async def on_purge(self, change_set: ChangeSet, commit: int) -> None:
        """Note the log's purge: checkpoints before that of `commit` are not needed any more.

        Raises:
            OSError: the store did not delete them; a later purge does.
        """
