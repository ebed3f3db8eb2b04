"""What daemons say of the tasks that they hold, heard where it leaves them: so who says it."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from rebaser_core.jetstream import AckSubject
from tests.chaos.history import History, Kind
from tests.chaos.proxy import Ear

AGAIN: Final = "again"
"""The word on a delivery whose numbers the daemon has seen before: a server that was killed, or a
consumer that was made anew, gives numbers twice."""

_WORD: Final = re.compile(rb"PUB (\$JS\.ACK\.\S+) (?:\S+ )?\d+\r\n([^\r\n]*)\r\n")
_DELIVERY: Final = re.compile(rb"MSG \S+ \S+ (\$JS\.ACK\.\S+) [\d ]+\r\n")
_LONGEST: Final = 1_000
"""Octets of what is looked for, which may come in pieces."""


class TaskWords:
    """Of all connections of one daemon after another."""

    def __init__(self, history: History, stream: str) -> None:
        """`stream`: of the tasks."""
        self._history = history
        self._stream = stream
        self._delivered: Counter[tuple[str, int, int]] = Counter()

    def ears(self, daemon: str) -> tuple[Ear, Ear]:
        """What hears a connection of the daemon: what goes up to the server, what comes down."""

        def said(subject: bytes, payload: bytes) -> None:
            word = payload.partition(b" ")[0].decode(errors="replace") or "+ACK"
            if word != "+WPI" and (delivery := self._delivery(subject)):
                self._history.add(Kind.TASK, daemon=daemon, delivery=[*delivery], word=word)

        def came(subject: bytes) -> None:
            if delivery := self._delivery(subject):
                self._delivered[(daemon, *delivery)] += 1
                if self._delivered[(daemon, *delivery)] > 1:
                    self._history.add(Kind.TASK, daemon=daemon, delivery=[*delivery], word=AGAIN)

        return _listener(_WORD, said), _listener(_DELIVERY, came)

    def _delivery(self, subject: bytes) -> tuple[int, int] | None:
        """Sequences of the task and of its delivery; None of another stream's."""
        which = AckSubject.parse(subject.decode())
        if which.stream != self._stream:
            return None
        return which.stream_sequence, which.consumer_sequence


def _listener(pattern: "re.Pattern[bytes]", hear: Callable[..., None]) -> Ear:
    rest = b""

    def listen(piece: bytes) -> None:
        nonlocal rest
        heard, end = rest + piece, 0
        for match in pattern.finditer(heard):
            hear(*match.groups())
            end = match.end()
        rest = heard[max(end, len(heard) - _LONGEST) :]

    return listen
