"""Receive queries of one kind, check them, and reply: a few at a time, with a bounded queue.

Workspaces take turns, and one leaves room in the queue, and an answerer, to others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Never, Protocol, TypeVar

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.errors import MalformedMessage, MessageError, RebaserError, UnknownSubject
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStreamError, NatsUnreachable, Unavailable
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.query_protocol import DEFAULT_REPLY_TIMEOUT, REPLY_TIMEOUT, parse_seconds
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MESSAGE_ID, MessageType, Versioned, header
from rebaser_server.queries.bounds import QueryBounds
from rebaser_server.queries.replies import ReplySender
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.tasks import background, compute_in_turn
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

QUEUE: Final = "rebaser"
"""The queue group: one Rebaser answers each question."""

CONCURRENCY: Final = 4
"""Questions of one kind that are answered at once; others wait."""

_SHARE: Final = CONCURRENCY - 1
"""Questions of one workspace and kind that are answered at once, at most."""

_LARGE_QUERY: Final = 64 * 1024
"""Octets of a question from which it is decoded in a thread."""

_BUSY: Final = "too many questions are waiting here: ask again later"
_NO_ID: Final = RequestId.from_bytes(bytes(16))


class Query(Protocol):
    """What every question says: the change set that it is about."""

    @property
    def id(self) -> RequestId: ...
    @property
    def workspace_id(self) -> WorkspaceId: ...
    @property
    def change_set_id(self) -> ChangeSetId: ...


QueryT = TypeVar("QueryT", bound=Any)
ReplyT = TypeVar("ReplyT", bound=Versioned)


@dataclass(frozen=True, slots=True)
class QueryKind(Generic[QueryT, ReplyT]):
    """A kind of question, and how it is answered."""

    name: str
    """As in its subjects: `values` for `rebaser.values.<ws>.<cs>`."""
    query: MessageType[QueryT]
    reply: MessageType[ReplyT]
    replies: Callable[[QueryT, Mapping[str, str]], AsyncGenerator[ReplyT, None]]
    """The answer, in one message or more, to a question with these headers."""
    refusal: Callable[[RequestId, str], ReplyT]
    """The reply that says why there is no answer."""


@dataclass(frozen=True, slots=True)
class _QueuedQuery:
    message: Msg
    size: int
    until: float
    """When the asker stops waiting, by the loop's clock."""


class _Queue:
    """Queries that wait: by workspace, in turns."""

    def __init__(self, bounds: QueryBounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, deque[_QueuedQuery]] = {}
        """The next workspace first; each has one query at least."""
        self._in_hand = Counter[str]()
        self._count, self.bytes = 0, 0
        """Number and bytes of all queries that wait."""
        self._bytes_of = Counter[str]()
        self._changed = asyncio.Event()

    def put(self, workspace: str, query: _QueuedQuery) -> bool:
        """Add a query and return True, or return False if there is no room.

        A workspace has room for as many as are free then, and for one if any is free.
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


class Intake(Generic[QueryT, ReplyT]):
    """Replies to each query, if only with an error; drops a query whose client gave up."""

    def __init__(
        self, nc: Client, subjects: Subjects, kind: QueryKind[QueryT, ReplyT], bounds: QueryBounds
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._kind = kind
        self._bounds = bounds
        self._queue = _Queue(bounds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer questions for as long as the body runs; those that wait then are dropped."""
        subject = self._subjects.join("rebaser", self._kind.name, "*", "*")
        limit = self._bounds.waiting_bytes
        async with (
            subscribed(self._nc, subject, self._on_message, queue=QUEUE, pending_bytes=limit),
            AsyncExitStack() as stack,
        ):
            for _ in range(CONCURRENCY):
                await stack.enter_async_context(background(self._work()))
            yield

    async def _on_message(self, message: Msg) -> None:
        with contained("question", subject=message.subject):
            headers = message.headers or {}
            size = len(message.data) + sum(len(n) + len(v) for n, v in headers.items())
            patience = parse_seconds(headers, REPLY_TIMEOUT, DEFAULT_REPLY_TIMEOUT)
            until = asyncio.get_running_loop().time() + patience
            workspace = message.subject.split(".")[-2]
            if not self._queue.put(workspace, _QueuedQuery(message, size, until)):
                metrics.QUESTIONS.labels("busy").inc()
                await self._reply_sender(message).busy(self._refusal(message, _BUSY))

    async def _work(self) -> Never:
        loop = asyncio.get_running_loop()
        while True:
            async with self._queue.next() as queued:
                if queued.until < loop.time():
                    metrics.QUESTIONS.labels("stale").inc()
                    continue
                with contained("question", subject=queued.message.subject):
                    await self._answer(queued.message)

    async def _answer(self, message: Msg) -> None:
        reply_sender, result = self._reply_sender(message), "refused"
        try:
            query = await self._read(message)
            async with aclosing(self._kind.replies(query, message.headers or {})) as replies:
                async for reply in replies:
                    await reply_sender.send(reply)
            result = "answered"
        except (MessageError, UnknownSubject) as error:  # the client's mistake: not logged
            await reply_sender.send(self._refusal(message, str(error)))
        except (NatsUnreachable, Unavailable) as error:  # it passes, as an election does
            log.warning("query put off", subject=message.subject[:200], error=str(error)[:500])
            result = "busy"
            await reply_sender.busy(self._refusal(message, str(error)))
        except (RebaserError, JetStreamError, OSError) as error:
            log.warning("query rejected", subject=message.subject[:200], error=str(error)[:500])
            await reply_sender.send(self._refusal(message, str(error)))
        except Exception as error:
            what = f"the Rebaser failed to answer: {type(error).__name__}"
            await reply_sender.send(self._refusal(message, what))
            raise
        finally:
            metrics.QUESTIONS.labels(result).inc()

    async def _read(self, message: Msg) -> QueryT:
        """The question, which is about the change set that its subject names.

        NATS permits a user the subject; no one has checked the body before.

        Raises:
            MessageError: it is none.
            UnknownSubject: the subject names no change set.
        """
        change_set = self._subjects.parse_change_set(message.subject)
        headers, decode = message.headers or {}, self._kind.query.decode
        if len(message.data) < _LARGE_QUERY:
            query = decode(headers, message.data)
        else:
            query = await compute_in_turn(
                str(change_set.workspace_id), decode, headers, message.data
            )
        addressed: Query = query
        about = ChangeSet(addressed.workspace_id, addressed.change_set_id)
        if about != change_set:
            raise MalformedMessage(f"the question is about {about}, its subject about {change_set}")
        return query

    def _reply_sender(self, message: Msg) -> ReplySender[ReplyT]:
        return ReplySender(self._nc, self._subjects, message, self._kind.reply, self._kind.refusal)

    def _refusal(self, message: Msg, why: str) -> ReplyT:
        """Without a look at the body; the asker knows the question by the inbox."""
        try:
            query_id = RequestId.from_str(header(message.headers or {}, MESSAGE_ID) or "")
        except ValueError:
            query_id = _NO_ID
        return self._kind.refusal(query_id, why[:1_000])
