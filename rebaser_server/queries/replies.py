"""Send what a question is answered with, in pieces where it does not fit into a message."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core import codecs
from rebaser_core.ids import RequestId
from rebaser_core.jetstream.fast_client import MessageLimits
from rebaser_core.query_protocol import ACCEPTS_PIECES, PIECE, RETRY_AFTER, split_reply
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_ID, MessageType, Versioned, header
from rebaser_server.runtime.tasks import compute_in_turn

RETRY_SECONDS: Final = "1"
"""Seconds after which a busy Rebaser is to be asked again; clients wait longer each time."""

_LONGEST_PIECE_NUMBER: Final = "999999/999999"

ReplyT = TypeVar("ReplyT", bound=Versioned)


class ReplySender(Generic[ReplyT]):
    """The answer to one question."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        question: Msg,
        kind: MessageType[ReplyT],
        refusal: Callable[[RequestId, str], ReplyT],
    ) -> None:
        headers = question.headers or {}
        self._nc = nc
        self._room = MessageLimits(nc)
        self._kind = kind
        self._workspace = question.subject.split(".")[-2]
        self._refusal = refusal
        self._content_type = codecs.content_type_or_default(header(headers, CONTENT_TYPE))
        self._reads_pieces = header(headers, ACCEPTS_PIECES) == "1"
        # A question cannot have us write into streams: NATS sends to whatever inbox it names.
        ours = subjects.join("rebaser.")
        self._inbox = "" if question.reply.startswith(("$", ours)) else question.reply

    async def send(self, reply: ReplyT) -> None:
        """Send the reply or, where it cannot be sent to this asker, why not.

        Raises:
            MalformedMessage: it cannot be encoded; nothing was sent.
            nats.errors.Error: the connection is closed.
        """
        if not self._inbox:
            return
        headers, payload = await compute_in_turn(
            self._workspace, self._kind.encode, reply, self._content_type
        )
        if len(payload) <= self._room.max_payload_for(self._inbox, headers):
            await self._nc.publish(self._inbox, payload, headers=headers)
        elif self._reads_pieces:
            await self._send_pieces(headers, payload)
        else:
            why = (
                f"the answer has {len(payload)} octets, more than fit into a message: ask for "
                f"less, or with the header {ACCEPTS_PIECES}, as newer clients do"
            )
            await self._send_small(self._refusal(reply.id, why))

    async def busy(self, refusal: ReplyT) -> None:
        """Have the asker ask again later."""
        await self._send_small(refusal, {RETRY_AFTER: RETRY_SECONDS})

    async def _send_small(self, reply: ReplyT, more: dict[str, str] | None = None) -> None:
        if self._inbox:
            headers, payload = self._kind.encode(reply, self._content_type)
            await self._nc.publish(self._inbox, payload, headers=headers | (more or {}))

    async def _send_pieces(self, headers: dict[str, str], payload: bytes) -> None:
        room = self._room.max_payload_for(self._inbox, headers | {PIECE: _LONGEST_PIECE_NUMBER})
        piece_headers = headers
        for number, piece in split_reply(payload, room):
            await self._nc.publish(self._inbox, piece, headers=piece_headers | {PIECE: number})
            piece_headers = {MESSAGE_ID: headers[MESSAGE_ID]}
