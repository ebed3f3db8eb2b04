"""Commits as messages of their stream: what headers they have, and how they are read."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rebaser_core.commits import Commit, CommitV1, decode_commit_at
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import Delivery, StoredMessage
from rebaser_core.versioning import MESSAGE_ID, REQUEST_DIGEST, announced_id
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion

UNFINISHED: Final = "X-DVU-DUE"
"""Header of a commit after which a dependent values update is due, or a branch is being applied to
head: the reconciler reads this header alone."""

TRACE_HEADERS: Final = frozenset(("traceparent", "tracestate"))
"""Headers of such a commit where traces are on: the trace that the due update belongs to."""

UNSAVED: Final = "X-UNSAVED"
"""Header of a commit that releases a change set although requests were settled since its last
checkpoint: the run made room for another. Its table is written by a later run."""

NumberedEntry = tuple[int, CommitV1]
"""A commit with its sequence before it."""

ExtraHeaders = Mapping[RequestId, Mapping[str, str]]
"""Additional headers of commits, by the commits' ids."""


class LogEnd(NamedTuple):
    """The last commit of a log."""

    sequence: int = 0
    entry: CommitV1 | None = None
    """None if the log has no commits."""
    trace: Mapping[str, str] = {}
    """Those of its headers that name the trace of the due update."""
    unsaved: bool = False
    """See `UNSAVED`."""


def log_end(message: StoredMessage, known: NumberedEntry | None) -> LogEnd:
    """Return what the last message of a log says; it is not decoded if it is the commit `known`.

    Ids are new (`CommitV1`), so one of that sequence and id is that commit.
    """
    if (
        known is not None
        and known[0] == message.sequence
        and announced_id(message.headers) == str(known[1].id)
    ):
        entry = known[1]
    else:
        entry = decode_commit(message)
    return LogEnd(message.sequence, entry, trace_headers_of(message), UNSAVED in message.headers)


def decode_commit(message: StoredMessage | Delivery) -> CommitV1:
    try:
        return decode_commit_at(_sequence_of(message), message.headers, message.payload)
    except NewerVersion as error:
        raise NeedsNewerVersion(error) from error
    except MessageError as error:
        where = f"{message.subject}: commit {_sequence_of(message)}"
        raise HistoryInconsistent(f"{where} cannot be read: {error}") from error


def _sequence_of(message: StoredMessage | Delivery) -> int:
    return message.stream_sequence if isinstance(message, Delivery) else message.sequence


def publish_options(entry: CommitV1, extra_headers: ExtraHeaders) -> dict[str, Any]:
    """Return the arguments that publish the commit."""
    headers, payload = Commit.encode(entry)
    if extra_headers:
        headers |= extra_headers.get(entry.id, {})
    if entry.request_digest:
        headers[REQUEST_DIGEST] = entry.request_digest
    if entry.control.unfinished:
        headers[UNFINISHED] = "1"
    return {"payload": payload, "message_id": headers.pop(MESSAGE_ID), "headers": headers}


def trace_headers_of(message: StoredMessage) -> Mapping[str, str]:
    """Return the headers of a commit that name a trace."""
    return {name: message.headers[name] for name in TRACE_HEADERS & message.headers.keys()}
