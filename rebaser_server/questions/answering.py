"""Answer who reads values over NATS: any Rebaser does, from the log and the store."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Never

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic_core import to_json

from rebaser_core import codecs
from rebaser_core.errors import MessageError, RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_core.queries import (
    ReadValue,
    ValuesQuery,
    ValuesQueryV1,
    ValuesReply,
    ValuesReplyV2,
)
from rebaser_core.subjects import Subjects
from rebaser_core.versioned import CONTENT_TYPE, reply_version
from rebaser_server.graph import Graph
from rebaser_server.history.archive import Archive
from rebaser_server.history.state import State
from rebaser_server.lifetimes import alongside
from rebaser_server.questions.reading import Reader
from rebaser_server.questions.selecting import TooMuch, selected

log: Final = structlog.get_logger()

QUEUE: Final = "rebaser"
"""The queue group: one Rebaser answers each question."""

KEPT_VALUES: Final = 2_000_000
"""Values that are kept in memory for the next question, of the change sets asked for last."""

AT_ONCE: Final = 4
"""Questions that are answered at once; others wait."""

PART: Final = 256 * 1024
"""Octets of values in one message, more or less: a server takes a megabyte by default."""

ArchiveOf = Callable[[ChangeSet], Archive]


class Answering:
    """Keeps what was asked for lately, and brings it up to date for each question.

    The first question about a change set costs its loading, each later one what was
    committed since; nothing is owned or changed.
    """

    def __init__(self, archive_of: ArchiveOf, subjects: Subjects) -> None:
        self._archive_of = archive_of
        self._subjects = subjects
        self._readers: OrderedDict[ChangeSet, Reader] = OrderedDict()
        """Asked last comes last."""
        self._sizes: dict[ChangeSet, int] = {}
        self._heard: asyncio.Queue[Msg] = asyncio.Queue()

    @asynccontextmanager
    async def answered(self, nc: Client) -> AsyncIterator[None]:
        """Answer questions for as long as the body runs."""
        subject = self._subjects.subject("rebaser.values.*.*")
        subscription = await nc.subscribe(subject, queue=QUEUE, cb=self._hear)
        try:
            async with AsyncExitStack() as stack:
                for _ in range(AT_ONCE):
                    await stack.enter_async_context(alongside(self._work(nc)))
                yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _hear(self, question: Msg) -> None:
        self._heard.put_nowait(question)

    async def _work(self, nc: Client) -> Never:
        while True:
            await self._answer(nc, await self._heard.get())

    async def _answer(self, nc: Client, question: Msg) -> None:
        headers = question.headers or {}
        content_type = codecs.or_default(headers.get(CONTENT_TYPE))
        try:
            query = ValuesQuery.decode(headers, question.data)
        except MessageError as error:
            log.warning("question not answered", error=str(error))
            return
        try:
            replies = await self._replies(query, tells_due=reply_version(headers) > 1)
        except (RebaserError, JetStreamError, OSError) as error:
            replies = [ValuesReplyV2(id=query.id, commit=0, values=[], error=str(error))]
        try:
            for reply in replies:
                said, payload = await asyncio.to_thread(ValuesReply.encode, reply, content_type)
                await nc.publish(question.reply, payload, headers=said)
        except (nats.errors.Error, MessageError) as error:
            log.warning("question not answered", error=str(error))

    async def _replies(self, query: ValuesQueryV1, *, tells_due: bool) -> list[ValuesReplyV2]:
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        if query.at is not None:
            state = (await self._archive_of(change_set).restored(query.at)).state
            return await asyncio.to_thread(_parts, query, state, tells_due=tells_due)
        reader = self._reader(change_set)
        async with reader.lock:
            state = await reader.state()
            self._remember(change_set, len(state.graph.values))
            return await asyncio.to_thread(_parts, query, state, tells_due=tells_due)

    def _reader(self, change_set: ChangeSet) -> Reader:
        if change_set not in self._readers:
            self._readers[change_set] = Reader(self._archive_of(change_set))
        self._readers.move_to_end(change_set)
        return self._readers[change_set]

    def _remember(self, change_set: ChangeSet, size: int) -> None:
        if change_set in self._readers:  # not so if others were asked for meanwhile
            self._sizes[change_set] = size
        while len(self._readers) > 1 and sum(self._sizes.values()) > KEPT_VALUES:
            oldest, _ = self._readers.popitem(last=False)
            self._sizes.pop(oldest, None)


def _parts(query: ValuesQueryV1, state: State, *, tells_due: bool) -> list[ValuesReplyV2]:
    """The answer in messages that are not too large; at least one."""
    try:
        found = selected(state.graph, query)
    except TooMuch as error:
        return [ValuesReplyV2(id=query.id, commit=state.commit, values=[], error=str(error))]
    parts = list(_cut(_read(state.graph, value_id) for value_id in found.ids)) or [[]]
    due = state.head.dvu_due if tells_due else None
    return [
        ValuesReplyV2(
            id=query.id,
            commit=state.commit,
            due=due,
            values=part,
            missing=found.missing if number == len(parts) else [],
            more=number < len(parts),
        )
        for number, part in enumerate(parts, 1)
    ]


def _read(graph: Graph, value_id: str) -> ReadValue:
    value = graph.values[value_id]
    return ReadValue.model_construct(
        id=value.id,
        value=value.value,
        status=value.status.value,
        name=value.name,
        message=value.message,
        func_id=value.func_id,
        inputs=value.inputs or None,
    )


def _cut(values: Iterable[ReadValue]) -> Iterator[list[ReadValue]]:
    part: list[ReadValue] = []
    size = 0
    for value in values:
        octets = len(to_json(value.wire()))
        if part and size + octets > PART:
            yield part
            part, size = [], 0
        part.append(value)
        size += octets
    if part:
        yield part
