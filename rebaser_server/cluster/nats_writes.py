"""Watch of whether NATS writes and keeps messages, and of the reason why it does not.

A server whose disk was full leaves publishes to a stream unanswered until it is started again. It
still answers questions about the stream, and refuses messages that it would not store. Work that
writes meets limits of the account or the server, and notes them here.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Never

import structlog

from rebaser_core.jetstream import ApiError, Full, JetStream, JetStreamError, StreamNotFound
from rebaser_core.streams import Streams
from rebaser_server.cluster.configuration_faults import Effect, Fault, judge, worst
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.errors import AppendRefused, WorkStopped
from rebaser_server.runtime.containment import LONGEST_DELAY, repeat_every
from rebaser_server.runtime.tasks import Interrupt

log: Final = structlog.get_logger()

_REMEDY: Final = (
    "make room on its disk, then restart the NATS server: until then it may take nothing. What "
    "was confirmed is kept"
)
_RAISE: Final = (
    ("resource limits exceeded", "raise `max_file` of the NATS account"),
    ("maximum consumers", "raise `max_consumers` of the NATS account"),
    ("maximum number of streams", "raise `max_streams` of the NATS account"),
    ("maximum bytes", "raise `max_bytes` of the stream"),
    ("maximum messages per subject", "raise `max_msgs_per_subject` of the stream"),
    ("maximum messages", "raise `max_msgs` of the stream"),
    ("", "make room for NATS, or raise the limit of its server (`max_file_store`)"),
)
"""Beginning of a server's description of an error → the way to raise that limit; the first that
fits counts."""
_KEPT: Final = "What was confirmed is kept, and what waits is done then"
_REFUSED_LATELY: Final = 2 * LONGEST_DELAY
"""Seconds for which a refusal counts: refused work is tried again sooner."""
_LOOK_EVERY: Final = 5.0
"""Maximum number of seconds between two looks of a Rebaser."""
_FORBIDDEN: Final = (10109, 10110)
"""Codes of "sealed" and "purge not permitted", which another check reports."""
_PERMISSIONS_TIMEOUT: Final = 1.0  # seconds; a user who may not ask gets no answer


async def refusal(streams: Streams, stream: str) -> JetStreamError | None:
    """Return the error of NATS if it does not write to the stream.

    NATS is asked to delete a message that no stream has.

    A publish whose precondition fails would not do: a server that cannot write refuses it, too. An
    error that the stream's configuration causes does not count.
    """
    try:
        await streams.js.purge(stream, subject=streams.join("rebaser.nothing"))
    except StreamNotFound:  # another check reports it
        return None
    except JetStreamError as error:
        return None if isinstance(error, ApiError) and error.err_code in _FORBIDDEN else error
    return None


CANNOT_WRITE: Final = "NATS cannot write"
"""First words of a `NatsProblem` that is no difference in the configuration."""


async def permissions(js: JetStream) -> Callable[[str], bool | None]:
    """Whether this user may make a call of JetStream's API; None if NATS does not say."""
    try:
        reply = await js.connection.request("$SYS.REQ.USER.INFO", b"", timeout=_PERMISSIONS_TIMEOUT)
        info: Mapping[str, Any] = json.loads(reply.data)["data"]
    except (JetStreamError, ValueError, LookupError):
        return lambda _: None
    publish = (info.get("permissions") or {}).get("publish") or {}
    allowed, denied = publish.get("allow") or [">"], publish.get("deny") or []

    def may(call: str) -> bool:
        subject = f"{js.prefix}.{call}"
        return any(_matches(each, subject) for each in allowed) and not any(
            _matches(each, subject) for each in denied
        )

    return may


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern with wildcards."""
    parts, tokens = pattern.split("."), subject.split(".")
    for place, part in enumerate(parts):
        if part == ">":
            return len(tokens) > place
        if place == len(tokens) or part not in ("*", tokens[place]):
            return False
    return len(parts) == len(tokens)


@dataclass(frozen=True, slots=True)
class NatsProblem:
    """The reason why NATS does not take messages, or will not keep them."""

    what: str
    remedy: str
    fault: Fault | None = None
    """Difference in its configuration; None if it cannot write."""

    @property
    def stops_work(self) -> bool:
        """Whether no new work is begun: NATS cannot write, or its configuration loses commits."""
        return self.fault is None or self.fault.effect is Effect.STOPS


async def unwritten(
    streams: Streams, may: Callable[[str], bool | None] = lambda _: True
) -> NatsProblem | None:
    """Return why NATS writes no requests or commits; None if it does, or may not be tried.

    Raises:
        JetStreamError: NATS does not answer.
    """
    for stream in (streams.requests_stream, streams.commits_stream):
        error = await refusal(streams, stream) if may(f"STREAM.PURGE.{stream}") else None
        if isinstance(error, ApiError):
            what = f"{CANNOT_WRITE}: {error.description} (stream {stream})"
            return NatsProblem(what, _REMEDY)
        if error is not None:
            raise error
    return None


class WriteWatch:
    def __init__(self, provisioner: Provisioner) -> None:
        self._provisioner = provisioner
        self.problem: NatsProblem | None = None
        """Problem at the last look; None if there was none."""
        self.stop = Interrupt(WorkStopped)
        """Interrupt that is set while no new work may be begun; interrupts those that wait for
        some."""
        self.resumed = asyncio.Event()
        """Event that is set while `stop` is not."""
        self.resumed.set()
        self.on_change: Callable[[], None] = lambda: None
        """Callback after `stop` was set or cleared."""
        self._refused_at = -_REFUSED_LATELY
        self._refusal: NatsProblem | None = None

    def to_json(self) -> tuple[str, str] | None:
        """The problem and the remedy, for the status; None if all is well."""
        return None if self.problem is None else (self.problem.what, self.problem.remedy)

    @property
    def takes_work(self) -> bool:
        """Whether NATS would keep new work, as far as is known."""
        return self.problem is None or not self.problem.stops_work

    async def look(self) -> None:
        found = await self._find()
        if found is None and time.monotonic() < self._refused_at + _REFUSED_LATELY:
            found = self._refusal
        self._note(found)

    @property
    def kind(self) -> str:
        """The event at the beginning of the problem, one of `PROBLEMS`; empty if there is none."""
        return _event(self.problem)

    def note_failure(self, error: BaseException) -> None:
        """Note the error that ended work on a change set: a limit of NATS, or another one."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Full):
            cause = cause.reason if isinstance(cause, AppendRefused) else cause.__cause__
        # X3: a fault of the configuration stays noted. A refusal in its place would end the stop.
        if cause is None or (self.problem is not None and self.problem.fault is not None):
            return
        remedy = next(what for text, what in _RAISE if cause.description.startswith(text))
        self._refused_at = time.monotonic()
        self._refusal = NatsProblem(f"{CANNOT_WRITE}: {error}", f"{remedy}. {_KEPT}")
        self._note(self._refusal)

    async def why_stopped(self) -> str | None:
        """Look now, and return why no new work may be begun; None if it may, or is not known."""
        with suppress(JetStreamError):
            await self.look()
        return self.problem.what if self.problem is not None and self.stop.is_set else None

    async def _find(self) -> NatsProblem | None:
        provisioner = self._provisioner
        fault = worst(judge(await provisioner.diff_streams()))
        if fault is not None:
            remedy = "`rebaser doctor --repair`" if fault.can_be_mended else fault.remedy
            if fault.effect is Effect.STOPS:
                return NatsProblem(f"no new work is begun, since {fault}", remedy, fault)
            return NatsProblem(f"requests may be lost or refused, since {fault}", remedy, fault)
        return await unwritten(provisioner.streams)

    def _note(self, found: NatsProblem | None) -> None:
        before, self.problem = self.problem, found
        if _event(found) != _event(before):
            if before is not None:
                log.info(_ENDED[_event(before)])
            if found is not None:
                log.error(_event(found), reason=found.what, remedy=found.remedy)
        # X3: a NATS that cannot write loses no commit, and work that it refuses is retried.
        is_stopped = found is not None and found.fault is not None and found.stops_work
        if is_stopped != self.stop.is_set:
            if is_stopped:
                self.resumed.clear()
                self.stop.set()
            else:
                self.stop.clear()
                self.resumed.set()
            self.on_change()

    async def run(self, period: float) -> Never:
        """Look until cancelled, once a period or more often."""
        await repeat_every(min(period, _LOOK_EVERY), self.look, "durability")


_ENDED: Final = {
    "nats cannot write": "nats writes again",
    "work stopped": "work resumed",
    "requests may be lost": "requests kept again",
}
"""Event that is logged at the end of a problem, by the event at its beginning."""

PROBLEMS: Final = tuple(_ENDED)


def _event(problem: NatsProblem | None) -> str:
    if problem is None:
        return ""
    if problem.fault is None:
        return "nats cannot write"
    return "work stopped" if problem.stops_work else "requests may be lost"
