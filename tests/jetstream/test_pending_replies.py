"""Questions end at their deadlines, and those that the caller gave up do not pile up."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream import NatsUnreachable, connection
from rebaser_core.jetstream.connection import PendingReplies


async def test_too_many_unread_replies_refuse_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up, they make room again."""
    monkeypatch.setattr(connection, "MIN_SWEEP", 4)
    monkeypatch.setattr(connection, "MAX_PENDING", 8)
    replies = PendingReplies()
    futures = [replies.expect()[1] for _ in range(9)]

    with pytest.raises(NatsUnreachable, match="not answered"):
        replies.expect()
    for future in futures:
        future.cancel()

    token, _ = replies.expect()
    assert token in replies


async def test_each_question_ends_at_its_own_deadline_whatever_others_have() -> None:
    """A later question may have an earlier deadline; what was answered before is left as it is."""
    replies, now = PendingReplies(), asyncio.get_running_loop().time()
    answered_token, answered = replies.expect(now + 0.01)
    _, last = replies.expect(now + 60)
    _, first = replies.expect(now + 0.02)
    _, endless = replies.expect()
    replies.deliver(answered_token, reply := Msg(Client(), "inbox"))

    assert await asyncio.wait_for(first, 10) is None

    assert answered.result() is reply
    assert not last.done()
    assert not endless.done()
    assert len(replies) == 2


async def test_deadlines_follow_each_other() -> None:
    """One timer serves them all, and a question that the caller gave up stops none."""
    replies, now = PendingReplies(), asyncio.get_running_loop().time()
    futures = [replies.expect(now + 0.01 * each)[1] for each in (3, 1, 2)]
    futures[1].cancel()

    await asyncio.wait_for(asyncio.gather(futures[0], futures[2]), 10)

    assert not replies
