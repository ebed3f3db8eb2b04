"""Questions to all Rebasers over plain NATS, such as to stop the update of a change set."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream.connection import request_all
from rebaser_core.streams import Streams

STATUS: Final = "rebaser.status"
"""Subject, below the prefix, on which each Rebaser with an ops endpoint sends its status."""
_STATUS_TIMEOUT: Final = 0.3  # seconds for all Rebasers to send their status
_CANCEL_TIMEOUT: Final = 1.0  # seconds for the Rebaser that owns the change set to answer

_MOST_OCTETS: Final = 200_000
"""Maximum bytes of an answer; a longer one is not a Rebaser's."""

Answer = dict[str, Any]


async def cancel_update(streams: Streams, change_set: ChangeSet) -> bool | None:
    """Stop the running update; return whether one ran, or None if no Rebaser has the change set."""
    answers = await _all_answers(
        streams.js.nc,
        streams.cancellations(change_set),
        _CANCEL_TIMEOUT,
        enough=lambda answer: bool(answer.get("cancelled")),  # a fenced-off owner may answer first
    )
    return any(answer.get("cancelled") for answer in answers) if answers else None


async def statuses(
    streams: Streams,
    seconds: float = _STATUS_TIMEOUT,
    *,
    enough: Callable[[Answer], bool] = lambda _: False,
    most: int | None = None,
    request: bytes = b"",
) -> list[Answer]:
    """The status of each Rebaser that sends it in time; until `most` came, or one is `enough`.

    Some other `request` has them send something else, see `Peers`.
    """
    subject = streams.join(STATUS)
    return await _all_answers(streams.js.nc, subject, seconds, enough, most, request)


async def _all_answers(
    nc: Client,
    subject: str,
    seconds: float,
    enough: Callable[[Answer], bool],
    most: int | None = None,
    request: bytes = b"",
) -> list[Answer]:
    """The answers within that many seconds; until there are `most`, or one is `enough`."""
    answers: list[Answer] = []

    def read(reply: Msg) -> bool:
        if not reply.data:  # no responders
            return True
        with suppress(ValueError, RecursionError):
            answer = json.loads(reply.data) if len(reply.data) <= _MOST_OCTETS else None
            if isinstance(answer, dict):
                answers.append(answer)
                return enough(answer) or len(answers) == most
        return False

    await request_all(nc, subject, request, read, seconds)
    return answers
