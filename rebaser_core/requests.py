"""Store a request, and make sure that its change set has a task.

Two publishes make a request: the request itself, then its change set's task (rules C1 and C2 of the
protocol). Clients and Rebasers enqueue through this module.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

from blake3 import blake3

from rebaser_core import trace_context
from rebaser_core.errors import NotConfirmed, QueueFull, TooLarge
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    Full,
    JetStreamError,
    NatsUnreachable,
    SubjectFull,
    Unavailable,
    Unsendable,
)
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.streams import Streams
from rebaser_core.versioning import MESSAGE_ID, announced_id

INLINE_UPDATES: Final = 500
"""Number of updates up to which a batch may be inline."""

INLINE_BYTES: Final = 64 * 1024
"""Size of a batch, in bytes, up to which it may be inline."""

_BACKOFF: Final = Backoff(0.05, 2.0)

T = TypeVar("T")


async def retry(
    call: Callable[[], Awaitable[T]],
    retry_for: float,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Repeat `call` until the server answers, with a `pause` after each failure; return its result.

    Raises:
        NatsUnreachable, Unavailable: the server did not answer for `retry_for` seconds.
        JetStreamError: any other error, at once, since a retry cannot help.
    """
    clock = asyncio.get_running_loop().time
    end, attempts = clock() + retry_for, 0
    while True:
        try:
            return await call()
        except (NatsUnreachable, Unavailable):
            if clock() >= end:
                raise
        attempts += 1
        await pause(_BACKOFF.delay(attempts))


RETRY_FOR: Final = 60.0
"""Seconds during which an unanswered publish is tried again: the retry horizon H."""

_DIGEST_BYTES: Final = 16  # bytes of the digest in a message id
_FULL: Final = (
    "; NATS is connected and does not confirm what it is sent: its disk may be full, which "
    "`rebaser doctor` and the log of the Rebasers say"
)

DIGEST_BYTES: Final = 4
"""Bytes of a request's digest: of 4,000 million different requests under a used id, about one is
taken for the request that had the id first."""


async def publish_request(
    streams: Streams,
    change_set: ChangeSet,
    headers: Mapping[str, str],
    payload: bytes,
    *,
    retry_for: float = RETRY_FOR,
    tasks: "TaskPublisher | None" = None,
) -> int:
    """Store a request and make sure that a task for it exists; return its stream sequence.

    Pass `tasks` if several requests for one change set may be stored at a time.

    A request that is repeated with its `Nats-Msg-Id`, see `message_id`, is stored once. After a
    cancellation or an error, it may be stored, with or without its task; the reconcilers find it.

    Raises:
        NotConfirmed: request or task not confirmed for `retry_for` seconds.
        QueueFull: refused, and not stored by an earlier try either.
        TooLarge: it does not fit into a message; nothing was sent.
    """
    request_id = announced_id(headers) or ""
    with trace_context.span("rebaser enqueue", change_set, "PRODUCER", request=request_id) as span:
        if span is not None:
            headers = trace_context.inject(headers)
        tasks = tasks or TaskPublisher.using(streams, retry_for)
        sequence = await _store(streams, change_set, headers, payload, retry_for)
        if not await tasks.ensure(change_set):
            raise NotConfirmed(f"request {request_id} is stored, but its task is not confirmed")
        return sequence


def message_id(request_id: object, change_set: ChangeSet, payload: bytes) -> str:
    """Return the message id by which the server recognises a repetition of the request.

    The server remembers message ids for the whole stream, so a message with the id of another
    one counts as its repetition, even for another change set. Only a client that knows the
    request can compute this id.
    """
    digest = blake3(f"{change_set}:".encode() + payload).hexdigest(_DIGEST_BYTES)
    return f"{request_id}.{digest}"


def request_digest(payload: bytes) -> str:
    """Return the digest that tells a repeated request from another one under its id."""
    return blake3(payload).hexdigest(DIGEST_BYTES)


async def _store(
    streams: Streams,
    change_set: ChangeSet,
    headers: Mapping[str, str],
    payload: bytes,
    retry_for: float,
) -> int:
    js, subject = streams.js, streams.requests(change_set)
    try:
        ack = await retry(
            lambda: js.publish(subject, payload, headers=headers, message_id=headers[MESSAGE_ID]),
            retry_for,
            js.connection.sleep,
        )
    except Full as error:  # the server looks for the id first
        raise queue_full(f"request {announced_id(headers)} of {change_set}", error) from error
    except Unsendable as error:
        raise TooLarge(f"request {announced_id(headers)}: {error}") from error
    except JetStreamError as error:
        # Stored or not, a task harms nothing and the request may need it (C2).
        await ensure_task(streams, change_set, retry_for=_BACKOFF.longest)
        why = f"{error}{_FULL if js.connection.is_connected else ''}"
        raise NotConfirmed(f"request {announced_id(headers)}: {why}") from error
    return ack.sequence


def queue_full(what: str, error: Full) -> QueueFull:
    """Return the error for a caller whose request the full queue, or a full NATS, refused."""
    if error.is_out_of_room:
        return QueueFull(f"{what} is not stored: {error}. Enqueue it again once there is room")
    whose = "its change set has" if isinstance(error, SubjectFull) else "all change sets have"
    return QueueFull(
        f"{what} is not stored: {whose} as much waiting as the server takes "
        f"({error.description}). Enqueue it again, later, under the same or a new id"
    )


async def ensure_task(streams: Streams, change_set: ChangeSet, *, retry_for: float = 10.0) -> bool:
    """Make sure that the change set has a task; return False if that is not certain.

    The task has no message id: one that the server remembers would suppress a task that is needed
    (S-2).
    """
    js, subject = streams.js, streams.task(change_set)
    try:
        await retry(lambda: js.publish(subject), retry_for, js.connection.sleep)
    except SubjectFull:  # a task exists: all is well
        return True
    except JetStreamError:
        return False
    return True


class TaskPublisher:
    """Publishes tasks of change sets; concurrent calls for one change set share a publish.

    A call is answered by a publish that began after the call (C2). So the calls that come while
    a publish is under way wait for the next one.
    """

    def __init__(self, publish: Callable[[ChangeSet], Awaitable[bool]]) -> None:
        self._publish = publish
        self._flights: dict[ChangeSet, _SingleFlight] = {}

    @classmethod
    def using(cls, streams: Streams, retry_for: float) -> Self:
        return cls(partial(ensure_task, streams, retry_for=retry_for))

    async def ensure(self, change_set: ChangeSet) -> bool:
        """Publish the task; return whether it is certain. A cancellation affects this call only."""
        rounds = self._flights.setdefault(change_set, _SingleFlight())
        rounds.waiters += 1
        needed = rounds.started + 1
        try:
            while rounds.finished < needed:
                if rounds.done is None:
                    await self._begin(change_set, rounds)
                else:
                    await rounds.done.wait()
            return rounds.confirmed
        finally:
            rounds.waiters -= 1
            if not rounds.waiters:
                del self._flights[change_set]

    async def _begin(self, change_set: ChangeSet, rounds: "_SingleFlight") -> None:
        rounds.started += 1
        rounds.done = end = asyncio.Event()
        try:
            rounds.confirmed = await self._publish(change_set)
            rounds.finished = rounds.started  # else another of the calls that wait begins
        finally:
            rounds.done = None
            end.set()


@dataclass(slots=True)
class _SingleFlight:
    """The publishes of one change set's task, one after the other, while a caller waits for one."""

    waiters: int = 0
    started: int = 0
    finished: int = 0
    """Number of the last publish that was answered."""
    confirmed: bool = False
    done: asyncio.Event | None = None
    """Event at the end of the publish under way."""
