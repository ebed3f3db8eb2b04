"""Reads of a change set: values, differences and reasons from any Rebaser, history from its log.

`QuerySender` sends a query over plain NATS until a Rebaser answers it, and joins the parts of the
answer. The log is read as far back as it is kept. The classes are the answers, for people and
programs: `BranchDifference` is the effect of applying a branch to head. `Provenance` is the edits
that made a value, and the failures that keep it back. `RevertPlan` is a batch that undoes a commit,
and is not enqueued yet.
"""

import asyncio
import random
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar, overload

import nats.errors
from nats.aio.subscription import Subscription

from rebaser_client.display import Columns, Rows, Tabular, html_table, table_text
from rebaser_client.drawing import Drawing, draw
from rebaser_client.effects import (
    EffectFamily,
    by_name,
    by_pattern,
    particulars,
    question,
    side_text,
)
from rebaser_client.errors import ReadRefused
from rebaser_core.codecs import json_equal
from rebaser_core.commits import (
    CallEffect,
    CommitV2,
    ControlState,
    RequestOutcome,
    SettledRequest,
    decode_commit_at,
)
from rebaser_core.errors import RebaserError, TooLarge, Unreachable, many, offer
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream, Oversized, deadlines, ordered_reader
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import Correction, Inline, UpdatesAddress
from rebaser_core.queries import (
    ChangedDefinition,
    ComputedDifference,
    DefinitionChange,
    DifferenceReplyV1,
    DueUpdate,
    FailedInput,
    FunctionSnapshot,
    ProvenanceEdit,
    ProvenanceReplyV1,
    ResultlessValues,
    ValueSnapshot,
)
from rebaser_core.query_protocol import ACCEPTS_PIECES, RETRY_AFTER, ReplyAssembly, parse_seconds
from rebaser_core.query_protocol import REPLY_TIMEOUT as PATIENCE_HEADER
from rebaser_core.records import utc_text
from rebaser_core.streams import Streams
from rebaser_core.table_values import is_table
from rebaser_core.updates import AnyUpdate
from rebaser_core.versioning import MessageType, Versioned

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A settled request, and its commit."""

    commit: int
    """Sequence of the commit, for `rebaser values --at` and `rebaser revert`."""
    time: datetime
    """Time at which the commit was stored, by the server's clock."""
    stored: datetime
    """Time at which the request was stored, by the server's clock."""
    request: RequestId
    outcome: RequestOutcome
    author: str | None
    """The author, as the client named it."""
    by: str
    """The Rebaser that settled it."""
    computed: bool
    """Whether the commit holds the results of a dependent values update."""
    recomputes: bool
    """Whether values have to be recomputed after the commit."""
    updates: dict[str, int] | None
    """Number of updates of each kind; None if the batch lies beside the log."""
    corrections: tuple[Correction, ...]
    message: str | None
    """Reason why it is dead or refused."""
    merged: int | None
    """Last commit of head's log that a branch has merged by it, if it merges head's changes."""
    status: str | None
    """Status with which it closes the change set: applying, applied, abandoned or deleted."""
    call: CallEffect | None = None
    """Effect of the call that it settles."""

    def as_dict(self) -> dict[str, Any]:
        """The entry as plain data, for programs."""
        return {
            "commit": self.commit,
            "time": utc_text(self.time),
            "stored": utc_text(self.stored),
            "request": str(self.request),
            "outcome": self.outcome.value,
            "author": self.author,
            "by": self.by,
            "computed": self.computed,
            "recomputes": self.recomputes,
            "updates": self.updates,
            "corrections": [correction.to_wire() for correction in self.corrections],
            "message": self.message,
            "merged": self.merged,
            "status": self.status,
            **({} if self.call is None else {"call": self.call.to_wire()}),
        }


async def read_log(
    streams: Streams, change_set: ChangeSet, *, after: int = 0, limit: int | None
) -> Rows[LogEntry]:
    """Return the last `limit` requests settled after commit `after`, or all, oldest first.

    The log is read as of a moment after the call. Commits that settle no request (a change of
    owner, a claim) are left out.
    """
    entries: deque[LogEntry] = deque(maxlen=None if limit is None else min(limit, sys.maxsize))
    async with aclosing(_entries(streams, change_set, after, idle_timeout=0)) as found:
        async for _, entry in found:
            entries.append(entry)
    return Rows(entries, _cells)


def _cells(entry: LogEntry) -> dict[str, Any]:
    names = ("commit", "time", "author", "outcome", "computed", "updates", "message", "request")
    return {name: entry.as_dict()[name] for name in names} | {"time": entry.time}


async def follow_log(
    streams: Streams, change_set: ChangeSet, *, after: int = 0
) -> AsyncGenerator[LogEntry, None]:
    """Yield what `read_log` returns, and all that is settled later; ends by an error alone.

    Raises:
        ReadRefused: requests settled after commit `after` may not all be kept.
    """
    async with aclosing(_entries(streams, change_set, after, idle_timeout=None)) as found:
        async for previous, entry in found:
            if previous > after > 0:
                raise ReadRefused(
                    f"the log begins behind commit {previous}, and may lack what was settled after "
                    f"commit {after}; read the values, and go on after their commit"
                )
            after = entry.commit
            yield entry


async def _entries(
    streams: Streams, change_set: ChangeSet, after: int, *, idle_timeout: float | None
) -> AsyncGenerator[tuple[int, LogEntry], None]:
    """Yield each entry, and the last commit before it that is not kept: 0 if none lacks."""
    reader = ordered_reader(
        streams.js,
        streams.commits_stream,
        streams.commits(change_set),
        opt_start_seq=max(after, 1),
    )
    before: ControlState | None = None
    missing = last = 0
    async with reader:
        while (delivery := await reader.next(idle_timeout=idle_timeout)) is not None:
            commit = decode_commit_at(delivery.stream_sequence, delivery.headers, delivery.payload)
            if commit.previous != last:
                missing = commit.previous
            if commit.settled is not None and delivery.stream_sequence > after:
                yield missing, _log_entry(delivery, commit, commit.settled, before)
            before, last = commit.control, delivery.stream_sequence


def _log_entry(
    delivery: Delivery, commit: CommitV2, settled: SettledRequest, before: ControlState | None
) -> LogEntry:
    """Build an entry.

    `before` is the control record that the commit replaces; None if that is not kept.
    """
    known = before or commit.control
    return LogEntry(
        commit=delivery.stream_sequence,
        time=delivery.timestamp,
        stored=commit.id.datetime,
        request=settled.id,
        outcome=settled.outcome,
        author=settled.author,
        by=commit.control.owner.partition("/")[0],
        computed=settled.covers is not None,
        recomputes=commit.control.dirty_sequence == settled.sequence,
        updates=_counts(settled.updates),
        corrections=settled.corrections,
        message=settled.message,
        merged=_new(_cursor(commit.control), _cursor(known)),
        status=_new(_status(commit.control), _status(known)),
        call=commit.call,
    )


def _new(now: T | None, before: T | None) -> T | None:
    return None if now == before else now


def _cursor(control: ControlState) -> int | None:
    return None if control.branch is None else control.branch.cursor


def _status(control: ControlState) -> str | None:
    return None if control.closing is None else control.closing.status


def _counts(batch: UpdatesAddress | None) -> dict[str, int] | None:
    if batch is None:
        return {}
    if isinstance(batch, Inline):
        return dict(Counter(update.KIND for update in batch.inline.updates))
    return None


@dataclass(frozen=True, slots=True)
class BranchDifference:
    """The difference of a branch to head, after a merge of all that head has changed."""

    commit: int
    """Commit of the branch, as of which the difference is."""
    digest: str
    """Digest of the difference; `apply` with it applies this difference and no other."""
    updates: list[AnyUpdate]
    """The difference as a batch: applied to head, it makes head equal to the branch."""
    changes: list[ChangedDefinition]
    """Edits of the branch, and what head has there."""
    computed: list[ComputedDifference] | None
    """The results that applying the branch now would change, as far as they are known; None if not
    requested. Changes of head alone are not among them."""
    behind: int | None
    """Batches of head that the branch has not followed yet; None: more than head's log holds."""
    uncomputed: int | None
    """Values that applying the branch reaches, and whose result is not known yet because the
    branch or head has it to compute. None: not requested."""

    @classmethod
    def of(cls, reply: DifferenceReplyV1) -> "BranchDifference":
        """Build it from a reply."""
        return cls(
            reply.commit,
            reply.digest,
            reply.updates,
            reply.changes,
            reply.computed,
            reply.behind,
            reply.uncomputed,
        )

    def tables(self) -> list[ChangedDefinition | ComputedDifference]:
        """Values that are a table in head and in the branch."""
        every = (*self.changes, *(self.computed or ()))
        return [one for one in every if is_table(one.head) and is_table(one.branch)]

    def unknown(self) -> str:
        """Say how much of the computed difference is not known yet, and why; "" if all is known."""
        if not self.uncomputed:
            return ""
        count = many(self.uncomputed, "computed value")
        verb = "is" if self.uncomputed == 1 else "are"
        if self.behind == 0:
            return f"{count} {verb} not known yet: an update of the branch or of head is due"
        batches = "batches" if self.behind is None else many(self.behind, "batch", "batches")
        return (
            f"{count} {verb} not known yet: head has {batches} that the branch has not followed; "
            "it does at its next request, or at a refresh"
        )

    def families(self) -> Rows[EffectFamily]:
        """Return the computed values that differ by name pattern, with counts, sums and moves."""
        names = ("title", "size", "failed", "head", "branch", "change")
        return Rows(
            by_pattern(self.computed or ()),
            lambda each: {name: getattr(each, name) for name in names},
        )

    def question(self) -> str:
        """Return the question that a person answers before an apply."""
        return question(len(self.changes), len(self.computed or ()))

    def particulars(self) -> list[str]:
        """Say what applying the branch does: conflicts, failing values, effects by pattern."""
        computed = sorted(self.computed or (), key=by_name)
        return particulars(sorted(self.changes, key=by_name), computed, self.unknown())

    def _repr_html_(self) -> str:
        edits = [
            (each.name or each.id, each.what, side_text(each.head), side_text(each.branch), "")
            for each in self.changes
        ]
        effects = [
            (each.title, f"{each.size:,} computed", *each.sides(), each.change)
            for each in self.families()
        ]
        headings = "value or function", "what", "head", "branch", "change"
        rows = edits + effects
        return html_table(headings, rows, self.unknown())


_ARROW: Final = " → "
_WORDS: Final = {
    "definition": "defined as",
    "value": "set to",
    "inputs": "computed as",
    "input": "lost an input, now",
    "function": "function",
    "removal": "removed",
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """The edits without which a value would be different, as of one commit.

    Example:
        print(await shop.why("gross"))
    """

    commit: int
    value: ValueSnapshot | None
    """The value; None if it was removed: then `edits` has the removal."""
    edits: tuple[ProvenanceEdit, ...]
    """Edits, the latest first."""
    omitted: int
    """Number of edits that are not listed: those beyond a thousand."""
    older: int
    """Number of definitions that are, at least in part, older than the commits that are kept."""
    kept_from: int
    """The commit behind which commits are kept; 0 if all are."""
    is_whole: bool
    """Whether all that the value is computed from was looked at: up to 100,000 values."""
    failed: tuple[FailedInput, ...]
    """The failed values because of which the value has no result; it may be the value itself."""
    waits: DueUpdate | None
    """The update that is to recompute the value; None if it is up to date."""

    @classmethod
    def of(cls, reply: ProvenanceReplyV1) -> "Provenance":
        """Build it from a reply."""
        return cls(
            reply.commit,
            reply.value,
            tuple(reply.edits),
            reply.omitted,
            reply.older,
            reply.kept_from,
            reply.is_whole,
            tuple(reply.failed),
            reply.waits,
        )

    def rows(self) -> list[tuple[int, str, str, str, str]]:
        """A row for each change of an edit: commit, time, author, description, path."""
        return [row for edit in self.edits for row in self.rows_of(edit)]

    @staticmethod
    def rows_of(edit: ProvenanceEdit) -> list[tuple[int, str, str, str, str]]:
        """The rows of one edit."""
        author = edit.author or ""
        rows = [
            (edit.commit, edit.time, author, _what(change), _ARROW.join(change.path))
            for change in edit.changes
        ]
        if edit.omitted:
            rows.append((edit.commit, edit.time, author, f"and {edit.omitted:,} more changes", ""))
        return rows

    def notes(self) -> list[str]:
        """Sentences about what the edits do not tell."""
        notes = [f"{_ARROW.join(each.path)} failed: {each.message}" for each in self.failed]
        if self.waits is not None:
            notes.append(_waiting(self.waits))
        if self.omitted:
            notes.append(f"{self.omitted:,} earlier edits are left out")
        if self.older:
            notes.append(
                f"{self.older:,} of the definitions are older, at least in part, than the commits "
                + (f"that are kept: those after {self.kept_from}" if self.kept_from else "here")
            )
        if not self.is_whole:
            notes.append("the value is computed from more values than were looked at")
        return notes

    def _repr_html_(self) -> str:
        headings = "commit", "time", "author", "what", "path"
        return html_table(headings, self.rows(), "; ".join(self.notes()))


def _what(change: DefinitionChange) -> str:
    """Description of an edit's change to the first value of the path."""
    words = [change.path[0], _WORDS.get(change.what, change.what), change.after or ""]
    if change.what in ("value", "function", "input") and change.before is not None:
        words.append(f"(was {change.before})")
    return " ".join(filter(None, words))


def _waiting(due: DueUpdate) -> str:
    text = "it may be of earlier inputs: "
    text += "an update is due" if due.update is None else f"update {due.update} is under way"
    if due.commit is not None:
        text += f" since commit {due.commit}, {due.since}"
    return text + (f"; it failed {due.failures} times in a row" if due.failures else "")


FIRST_PART_TIMEOUTS: Final = (3.0, 10.0, 60.0)
"""Seconds to wait for the first part of an answer, for each attempt: the Rebaser that was asked may
have died, and a large change set has to be loaded first."""
_NEXT_PART_TIMEOUT: Final = 60.0
"""Seconds to wait for each further part."""

_NO_RESPONDERS: Final = "503"
_DECODE_IN_THREAD: Final = 512 * 1024
"""Size of a reply, in bytes, from which it is decoded in a thread."""

QueryT = TypeVar("QueryT", bound=Versioned)
ReplyT = TypeVar("ReplyT", bound=Versioned)


class RebaserBusy(RebaserError):
    """A Rebaser could not answer now: too many queries wait there, or NATS has no leader."""

    def __init__(self, message: str, seconds: float) -> None:
        """Note after how many `seconds` to ask again."""
        super().__init__(message)
        self.seconds: Final = seconds


@dataclass(frozen=True, slots=True)
class QuerySender(Generic[QueryT, ReplyT]):
    """A sender of queries of one kind; each call may be cancelled and repeated."""

    js: JetStream
    query: MessageType[QueryT]
    reply: MessageType[ReplyT]
    content_type: str
    error_in: Callable[[ReplyT], str | None]
    """Function that returns the reason why a reply is no answer."""
    is_followed: Callable[[ReplyT], bool] = lambda _: False
    """Function that returns whether another reply follows."""

    async def ask(self, subject: str, query: QueryT) -> list[ReplyT]:
        """Return all parts of the reply of one Rebaser that replies in time.

        Raises:
            Unreachable: no Rebaser answered in time, or all were too busy.
            TooLarge: the query does not fit into a message.
            ReadRefused: a Rebaser refused, and said why.
        """
        loop = asyncio.get_running_loop()
        end, busy = loop.time() + sum(FIRST_PART_TIMEOUTS), 0
        patience = iter(FIRST_PART_TIMEOUTS)
        wait = next(patience)
        while True:
            try:
                return await self._ask_once(subject, query, wait)
            except TimeoutError:
                wait = next(patience, 0.0)
                if not wait:
                    raise Unreachable("no Rebaser answered: not in time") from None
            except RebaserBusy as error:
                pause = error.seconds * 2 ** min(busy, 4) * (0.5 + random.random())
                busy += 1
                if loop.time() + pause > end:
                    raise Unreachable(f"no Rebaser answered: {error}") from error
                await self.js.connection.sleep(pause)

    async def _ask_once(self, subject: str, query: QueryT, patience: float) -> list[ReplyT]:
        headers, payload = self.query.encode(query, self.content_type)
        headers[ACCEPTS_PIECES], headers[PATIENCE_HEADER] = "1", str(patience)
        nc = self.js.nc
        inbox = nc.new_inbox()
        try:
            self.js.message_limits.check(subject, payload, headers, inbox)
            async with subscribed(nc, inbox) as subscription:
                await nc.publish(subject, payload, reply=inbox, headers=headers)
                return await self._receive(subscription, patience)
        except TimeoutError:  # nats-py's own timeout errors are among these
            raise
        except Oversized as error:
            raise TooLarge(f"the query is too large: {error}") from error
        except (nats.errors.Error, OSError) as error:
            self.js.connection.guard()
            raise Unreachable(f"no Rebaser answered: {error}") from error

    async def _receive(self, subscription: Subscription, patience: float) -> list[ReplyT]:
        replies: list[ReplyT] = []
        assembly, waits = ReplyAssembly(), patience
        while not replies or self.is_followed(replies[-1]):
            async with deadlines.within(waits):
                message = await subscription.next_msg(timeout=None)
            waits = _NEXT_PART_TIMEOUT
            headers = message.headers or {}
            if headers.get("Status") == _NO_RESPONDERS:
                raise Unreachable("no Rebaser is there to answer")
            whole = assembly.add(headers, message.data)
            if whole is None:
                continue
            reply = await self._decode(*whole)
            error = self.error_in(reply)
            if error is not None and RETRY_AFTER in headers:
                raise RebaserBusy(error, parse_seconds(headers, RETRY_AFTER, 1.0))
            if error is not None:
                raise ReadRefused(error)
            replies.append(reply)
        return replies

    async def _decode(self, headers: Mapping[str, Any], payload: bytes) -> ReplyT:
        if len(payload) < _DECODE_IN_THREAD:
            return self.reply.decode(headers, payload)
        return await asyncio.to_thread(self.reply.decode, headers, payload)


@dataclass(frozen=True, slots=True)
class RevertPlan:
    """A batch that reverts a commit, if it is applied to the state as of `now`."""

    commit: int
    now: int
    updates: list[AnyUpdate]
    """Updates of the batch; empty if there is nothing to undo."""
    skipped: list[str] = field(default_factory=list)
    """Ids of values and functions that a later commit changed or uses, and that stay."""


_SHOWN: Final = 5
"""Maximum number of values in the text of a set."""


class NoSuchName(RebaserError, KeyError):
    """A key that no value has; similar names are only looked for where the message is shown."""

    def __str__(self) -> str:
        name, known = self.args
        return f"there is no value {name!r} among these{offer(name, known)}"


class ValueSet(Mapping[str, ValueSnapshot], Tabular):
    """Values by id and by name, all of them as of `commit`. Iterating gives ids.

    Example:
        values = await shop.values()
        print(values["gross"].value, values.to_pandas())
    """

    def __init__(
        self,
        commit: int,
        values: list[ValueSnapshot],
        missing: list[str],
        *,
        may_be_stale: bool,
    ) -> None:
        self.commit = commit
        self.may_be_stale = may_be_stale
        """Whether an update of computed values was due or running as of the commit: they may be of
        earlier inputs."""
        self.missing = missing
        """Names and ids that were asked for and do not exist."""
        self._by_id = {str(value.id): value for value in values}
        self._by_name = {value.name: value for value in values if value.name is not None}

    def __getitem__(self, key: str) -> ValueSnapshot:
        found = self._by_id.get(key) or self._by_name.get(key)
        if found is None:
            raise NoSuchName(key, self._by_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def graph(self) -> Drawing:
        """Draw the values, and lines from their inputs among them: an SVG image as text.

        Example:
            (await shop.values("gross", inputs=3)).graph()
        """
        return draw([*self.values()])

    def _ipython_key_completions_(self) -> list[str]:
        return [*self._by_name] or [*self._by_id]

    def __repr__(self) -> str:
        shown = [
            f"{v.name or v.id}={table_text(v.value) or repr(v.value):.40}"
            for v in islice(self.values(), _SHOWN)
        ]
        more = ["…"] if len(self) > _SHOWN else []
        listed = ", ".join([*shown, *more])
        return f"<ValueSet of {many(len(self), 'value')} as of commit {self.commit}: {listed}>"

    def _columns(self) -> Columns:
        names = ("name", "value", "status", "message", "id")
        return {name: [getattr(value, name) for value in self.values()] for name in names}

    def _repr_html_(self) -> str:
        rows = [(v.name or v.id, v.value, v.status, v.message) for v in self.values()]
        note = f"as of commit {self.commit}" + (", may be stale" if self.may_be_stale else "")
        return html_table(("value", "is", "status", "message"), rows, note)


@dataclass(frozen=True, slots=True)
class PastValue:
    """A value as of a commit."""

    commit: int
    time: datetime
    """Time at which the commit was stored, by the server's clock."""
    value: Any
    status: str
    message: str | None
    """Reason why it had no value."""

    def is_alike(self, other: "PastValue") -> bool:
        """Whether it is the same content or the same failure."""
        same = self.status == other.status and self.message == other.message
        return same and json_equal(self.value, other.value)


class ReadsValues(Protocol):
    """A reader of a change set's values and functions, such as `ChangeSetHandle`."""

    async def values(
        self, *names: str, at: int | None = None, missing_ok: bool = False
    ) -> ValueSet: ...
    async def functions(self, *names: str) -> list[FunctionSnapshot]: ...
    async def without_result(
        self, changed_by: int | None = None, changed: Iterable[str] = ()
    ) -> list[ResultlessValues]: ...


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value that differs; a side is None if it has no such value."""

    id: str
    name: str | None
    head: Any
    branch: Any
    head_status: str | None
    branch_status: str | None


class ValueDifferences(Sequence[ValueDifference], Tabular):
    """All values that differ, sorted by name.

    Example:
        differences = await winter.differences()
        print(differences.to_polars())
    """

    def __init__(self, head: ValueSet, branch: ValueSet) -> None:
        differences = _differences(head, branch)
        self._rows = sorted(differences, key=lambda row: (row.name or "", row.id))

    @overload
    def __getitem__(self, index: int) -> ValueDifference: ...
    @overload
    def __getitem__(self, index: slice) -> list[ValueDifference]: ...
    def __getitem__(self, index: int | slice) -> ValueDifference | list[ValueDifference]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def _columns(self) -> Columns:
        names = ("name", "head", "branch", "head_status", "branch_status", "id")
        return {name: [getattr(row, name) for row in self._rows] for name in names}

    def _repr_html_(self) -> str:
        rows = [(row.name or row.id, row.head, row.branch, row.branch_status) for row in self._rows]
        return html_table(("value", "head", "branch", "status"), rows, f"{len(rows):,} differ")


def _differences(head: ValueSet, branch: ValueSet) -> Iterator[ValueDifference]:
    for value_id in {**dict.fromkeys(head), **dict.fromkeys(branch)}:
        one, other = head.get(value_id), branch.get(value_id)
        if _same(one, other):
            continue
        known = other or one
        yield ValueDifference(
            value_id,
            None if known is None else known.name,
            *(None if side is None else side.value for side in (one, other)),
            *(None if side is None else side.status for side in (one, other)),
        )


def _same(one: ValueSnapshot | None, other: ValueSnapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.status == other.status and json_equal(one.value, other.value)
