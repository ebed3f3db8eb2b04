"""Where answers arrive: one subscription for all requests of a client."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_client.errors import ClientClosed
from rebaser_core import trace_context
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import EnqueueUpdatesResponse, EnqueueUpdatesResponseV2

_Key = tuple[ChangeSet, RequestId, str]
"""Change set, id and digest of a request. An id belongs to its change set: others may have it, too.
A second request of one change set and id is refused, which is no answer to the first."""


class ReplyInbox:
    """Hands each response to the one who waits for that request of that change set."""

    def __init__(self, inbox: str) -> None:
        self.inbox_root = inbox
        self._pending: dict[_Key, list[asyncio.Future[EnqueueUpdatesResponseV2]]] = {}

    def expect(
        self, change_set: ChangeSet, request_id: RequestId, digest: str
    ) -> asyncio.Future[EnqueueUpdatesResponseV2]:
        """Return the future response. Call it before sending the request; cancel to stop waiting.

        Each call for the same request returns a future of its own.
        """
        future: asyncio.Future[EnqueueUpdatesResponseV2]
        future = asyncio.get_running_loop().create_future()
        key = change_set, request_id, digest
        self._pending.setdefault(key, []).append(future)
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    def _forget(self, key: _Key, future: asyncio.Future[EnqueueUpdatesResponseV2]) -> None:
        waiting = self._pending[key]
        waiting.remove(future)
        if not waiting:
            del self._pending[key]

    def close(self) -> None:
        """End every wait for a response: none comes any more."""
        for future in [each for waiting in self._pending.values() for each in waiting]:
            if not future.done():
                future.set_exception(ClientClosed())
                future.exception()  # it may be awaited, and need not be

    def address(self, request_id: RequestId, digest: str) -> str:
        return f"{self.inbox_root}.{request_id}-{digest}"

    async def receive(self, message: Msg) -> None:
        """Take a reply; an unreadable one is dropped."""
        with suppress(MessageError):
            headers = message.headers or {}
            response = EnqueueUpdatesResponse.decode(headers, message.data)
            if trace_context.is_on():
                _trace_reply(headers, response)
            change_set = ChangeSet(response.workspace_id, response.change_set_id)
            digest = message.subject.rpartition("-")[2]
            for future in self._pending.get((change_set, response.id, digest), ()):
                if not future.done():
                    future.set_result(response)


def _trace_reply(headers: Mapping[str, str], response: EnqueueUpdatesResponseV2) -> None:
    """That it came, in the trace that it belongs to."""
    trace_context.start_span(
        "rebaser reply received",
        ChangeSet(response.workspace_id, response.change_set_id),
        "CONSUMER",
        parent=trace_context.context_of(headers),
        request=str(response.id),
    ).end()


@asynccontextmanager
async def receiving_replies(nc: Client) -> AsyncIterator[ReplyInbox]:
    """Answers arrive for as long as the body runs."""
    replies = ReplyInbox(nc.new_inbox())
    async with subscribed(nc, f"{replies.inbox_root}.*", replies.receive):
        try:
            yield replies
        finally:
            replies.close()
