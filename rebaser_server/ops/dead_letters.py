"""Dead letters for operators: what a request contained, and enqueueing it again."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from rebaser_client.client import RebaserClient
from rebaser_core.calls import CallRequest, CallRequestV1, read_call
from rebaser_core.errors import MessageError, RebaserError, UnknownSubject
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ordered_reader
from rebaser_core.jetstream.messages import StoredMessage
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.records import utc_text
from rebaser_core.requests import message_id, publish_request
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import AUTHOR, MESSAGE_ID, MESSAGE_TYPE, header
from rebaser_server.errors import MissingBatch
from rebaser_server.processor.dead_letters import (
    ATTEMPTS,
    DIED_AT,
    REASON,
    SEQUENCE,
    STORED_AT,
    original_request,
)

if TYPE_CHECKING:
    from rebaser_server.commit_log.batch_store import BatchStore

_MESSAGE_ID: Final = MESSAGE_ID.lower()
_RANDOM_OCTETS: Final = 10
"""Random bytes of a ULID, after the six of its time."""


class NoSuchLetter(RebaserError):
    """The number is not that of a dead letter; the letter may have been replayed or purged."""


class NotReplayable(RebaserError):
    """The letter cannot be enqueued as it is, for the reason in the message; it is kept."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it is stored."""

    sequence: int
    change_set: ChangeSet | None
    headers: Mapping[str, str]
    payload: bytes
    stored: datetime

    def summary(self) -> dict[str, Any]:
        """Change set, times, attempts and reason, as plain data."""
        unknown = {"workspace": None, "changeSet": None}
        return {
            "sequence": self.sequence,
            "at": _utc(self.headers.get(DIED_AT)),
            **(self.change_set.plain() if self.change_set else unknown),
            "requestSequence": int(self.headers.get(SEQUENCE, 0)),
            "requestStored": _utc(self.headers.get(STORED_AT)),
            "attempts": int(self.headers.get(ATTEMPTS, 0)),
            "reason": self.headers.get(REASON, ""),
        }

    def request(self) -> EnqueueUpdatesRequestV1 | CallRequestV1:
        """The request. Raises `NotReplayable` if it cannot be decoded."""
        try:
            if header(self.headers, MESSAGE_TYPE) == CallRequest.name:
                return read_call(self.headers, self.payload)
            return EnqueueUpdatesRequest.decode(self.headers, self.payload)
        except MessageError as error:
            raise NotReplayable(
                f"dead letter {self.sequence} cannot be decoded: {error}; "
                "enqueue a corrected request, then purge the letter"
            ) from error

    def content(self) -> Any:
        """The request as plain data, or the reason why it cannot be decoded."""
        try:
            return self.request().model_dump(mode="json", by_alias=True)
        except NotReplayable as error:
            return str(error)


def _utc(text: str | None) -> str | None:
    """The moment in our one format; any other text unchanged."""
    try:
        return text and utc_text(datetime.fromisoformat(text))
    except ValueError:
        return text


async def check(streams: Streams, sequence: int) -> StoredMessage:
    """The dead letter of that number, as it is stored.

    Raises:
        NoSuchLetter: no dead letter has the number.
    """
    message = await streams.js.get_message(streams.dead_letters_stream, sequence=sequence)
    if message is None:
        raise NoSuchLetter(f"there is no dead letter {sequence}; `rebaser dead-letters` shows them")
    return message


async def load(streams: Streams, batches: "BatchStore", sequence: int) -> DeadLetter:
    """The dead letter of that number, with the whole request.

    Raises:
        NoSuchLetter: no dead letter has the number.
        NotReplayable: the store has lost the part that did not fit into the letter.
    """
    message = await check(streams, sequence)
    try:
        headers, payload = await original_request(batches, message.headers, message.payload)
    except (MissingBatch, ValueError, LookupError) as error:
        raise NotReplayable(f"dead letter {sequence}: {error}") from error
    return _letter(streams, message, headers, payload)


async def latest(streams: Streams, most: int) -> list[DeadLetter]:
    """The latest letters, at most `most`, the latest first."""
    found = await latest_messages(streams, most)
    return [_letter(streams, each, each.headers, each.payload) for each in found]


async def latest_of(streams: Streams, change_set: ChangeSet, most: int) -> list[DeadLetter]:
    """The latest letters of one change set, at most `most`, the latest first."""
    found = deque[DeadLetter](maxlen=most)
    subject = streams.dead_letters(change_set)
    async with ordered_reader(streams.js, streams.dead_letters_stream, subject) as letters:
        while (each := await letters.next(idle_timeout=0)) is not None:
            stored = each.stream_sequence, each.timestamp
            message = StoredMessage(subject, *stored, each.headers, each.payload)
            found.appendleft(_letter(streams, message, each.headers, each.payload))
    return list(found)


async def latest_messages(streams: Streams, most: int) -> list[StoredMessage]:
    """The latest letters as they are stored, see `latest`."""
    stream = streams.dead_letters_stream
    # 12,000 holes take minutes to read one by one
    reply = await streams.js.request(f"STREAM.INFO.{stream}", {"deleted_details": True})
    state, letters = reply["state"], list[StoredMessage]()
    gone = set(state.get("deleted") or ())
    for sequence in range(state["last_seq"], state["first_seq"] - 1, -1):
        if len(letters) == min(most, state["messages"]):
            break
        if sequence in gone:
            continue
        if message := await streams.js.get_message(stream, sequence=sequence):
            letters.append(message)
    return letters


async def replay(
    streams: Streams, batches: "BatchStore", client: RebaserClient, sequence: int
) -> RequestId:
    """Enqueue the updates or the call of the letter as a new request; then delete the letter.

    Idempotent, also when it is interrupted: the id of the new request follows from the letter.

    Raises:
        NoSuchLetter, NotReplayable: nothing was enqueued.
        NotConfirmed: try again; the letter is still there.
    """
    dead = await load(streams, batches, sequence)
    request, request_id = dead.request(), _id_of_replay(dead)
    if isinstance(request, CallRequestV1):
        await _call_again(streams, request, request_id, header(dead.headers, AUTHOR))
        await streams.js.delete_message(streams.dead_letters_stream, sequence)
        return request_id
    try:
        batch = await batches.fetch(request.updates_address, request.id)
    except (MissingBatch, MessageError) as error:
        raise NotReplayable(f"dead letter {sequence}: its batch: {error}") from error
    if batch.computed is not None:
        raise NotReplayable(
            f"dead letter {sequence} is the result of an update that lost its claim; purge it: "
            "Rebaser computes those values again"
        )
    await client.enqueue_updates(
        request.workspace_id, request.change_set_id, batch.updates, request_id=request_id
    )
    await streams.js.delete_message(streams.dead_letters_stream, sequence)
    return request_id


async def _call_again(
    streams: Streams, call: CallRequestV1, request_id: RequestId, author: str | None
) -> None:
    """Store the call under that id. Raises as `publish_request`."""
    # Without its place among its sender's calls: the key has heard later ones since.
    call = call.model_copy(update={"id": request_id, "origin": None})
    change_set = ChangeSet(call.workspace_id, call.change_set_id)
    headers, payload = CallRequest.encode(call)
    headers[MESSAGE_ID] = message_id(request_id, change_set, payload)
    if author is not None:
        headers[AUTHOR] = author
    await publish_request(streams, change_set, headers, payload)


def _letter(
    subjects: Subjects, message: StoredMessage, headers: Mapping[str, str], payload: bytes
) -> DeadLetter:
    try:
        change_set = subjects.parse_change_set(message.subject)
    except UnknownSubject:
        change_set = None
    # The header has the letter's own id; the request's is in the payload.
    own = {k: v for k, v in headers.items() if k.lower() != _MESSAGE_ID}
    return DeadLetter(message.sequence, change_set, own, payload, message.time)


def _id_of_replay(dead: DeadLetter) -> RequestId:
    digest = blake3(b"%d " % dead.sequence + dead.payload).digest()
    time = RequestId.from_timestamp(dead.stored.timestamp()).bytes[:-_RANDOM_OCTETS]
    return RequestId(time + digest[:_RANDOM_OCTETS])
