"""Whether NATS writes what it is sent, and why it does not.

A server whose disk was full leaves what is published to a stream unanswered until it is started
again. It still answers what is asked about the stream, and refuses what it would not store.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Never

import structlog

from rebaser_core.jetstream import ApiError, JetStream, JetStreamError, StreamNotFound
from rebaser_core.subjects import Subjects
from rebaser_server.runtime.periodic import repeat_every

log: Final = structlog.get_logger()

REMEDY: Final = (
    "make room on its disk, then restart the NATS server: until then it may take nothing. What "
    "was confirmed is kept"
)
LOOK_EVERY: Final = 15.0
"""Seconds between two looks of a Rebaser, at most."""
_PERMISSIONS_TIMEOUT: Final = 1.0  # seconds; a user who may not ask gets no answer


async def refusal(js: JetStream, subjects: Subjects, stream: str) -> JetStreamError | None:
    """Error of NATS if it does not write to the stream: it is asked to delete what no stream has.

    A publish whose precondition fails would not do: a server that cannot write refuses it, too.
    """
    try:
        await js.purge(stream, subject=subjects.join("rebaser.nothing"))
    except StreamNotFound:  # another check reports it
        return None
    except JetStreamError as error:
        return error
    return None


async def may_try(js: JetStream) -> Callable[[str], bool]:
    """Whether this user may try a stream; False where NATS does not say."""
    try:
        reply = await js.connection.request("$SYS.REQ.USER.INFO", b"", timeout=_PERMISSIONS_TIMEOUT)
        info: Mapping[str, Any] = json.loads(reply.data)["data"]
    except (JetStreamError, ValueError, LookupError):
        return lambda _: False
    publish = (info.get("permissions") or {}).get("publish") or {}
    allowed, denied = publish.get("allow") or [">"], publish.get("deny") or []

    def may(stream: str) -> bool:
        subject = f"{js.prefix}.STREAM.PURGE.{stream}"
        return any(_matches(each, subject) for each in allowed) and not any(
            _matches(each, subject) for each in denied
        )

    return may


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with wildcards means."""
    parts, tokens = pattern.split("."), subject.split(".")
    for place, part in enumerate(parts):
        if part == ">":
            return len(tokens) > place
        if place == len(tokens) or part not in ("*", tokens[place]):
            return False
    return len(parts) == len(tokens)


async def why_not_written(
    js: JetStream, subjects: Subjects, may: Callable[[str], bool] = lambda _: True
) -> str | None:
    """Reason why NATS writes no requests or commits; None if it does, or may not be tried.

    Raises:
        JetStreamError: NATS does not answer.
    """
    for stream in (subjects.requests_stream, subjects.commits_stream):
        error = await refusal(js, subjects, stream) if may(stream) else None
        if isinstance(error, ApiError):
            return f"{error.description} (stream {stream})"
        if error is not None:
            raise error
    return None


class WriteWatch:
    """Watch of whether NATS writes; each change of that is logged."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self.problem: str | None = None
        """Reason why it did not write at the last look; None if it did."""

    async def look(self) -> None:
        """Look it up now."""
        found = await why_not_written(self._js, self._subjects)
        if found is not None and self.problem is None:
            log.error("nats cannot write", reason=found, remedy=REMEDY)
        elif found is None and self.problem is not None:
            log.info("nats writes again")
        self.problem = found

    async def run(self, period: float) -> Never:
        """Look it up until cancelled, once a period or more often."""
        await repeat_every(min(period, LOOK_EVERY), self.look, "durability")
