"""Move requests whose subject names no change set to the dead letters, where operators look.

No Rebaser ever reads them, and they count against the limit of all requests together.
"""

import re
from datetime import UTC, datetime
from typing import Final, Never

import structlog

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import CANONICAL
from rebaser_core.jetstream import JetStream, NatsUnreachable, StoredMessage, Unavailable
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.subject_slices import FEW, SubjectSlices
from rebaser_server.processor.dead_letters import (
    DIED_AT,
    REASON,
    SEQUENCE,
    STORED_AT,
    sendable_headers,
)
from rebaser_server.runtime.containment import contained, printable
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()

_ID: Final = CANONICAL[1:-1]
_is_plain: Final = re.compile("[0-9A-Za-z_-]+").fullmatch


def stray_letters_subject(subjects: Subjects) -> str:
    """Return the subject of their dead letters, which name no change set either."""
    return subjects.join("rebaser", "dead-letters", "stray", "requests")


class StrayRequests:
    """Moves stray requests; two Rebasers may do it at once."""

    def __init__(
        self, js: JetStream, subjects: Subjects, members: Membership, few: int = FEW
    ) -> None:
        """`few`: subjects that are listed at once."""
        self._js = js
        self._subjects = subjects
        self._stream = subjects.requests_stream
        self._members = members
        self._slices = SubjectSlices(js, self._stream, few=few)
        ids = re.escape(subjects.join("rebaser.requests.")) + rf"{_ID}\.{_ID}"
        self._is_sound: Final = re.compile(ids).fullmatch  # much faster than to parse it

    async def run(self, period: float) -> Never:
        """Move them once in about `period` seconds, until cancelled."""
        await repeat_every(period, self._round, "strays", first_delay=0)

    async def _round(self) -> None:
        if self._members.rank() == 0:
            await self.move()

    async def move(self) -> None:
        """Move all of them, or those that this round looks at. May be cancelled and repeated."""
        names = await self._slices.next()
        strays = {name for name in names if not self._is_sound(name)}
        for pattern in sorted({_pattern(name) for name in strays if self._is_stray(name)}):
            sequence = 0
            while message := await self._js.get_message(
                self._stream, sequence=sequence + 1, next_by_subject=pattern
            ):
                sequence = message.sequence
                if self._is_stray(message.subject):
                    with contained(
                        "request", passing=(NatsUnreachable, Unavailable), sequence=sequence
                    ):
                        await self._move(message)

    def _is_stray(self, subject: str) -> bool:
        try:
            self._subjects.parse_change_set(subject)
        except UnknownSubject:
            return True
        return False

    async def _move(self, message: StoredMessage) -> None:
        """Copy the request, cut to the size of a letter, and delete it once the copy is stored."""
        subject, letter_id = stray_letters_subject(self._subjects), f"stray-{message.sequence}"
        headers = sendable_headers(message.headers) | {
            REASON: f"its subject {ascii(message.subject)[:200]} names no change set",
            SEQUENCE: str(message.sequence),
            DIED_AT: datetime.now(UTC).isoformat(),
            STORED_AT: message.time.isoformat(),
        }
        room = self._js.message_limits.max_payload_for(
            subject, {**headers, "Nats-Msg-Id": letter_id}
        )
        payload = message.payload[: max(0, room)]
        await self._js.publish(subject, payload, headers=headers, message_id=letter_id)
        await self._js.delete_message(self._stream, message.sequence)
        log.error(
            "request dead-lettered", subject=printable(message.subject), sequence=message.sequence
        )


def _pattern(subject: str) -> str:
    """Return a filter that matches the subject: a server reports some octets differently."""
    tokens = subject.split(".")
    return ".".join(token if _is_plain(token) else "*" for token in tokens)
