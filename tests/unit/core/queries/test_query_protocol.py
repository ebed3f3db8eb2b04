"""Answers in pieces: what was cut is put together, and nothing else is."""

import pytest

from rebaser_core.errors import MalformedMessage
from rebaser_core.query_protocol import (
    PIECE,
    REPLY_TIMEOUT,
    ReplyAssembly,
    parse_seconds,
    split_reply,
)


@pytest.mark.parametrize("room", [1, 2, 3, 7, 99, 100])
def test_split_replies_are_put_together(room):
    payload, assembly = bytes(range(100)), ReplyAssembly()

    found = [
        assembly.add({PIECE: said, "n": said}, piece) for said, piece in split_reply(payload, room)
    ]

    assert found[:-1] == [None] * (len(found) - 1)
    headers, whole = found[-1]
    assert whole == payload
    assert headers["n"] == f"1/{len(found)}"
    assert assembly.add({}, b"next") == ({}, b"next")


@pytest.mark.parametrize(
    "numbers",
    [["2/2"], ["1/2", "1/2"], ["1/3", "3/3"], ["1/2", None], ["0/1"], ["x"], ["2/1"], ["1/1e9"]],
)
def test_a_piece_that_does_not_follow_is_malformed(numbers):
    assembly, *before, last = ReplyAssembly(), *({PIECE: n} if n else {} for n in numbers)
    for headers in before:
        assembly.add(headers, b"x")

    with pytest.raises(MalformedMessage, match="piece"):
        assembly.add(last, b"x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2.5", 2.5), ("10", 10), ("", 60), ("-1", 60), ("nan", 60), ("1e9", 60), ("9" * 99, 60)],
)
def test_patience_is_a_plain_number_of_seconds(text, seconds):
    assert parse_seconds({REPLY_TIMEOUT: text}, REPLY_TIMEOUT, 60) == seconds
