"""The outcome of a batch: wait until its values are computed, and name those that failed.

`read_missing_results` finds the values without a result: failed or blocked, and because of which
request. `watching` follows the activities that Rebasers publish while they work on a change set.
`SettlementWatch` waits until the values that depend on a commit are computed, and shows the
progress.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Self

from nats.aio.msg import Msg

from rebaser_client.reader import ReadsValues
from rebaser_client.requests import settled
from rebaser_core.activities import Activity, ActivityKind, ActivityV1
from rebaser_core.commits import Commit, ControlState
from rebaser_core.errors import ClientError, MessageError, Unreachable
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import NatsUnreachable, StoredMessage, Unavailable, deadlines
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.messages import Correction, EnqueueUpdatesResponseV3
from rebaser_core.queries import ValueSnapshot
from rebaser_core.requests import RETRY_FOR, retry
from rebaser_core.streams import Streams

_FAILED: Final = "failed"
_BLOCKED: Final = "blocked"


class Values(tuple[ValueSnapshot, ...]):  # noqa: SLOT001 - a tuple cannot have any
    """Values; of many only the first ones, and how many there are."""

    total: int
    """Number of the values, also of those that are not listed."""

    def __new__(cls, values: Iterable[ValueSnapshot] = (), total: int | None = None) -> Self:
        """Note the values, which are the first of `total`."""
        made = super().__new__(cls, values)
        made.total = len(made) if total is None else total
        return made

    def __repr__(self) -> str:
        more = self.total - len(self)
        return f"{super().__repr__()}{f' and {more:,} more' if more else ''}"


@dataclass(frozen=True, slots=True)
class MissingResults:
    """Values without a result, as of the last commit."""

    failed: Values
    """Failed values that depend on the request's values, or that had not failed before it."""
    failed_before: Values
    """Values that had failed before the request."""
    blocked: Values
    """Values that are not computed because one of their inputs failed."""
    affected_blocked: Values = field(default_factory=Values, kw_only=True)
    """Blocked values that depend on what the request changed; all, if its commit is not given."""


async def read_missing_results(
    reader: ReadsValues, commit: int | None = None, changed: Iterable[str] = ()
) -> MissingResults:
    """The values without a result, split by whether the request of that commit affected them.

    `changed`: names or ids of values and functions that the request changed, and its batch does not
    name. Without a commit, all failures are in `failed`.

    Raises:
        ClientError: as `ChangeSetHandle.values`.
    """
    found = await reader.without_result(commit, changed)
    known = {(each.status, each.affected): Values(each.values, each.count) for each in found}

    def of(status: str, affected: Iterable[bool | None]) -> Values:
        some = [known.get((status, each), Values()) for each in affected]
        return Values((value for each in some for value in each), sum(each.total for each in some))

    failed, others = of(_FAILED, (True, None)), of(_FAILED, (False,))
    if others and commit is not None:
        before = await _failed_before(reader, commit, [value.id for value in others])
        new = [value for value in others if value.id not in before]
        failed = Values((*failed, *new), failed.total + len(new))
        old = (value for value in others if value.id in before)
        others = Values(old, others.total - len(new))
    blocked = of(_BLOCKED, (True, None, False))
    return MissingResults(failed, others, blocked, affected_blocked=of(_BLOCKED, (True, None)))


async def _failed_before(reader: ReadsValues, commit: int, value_ids: list[str]) -> set[str]:
    """Ids of values that had failed before the commit; none if that past is not retained."""
    try:
        before = await reader.values(*value_ids, at=max(0, commit - 1), missing_ok=True)
    except ClientError:
        return set()
    return {value.id for value in before.values() if value.status == _FAILED}


Wait = Literal["stored", "committed", "computed"]
"""Event until which `enqueue` waits; each includes the one before it."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Outcome of a batch, as far as the caller waited.

    Example:
        outcome = await shop.enqueue(updates, wait="computed")
        print(outcome.commit, [value.name for value in outcome.failed])
    """

    request_id: RequestId
    commit: int | None = None
    """The commit that applied it; None if the caller waited until it was stored only."""
    corrections: Sequence[Correction] = ()
    """Changes that Rebaser made to the batch, because it did not fit the change set."""
    settlement: "Settlement | None" = None
    """The settled commit; None unless the caller waited for dependent values."""

    @property
    def failed(self) -> Values:
        """Values that failed because of this batch; none unless the caller waited for them."""
        return Values() if self.settlement is None else self.settlement.failed

    @property
    def blocked(self) -> Values:
        """Values that were not computed because one of their inputs failed."""
        return Values() if self.settlement is None else self.settlement.blocked


def committed(response: EnqueueUpdatesResponseV3) -> BatchOutcome:
    """The outcome that a reply shows. Raises as `settled`."""
    success = settled(response)
    return BatchOutcome(response.id, success.commit or 0, success.corrections)


_SUBSCRIBE_TIMEOUT: Final = 5.0
"""Seconds for the server to hear of a watch; without an answer it begins all the same."""


class ActivityFeed:
    """The activities since the watch began, in order of arrival. One task may read them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._arrived: deque[ActivityV1] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Set once something arrives for the waiting reader."""

    def __aiter__(self) -> AsyncIterator[ActivityV1]:
        return self

    async def __anext__(self) -> ActivityV1:
        """Return the next activity. Never ends by itself; a cancellation loses none.

        Raises:
            ClientClosed, NatsUnreachable: the connection is closed, and all that came is read.
        """
        while not self._arrived:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._connection.wait(self._arrival)
        return self._arrived.popleft()

    async def receive(self, message: Msg) -> None:
        """Take a message, unless it is of a newer version or malformed."""
        with suppress(MessageError):
            self._arrived.append(Activity.decode(message.headers or {}, message.data))
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_result(None)


@asynccontextmanager
async def watching(streams: Streams, change_set: ChangeSet) -> AsyncIterator[ActivityFeed]:
    """Watch a change set while the body runs.

    Plain NATS: activities that are published while the connection is down are lost.
    """
    js, activities = streams.js, ActivityFeed(streams.js.connection)
    async with subscribed(js.nc, streams.activities(change_set), activities.receive):
        await js.connection.ping(_SUBSCRIBE_TIMEOUT)  # nothing published from now on is missed
        yield activities


POLL_INTERVAL: Final = 2.0
"""Seconds between reads of the log: activities may be lost."""

_ENDS: Final = (ActivityKind.DVU_FINISHED, ActivityKind.DVU_FAILED, ActivityKind.DVU_CANCELLED)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the update of dependent values.

    Example:
        async for progress in shop.progress():
            print(progress.done, "of", progress.total)
    """

    done: int = 0
    """Number of values that the running update has computed."""
    total: int | None = None
    """Number of values that the update may compute; None until one has begun."""


@dataclass(frozen=True, slots=True)
class Settlement(MissingResults):
    """A commit whose dependent values are computed, and the values that have no result.

    Example:
        settlement = await shop.settled()
        print(settlement.commit, [value.name for value in settlement.failed])
    """

    commit: int
    """The last commit of the change set at that moment."""


class SettlementWatch:
    """A wait for the values that a commit left to be computed, in one change set."""

    def __init__(self, streams: Streams, change_set: ChangeSet) -> None:
        self._streams = streams
        self._change_set = change_set
        self.commit = 0
        """The last commit that was read."""

    async def settlement(
        self, reader: ReadsValues, commit: int | None = None, *, of_commit: bool = False
    ) -> Settlement:
        """Wait until `progress` ends; return the values without a result, as the reader finds them.

        With `of_commit`, values that had failed before the commit are in `failed_before`.
        """
        async for _ in self.progress(commit):
            pass
        missing = await read_missing_results(reader, commit if of_commit else None)
        return Settlement(
            missing.failed,
            missing.failed_before,
            missing.blocked,
            self.commit,
            affected_blocked=missing.affected_blocked,
        )

    async def progress(self, commit: int | None = None) -> AsyncIterator[Progress]:
        """Yield the progress, at least once; end when all that `commit` left is computed.

        The default is the last commit. Values of later requests are not waited for. A change set
        without a log has nothing to compute.
        """
        wanted = await self._dirty_sequence(commit)
        latest = Progress()
        async with watching(self._streams, self._change_set) as activities:
            while True:
                yield latest
                control = await self._last_control()
                if control is None or control.clean_sequence >= wanted:
                    return
                latest = await _next_progress(activities, latest)

    async def _dirty_sequence(self, commit: int | None) -> int:
        """The sequence up to which an update has to cover requests."""
        if commit is not None:
            entry = await self._read(sequence=commit)
            if entry is not None and entry.subject == self._streams.commits(self._change_set):
                return Commit.decode(entry.headers, entry.payload).control.dirty_sequence
        control = await self._last_control()
        return 0 if control is None else control.dirty_sequence

    async def _last_control(self) -> ControlState | None:
        entry = await self._read(last_by_subject=self._streams.commits(self._change_set))
        if entry is None:
            return None
        self.commit = entry.sequence
        return Commit.decode(entry.headers, entry.payload).control

    async def _read(self, **which: Any) -> StoredMessage | None:
        """Read a commit. A NATS that is started again ends no wait."""
        js = self._streams.js
        read = partial(js.get_message, self._streams.commits_stream, **which)
        try:
            return await retry(read, RETRY_FOR, js.connection.sleep)
        except (NatsUnreachable, Unavailable) as error:
            raise Unreachable(f"the log cannot be read: {error}") from error


async def _next_progress(activities: ActivityFeed, latest: Progress) -> Progress:
    """The next progress that differs, or `latest` once the log is to be read again."""
    end = asyncio.get_running_loop().time() + POLL_INTERVAL
    try:
        async with deadlines.until(end):
            while True:
                activity = await anext(activities)
                current = _progress_in(activity) or latest
                if current != latest or activity.kind in _ENDS:
                    return current
    except TimeoutError:
        return latest


def _progress_in(activity: ActivityV1) -> Progress | None:
    details = activity.details
    if activity.kind is ActivityKind.DVU_STARTED:
        return Progress(0, details["affected"])
    if activity.kind is ActivityKind.DVU_PROGRESS:
        return Progress(details["done"], details["of"])
    return None
