"""Read a change set without the store: values from any Rebaser, its history from the log."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import nats.errors
from nats.aio.subscription import Subscription

from rebaser_client.display.frames import Columns, arrow_table, pandas_frame
from rebaser_client.display.html import html_table
from rebaser_client.errors import ReadRefused, TooLarge, Unreachable
from rebaser_client.log_reader import LogEntry, read_log
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, Oversized, deadlines
from rebaser_core.jetstream.connection.subscription import subscribed
from rebaser_core.query_protocol import ACCEPTS_PIECES, RETRY_AFTER, ReplyAssembly, parse_seconds
from rebaser_core.query_protocol import REPLY_TIMEOUT as PATIENCE_HEADER
from rebaser_core.subjects import Subjects
from rebaser_core.value_query import (
    ValueSnapshot,
    ValuesQuery,
    ValuesQueryV1,
    ValuesReply,
    ValuesReplyV2,
)
from rebaser_core.versioning import REPLY_VERSION

FIRST_PART_TIMEOUTS: Final = (3.0, 10.0, 60.0)
"""Seconds until the first part of an answer, each time that it is asked for: who was asked may
have died, and a large change set has to be loaded first."""
NEXT_PART_TIMEOUT: Final = 60.0
"""Seconds from one part to the next."""

_NO_RESPONDERS: Final = "503"
_DECODE_IN_THREAD: Final = 512 * 1024
"""Octets of a reply from which it is decoded in a thread."""


class RebaserBusy(RebaserError):
    """A Rebaser did not look at the question, since too many wait there."""

    def __init__(self, message: str, seconds: float) -> None:
        """`seconds`: after which to ask again."""
        super().__init__(message)
        self.seconds: Final = seconds


class ValueSet(Mapping[str, ValueSnapshot]):
    """Values by id and by name, all of them as of `commit`. Iterating gives ids."""

    def __init__(
        self,
        commit: int,
        values: list[ValueSnapshot],
        missing: list[str],
        *,
        may_be_stale: bool | None,
    ) -> None:
        self.commit = commit
        self.may_be_stale = may_be_stale
        """Whether an update of the change set's computed values was due or running by then: what
        they are may be of earlier inputs. None: a Rebaser of an older release does not say."""
        self.missing = missing
        """Names and ids that were asked for and are not there."""
        self._by_id = {str(value.id): value for value in values}
        self._by_name = {value.name: value for value in values if value.name is not None}

    def __getitem__(self, key: str) -> ValueSnapshot:
        found = self._by_id.get(key)
        return self._by_name[key] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`, a row for each value. Raises `MissingPackage` without pandas."""
        return pandas_frame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`, a row for each value. Raises `MissingPackage` without pyarrow."""
        return arrow_table(self._columns())

    def _columns(self) -> Columns:
        names = ("name", "value", "status", "message", "id")
        return {name: [getattr(value, name) for value in self.values()] for name in names}

    def _repr_html_(self) -> str:
        rows = [(v.name or v.id, v.value, v.status, v.message) for v in self.values()]
        note = f"as of commit {self.commit}" + (", may be stale" if self.may_be_stale else "")
        return html_table(("value", "is", "status", "message"), rows, note)


class ChangeSetReader:
    """Reads one change set. Every call may be cancelled and repeated; none changes anything."""

    def __init__(
        self, js: JetStream, subjects: Subjects, change_set: ChangeSet, content_type: str
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._change_set = change_set
        self._content_type = content_type

    async def values(
        self, *names: str, inputs: int = 0, dependents: int = 0, at: int | None = None
    ) -> ValueSet:
        """The values of these names or ids, or all, and so many levels of what is around them.

        All are as of one commit: `at`, or the last one when the query arrived, so that a client
        that has the reply to a request reads the request's effect.

        Raises:
            Unreachable: no Rebaser answered in time, or all were too busy.
            TooLarge: so many names do not fit into a question.
            ReadRefused: one did, and said why not: the past is not kept so long, or it
                is too much for an answer: fewer at a time, or from the store.
        """
        query = ValuesQueryV1(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            which=list(names),
            inputs=inputs,
            dependents=dependents,
            at=at,
        )
        replies = await self._query(query)
        values = [value for reply in replies for value in reply.values]
        last = replies[-1]
        return ValueSet(last.commit, values, last.missing, may_be_stale=last.due)

    async def log(self, *, after: int = 0, last: int | None = None) -> list[LogEntry]:
        """The requests settled behind commit `after`, or the `last` so many, oldest first."""
        return await read_log(self._js, self._subjects, self._change_set, after=after, limit=last)

    async def _query(self, query: ValuesQueryV1) -> list[ValuesReplyV2]:
        """Return all parts of the reply, of any Rebaser that replies in time."""
        loop = asyncio.get_running_loop()
        end, busy = loop.time() + sum(FIRST_PART_TIMEOUTS), 0
        patience = iter(FIRST_PART_TIMEOUTS)
        wait = next(patience)
        while True:
            try:
                return await self._query_once(query, wait)
            except TimeoutError:
                wait = next(patience, 0.0)
                if not wait:
                    raise Unreachable("no Rebaser answered: not in time") from None
            except RebaserBusy as error:
                pause = error.seconds * 2 ** min(busy, 4) * (0.5 + random.random())
                busy += 1
                if loop.time() + pause > end:
                    raise Unreachable(f"no Rebaser answered: {error}") from error
                await asyncio.sleep(pause)

    async def _query_once(self, query: ValuesQueryV1, patience: float) -> list[ValuesReplyV2]:
        headers, payload = ValuesQuery.encode(query, self._content_type)
        headers[REPLY_VERSION] = str(ValuesReply.current.VERSION)
        headers[ACCEPTS_PIECES], headers[PATIENCE_HEADER] = "1", str(patience)
        nc, subject = self._js.nc, self._subjects.values(self._change_set)
        inbox = nc.new_inbox()
        try:
            self._js.message_limits.check(subject, payload, headers, inbox)
            async with subscribed(nc, inbox) as subscription:
                await nc.publish(subject, payload, reply=inbox, headers=headers)
                return await _receive(subscription, patience)
        except TimeoutError:  # nats-py's are errors of its own as well
            raise
        except Oversized as error:
            raise TooLarge(f"the question for {len(query.which)} values: {error}") from error
        except (nats.errors.Error, OSError) as error:
            raise Unreachable(f"no Rebaser answered: {error}") from error


async def _receive(subscription: Subscription, patience: float) -> list[ValuesReplyV2]:
    replies: list[ValuesReplyV2] = []
    assembly, waits = ReplyAssembly(), patience
    while not replies or replies[-1].more:
        async with deadlines.within(waits):
            message = await subscription.next_msg(timeout=None)
        waits = NEXT_PART_TIMEOUT
        headers = message.headers or {}
        if headers.get("Status") == _NO_RESPONDERS:
            raise Unreachable("no Rebaser is there to answer")
        whole = assembly.add(headers, message.data)
        if whole is None:
            continue
        reply = await _decode(*whole)
        if reply.error is not None and RETRY_AFTER in headers:
            raise RebaserBusy(reply.error, parse_seconds(headers, RETRY_AFTER, 1.0))
        if reply.error is not None:
            raise ReadRefused(reply.error)
        replies.append(reply)
    return replies


async def _decode(headers: Mapping[str, str], payload: bytes) -> ValuesReplyV2:
    if len(payload) < _DECODE_IN_THREAD:
        return ValuesReply.decode(headers, payload)
    return await asyncio.to_thread(ValuesReply.decode, headers, payload)
