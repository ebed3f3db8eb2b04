"""Answers to queries over plain NATS: any Rebaser gives them, from the log and the store.

Queries of one kind are received, checked, and answered a few at a time, with a bounded queue.
Workspaces take turns, and one workspace leaves room in the queue, and an answerer, to others. An
answer that does not fit into a message is sent in pieces. `QueryBounds` limits the memory and
places that queries take of a process.

An application has kinds of queries of its own; each Rebaser answers those after the outcome of a
request.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Never, Protocol, TypeVar

import structlog
from nats.aio.msg import Msg

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, MessageError, RebaserError, UnknownSubject
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import NatsUnreachable, Unavailable
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import OutcomeQuery, OutcomeQueryV1, OutcomeReply, OutcomeReplyV2
from rebaser_core.queries import Question
from rebaser_core.query_protocol import (
    ACCEPTS_PIECES,
    DEFAULT_REPLY_TIMEOUT,
    PIECE,
    REPLY_TIMEOUT,
    RETRY_AFTER,
    parse_seconds,
    split_reply,
)
from rebaser_core.streams import Streams
from rebaser_core.versioning import (
    CONTENT_TYPE,
    MESSAGE_ID,
    REQUEST_DIGEST,
    Versioned,
    header,
)
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.tasks import background, compute_in_turn
from rebaser_server.telemetry import metrics

_RETRY_SECONDS: Final = "1"
"""Seconds after which a busy Rebaser is to be asked again; clients wait longer each time."""

_LONGEST_PIECE_NUMBER: Final = "999999/999999"

ReplyT = TypeVar("ReplyT", bound=Versioned)


class _ReplySender(Generic[ReplyT]):
    def __init__(self, streams: Streams, query: Msg, question: Question[Any, ReplyT]) -> None:
        headers = query.headers or {}
        self._nc = streams.js.nc
        self._room = streams.js.message_limits
        self._question = question
        self._workspace = query.subject.split(".")[-2]
        self._content_type = codecs.content_type_or_default(header(headers, CONTENT_TYPE))
        self._reads_pieces = header(headers, ACCEPTS_PIECES) == "1"
        # A query cannot have us write into streams: NATS sends to any inbox that it names.
        ours = streams.join("rebaser.")
        self._inbox = "" if query.reply.startswith(("$", ours)) else query.reply

    async def send(self, reply: ReplyT) -> None:
        """Send the reply or, if it cannot be sent to this asker, the reason.

        Raises:
            MalformedMessage: it cannot be encoded; nothing was sent.
            nats.errors.Error: the connection is closed.
        """
        if not self._inbox:
            return
        headers, payload = await compute_in_turn(
            self._workspace, self._question.reply.encode, reply, self._content_type
        )
        if len(payload) <= self._room.max_payload_for(self._inbox, headers):
            await self._nc.publish(self._inbox, payload, headers=headers)
        elif self._reads_pieces:
            await self._send_pieces(headers, payload)
        else:
            why = (
                f"the answer has {len(payload)} bytes, more than fit into a message: ask for "
                f"less, or with the header {ACCEPTS_PIECES}, as newer clients do"
            )
            await self._send_small(self._question.refusal(reply.id, why))

    async def busy(self, refusal: ReplyT) -> None:
        """Ask the asker to ask again later."""
        await self._send_small(refusal, {RETRY_AFTER: _RETRY_SECONDS})

    async def _send_small(self, reply: ReplyT, more: dict[str, str] | None = None) -> None:
        if self._inbox:
            headers, payload = self._question.reply.encode(reply, self._content_type)
            await self._nc.publish(self._inbox, payload, headers=headers | (more or {}))

    async def _send_pieces(self, headers: dict[str, str], payload: bytes) -> None:
        room = self._room.max_payload_for(self._inbox, headers | {PIECE: _LONGEST_PIECE_NUMBER})
        piece_headers = headers
        for number, piece in split_reply(payload, room):
            await self._nc.publish(self._inbox, piece, headers=piece_headers | {PIECE: number})
            piece_headers = {MESSAGE_ID: headers[MESSAGE_ID]}


log: Final = structlog.get_logger()

QUEUE: Final = "rebaser"
"""The queue group: one Rebaser answers each query."""

CONCURRENCY: Final = 4
"""Number of queries of one kind that are answered at once; others wait."""

_SHARE: Final = CONCURRENCY - 1
"""Maximum number of queries of one workspace and kind that are answered at once."""

_LARGE_QUERY: Final = 64 * 1024
"""Size of a query, in bytes, from which it is decoded in a thread."""

_BUSY: Final = "too many queries are waiting here: ask again later"
_NO_ID: Final = RequestId.from_bytes(bytes(16))


class _Query(Protocol):
    """Common part of all queries: the change set that it is about."""

    @property
    def id(self) -> RequestId: ...
    @property
    def workspace_id(self) -> WorkspaceId: ...
    @property
    def change_set_id(self) -> ChangeSetId: ...


QueryT = TypeVar("QueryT", bound=Any)


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Bounds of each process: memory that one kind of query may take, whichever clients ask."""

    waiting: int = 1_000
    """Maximum number of waiting queries of one kind; further clients get the reply to ask again."""
    waiting_bytes: int = 16 * 1024 * 1024
    """Maximum bytes of the waiting queries of one kind, headers included."""
    answer_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of values in one reply; a reply with more is an error."""
    loaded_rows: int = 500_000
    """Number of rows of a table from which a few values are read from it and the change set is not
    loaded."""


@dataclass(frozen=True, slots=True)
class QueryKind(Generic[QueryT, ReplyT]):
    question: Question[QueryT, ReplyT]
    replies: Callable[[QueryT, Mapping[str, str]], AsyncGenerator[ReplyT, None]]
    """Function that yields the answer, in one message or more, to a query with these headers."""


@dataclass(frozen=True, slots=True)
class _QueuedQuery:
    message: Msg
    size: int
    until: float
    """Time, by the loop's clock, at which the asker stops waiting."""


class _Queue:
    def __init__(self, bounds: QueryBounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, deque[_QueuedQuery]] = {}
        """Waiting queries of each workspace, the next workspace first; each has one query at
        least."""
        self._in_hand = Counter[str]()
        self._count, self.bytes = 0, 0
        """Number and bytes of all queries that wait."""
        self._bytes_of = Counter[str]()
        self._changed = asyncio.Event()

    def put(self, workspace: str, query: _QueuedQuery) -> bool:
        """Add a query and return True, or return False if there is no room.

        A workspace has room for as many queries as places are free then, and for one if any is
        free.
        """
        own, free = len(self._waiting.get(workspace, ())), self._bounds.waiting - self._count
        own_bytes, free_bytes = self._bytes_of[workspace], self._bounds.waiting_bytes - self.bytes
        if own >= free or (own and own_bytes >= free_bytes) or query.size > free_bytes:
            return False
        self._waiting.setdefault(workspace, deque()).append(query)
        self._add(workspace, 1, query.size)
        self._changed.set()
        return True

    def _add(self, workspace: str, count: int, size: int) -> None:
        self._count += count
        self.bytes += size
        self._bytes_of[workspace] += size
        if not self._bytes_of[workspace]:
            del self._bytes_of[workspace]

    @asynccontextmanager
    async def next(self) -> AsyncIterator[_QueuedQuery]:
        """The next query, which is in hand while the body runs."""
        while (workspace := self._next_workspace()) is None:
            self._changed.clear()
            await self._changed.wait()
        queries = self._waiting.pop(workspace)
        query = queries.popleft()
        if queries:
            self._waiting[workspace] = queries
        self._add(workspace, -1, -query.size)
        self._in_hand[workspace] += 1
        try:
            yield query
        finally:
            self._in_hand[workspace] -= 1
            if not self._in_hand[workspace]:
                del self._in_hand[workspace]
            self._changed.set()

    def _next_workspace(self) -> str | None:
        return next((each for each in self._waiting if self._in_hand[each] < _SHARE), None)


class _Intake(Generic[QueryT, ReplyT]):
    """Replies to each query, if only with an error; drops a query whose client gave up."""

    def __init__(
        self, streams: Streams, kind: QueryKind[QueryT, ReplyT], bounds: QueryBounds
    ) -> None:
        self._streams = streams
        self._question, self._replies = kind.question, kind.replies
        self._bounds = bounds
        self._queue = _Queue(bounds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer queries while the body runs; queries that wait at its end are dropped."""
        nc = self._streams.js.nc
        subject = self._streams.join("rebaser", self._question.name, "*", "*")
        limit = self._bounds.waiting_bytes
        async with (
            subscribed(nc, subject, self._on_message, queue=QUEUE, pending_bytes=limit),
            AsyncExitStack() as stack,
        ):
            for _ in range(CONCURRENCY):
                await stack.enter_async_context(background(self._work()))
            yield

    async def _on_message(self, message: Msg) -> None:
        with contained("query", subject=message.subject):
            headers = message.headers or {}
            size = len(message.data) + sum(len(n) + len(v) for n, v in headers.items())
            patience = parse_seconds(headers, REPLY_TIMEOUT, DEFAULT_REPLY_TIMEOUT)
            until = asyncio.get_running_loop().time() + patience
            workspace = message.subject.split(".")[-2]
            if not self._queue.put(workspace, _QueuedQuery(message, size, until)):
                metrics.QUERIES.labels("busy").inc()
                await self._reply_sender(message).busy(self._refusal(message, _BUSY))

    async def _work(self) -> Never:
        loop = asyncio.get_running_loop()
        while True:
            async with self._queue.next() as queued:
                if queued.until < loop.time():
                    metrics.QUERIES.labels("stale").inc()
                    continue
                with contained("query", subject=queued.message.subject):
                    await self._answer(queued.message)

    async def _answer(self, message: Msg) -> None:
        reply_sender, result = self._reply_sender(message), "refused"
        try:
            query = await self._read(message)
            async with aclosing(self._replies(query, message.headers or {})) as replies:
                async for reply in replies:
                    await reply_sender.send(reply)
            result = "answered"
        except (MessageError, UnknownSubject) as error:  # the client's mistake: not logged
            await reply_sender.send(self._refusal(message, str(error)))
        except (NatsUnreachable, Unavailable) as error:  # it passes, as an election does
            log.warning("query put off", subject=message.subject[:200], error=str(error)[:500])
            result = "busy"
            await reply_sender.busy(self._refusal(message, str(error)))
        except (RebaserError, OSError) as error:
            log.warning("query rejected", subject=message.subject[:200], error=str(error)[:500])
            await reply_sender.send(self._refusal(message, str(error)))
        except Exception as error:
            kind = type(error).__name__
            what = f"the Rebaser failed to answer, by a fault of its own ({kind}): see its log"
            await reply_sender.send(self._refusal(message, what))
            raise
        finally:
            metrics.QUERIES.labels(result).inc()

    async def _read(self, message: Msg) -> QueryT:
        """The query, which is about the change set in its subject.

        NATS has checked that the user may use the subject; the body is checked here.

        Raises:
            MessageError: it is no query.
            UnknownSubject: the subject names no change set.
        """
        change_set = self._streams.parse_change_set(message.subject)
        headers, decode = message.headers or {}, self._question.query.decode
        if len(message.data) < _LARGE_QUERY:
            query = decode(headers, message.data)
        else:
            query = await compute_in_turn(
                str(change_set.workspace_id), decode, headers, message.data
            )
        addressed: _Query = query
        about = ChangeSet(addressed.workspace_id, addressed.change_set_id)
        if about != change_set:
            raise MalformedMessage(f"the query is about {about}, its subject about {change_set}")
        return query

    def _reply_sender(self, message: Msg) -> _ReplySender[ReplyT]:
        return _ReplySender(self._streams, message, self._question)

    def _refusal(self, message: Msg, why: str) -> ReplyT:
        """A refusal without a look at the body; the asker knows the query by the inbox."""
        try:
            query_id = RequestId.from_str(header(message.headers or {}, MESSAGE_ID) or "")
        except ValueError:
            query_id = _NO_ID
        return self._question.refusal(query_id, why[:1_000])


DEFAULT: Final = QueryBounds()
_OUTCOMES: Final = Question("outcomes", OutcomeQuery, OutcomeReply, {})


class QueryService:
    """Answers each kind of query, within bounds; owns and changes nothing."""

    def __init__(
        self,
        streams: Streams,
        kinds: Sequence[QueryKind[Any, Any]],
        outcomes: OutcomeLookup,
        bounds: QueryBounds = DEFAULT,
    ) -> None:
        """Answer the `kinds` of an application, and queries after outcomes."""
        self._streams = streams
        self._kinds = kinds
        self._bounds = bounds
        self._outcomes = outcomes

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        outcomes = QueryKind(_OUTCOMES, self._outcome)
        async with AsyncExitStack() as stack:
            for kind in (*self._kinds, outcomes):
                await stack.enter_async_context(_Intake(self._streams, kind, self._bounds).open())
            yield

    async def _outcome(
        self, query: OutcomeQueryV1, headers: Mapping[str, str]
    ) -> AsyncGenerator[OutcomeReplyV2, None]:
        yield await self._outcomes.find(query, header(headers, REQUEST_DIGEST) or "")
