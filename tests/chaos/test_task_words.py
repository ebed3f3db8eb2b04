"""A word on a task is known by who said it, however its octets come."""

import pytest

from tests.chaos.history import History, Kind
from tests.chaos.task_words import TaskWords

NUMBERS = "1.7.9.1700000000000000000.0"
ACK = f"$JS.ACK.REBASER_TASKS.rebaser.{NUMBERS}"
OTHER = f"$JS.ACK.REBASER_REQUESTS.reader.{NUMBERS}"


def frame(payload: bytes, subject: str = ACK, reply: str = "_INBOX.1 ") -> bytes:
    return b"PUB %s %s%d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(payload), payload)


def delivered(subject: str = ACK) -> bytes:
    return b"MSG rebaser.tasks.w.c.process 4 %s 0\r\n\r\n" % subject.encode()


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_each_word_is_heard_once_and_progress_is_none(size: int) -> None:
    said = (
        b"PING\r\n"
        + frame(b"+WPI")
        + frame(b'-NAK {"delay": 1000}')
        + frame(b"+ACK", OTHER)
        + frame(b"", reply="")
    )

    assert heard(said, b"", size) == ["-NAK", "+ACK"]


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_delivery_of_the_same_numbers_is_another(size: int) -> None:
    came = delivered() + delivered(OTHER) + b"PONG\r\n" + delivered()

    assert heard(b"", came, size) == ["again"]


def heard(up: bytes, down: bytes, size: int) -> list[str]:
    """The words on the delivery, which come in pieces of that size."""
    history = History()
    for ear, octets in zip(
        TaskWords(history, "REBASER_TASKS").ears("daemon"), (up, down), strict=True
    ):
        for start in range(0, len(octets), size):
            ear(octets[start : start + size])
    events = list(history.of(Kind.TASK))
    assert all(e.data["daemon"] == "daemon" and e.data["delivery"] == [7, 9] for e in events)
    return [event.data["word"] for event in events]
