"""Answers to queries for the state of a key: from its log and checkpoint, beside its calls."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson
from nats.aio.msg import Msg

from rebaser_core import codecs
from rebaser_core.calls import StateQuery, StateReply, StateReplyV1, TimerState
from rebaser_core.errors import MalformedMessage, MessageError, RebaserError, UnknownSubject
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.streams import Streams
from rebaser_core.versioning import CONTENT_TYPE, header
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.handlers.content import KeyContent
from rebaser_server.runtime.containment import contained

_QUEUE: Final = "rebaser"
"""The queue group: one worker answers each query."""


class StateAnswers:
    """Answers to queries, one after the other; a worker that runs the key is not waited for."""

    def __init__(self, streams: Streams, open_loader: Callable[[ChangeSet], StateLoader]) -> None:
        """`open_loader` opens the state of a change set without a run in this process."""
        self._streams = streams
        self._open_loader = open_loader

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Answer while the body runs."""
        nc, subject = self._streams.js.nc, self._streams.join("rebaser.states.*.*")
        async with subscribed(nc, subject, self._on_message, queue=_QUEUE):
            yield

    async def _on_message(self, message: Msg) -> None:
        # A query cannot have us write into streams: NATS sends to any inbox that it names.
        if not message.reply or message.reply.startswith(("$", self._streams.join("rebaser."))):
            return
        with contained("query", subject=message.subject):
            headers = message.headers or {}
            reply = await self._reply(message)
            content_type = codecs.content_type_or_default(header(headers, CONTENT_TYPE))
            said, payload = StateReply.encode(reply, content_type)
            await self._streams.js.nc.publish(message.reply, payload, headers=said)

    async def _reply(self, message: Msg) -> StateReplyV1:
        asked = RequestId()
        try:
            change_set = self._streams.parse_change_set(message.subject)
            query = StateQuery.decode(message.headers or {}, message.data)
            asked = query.id
            if change_set != (query.workspace_id, query.change_set_id):
                raise MalformedMessage("the query is about another change set than its subject")
            return _describe(asked, await self._open_loader(change_set).load())
        except (MessageError, UnknownSubject, RebaserError, JetStreamError, OSError) as error:
            return StateReplyV1(id=asked, error=str(error)[:1_000])


def _describe(asked: RequestId, state: State) -> StateReplyV1:
    content = state.content
    if not isinstance(content, KeyContent):
        raise TypeError(f"{type(content).__name__} is not the content of a key")
    return StateReplyV1(
        id=asked,
        commit=state.commit,
        key=content.key or None,
        state=None if content.state is None else orjson.loads(content.state),
        state_version=content.version,
        timers=[
            TimerState(
                name=name,
                handler=timer.handler,
                next=timer.next,
                every=timer.every,
                zone=timer.zone,
            )
            for name, timer in sorted(content.timers.items(), key=lambda each: each[1].next)
        ],
        sending=len(content.outgoing),
    )
