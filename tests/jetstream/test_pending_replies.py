"""Replies find their futures by token, and those that the caller gave up do not pile up."""

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream import NatsUnreachable
from rebaser_core.jetstream.connection import pending_replies
from rebaser_core.jetstream.connection.pending_replies import PendingReplies


async def test_a_reply_completes_the_future_of_its_token() -> None:
    """A second reply with the same token finds nothing to complete."""
    replies = PendingReplies()
    token, future = replies.expect()
    reply = Msg(Client(), f"inbox.{token}")

    replies.deliver(token, reply)
    replies.deliver(token, Msg(Client(), "late"))

    assert future.result() is reply
    assert not replies


async def test_a_lost_connection_completes_all_with_nothing() -> None:
    """No reply can come any more; a caller that gave up is left alone."""
    replies = PendingReplies()
    _, waiting = replies.expect()
    _, cancelled = replies.expect()
    cancelled.cancel()

    replies.fail_all()

    assert waiting.result() is None
    assert cancelled.cancelled()
    assert not replies


async def test_too_many_unread_replies_refuse_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up, they make room again."""
    monkeypatch.setattr(pending_replies, "MIN_SWEEP", 4)
    monkeypatch.setattr(pending_replies, "MAX_PENDING", 8)
    replies = PendingReplies()
    futures = [replies.expect()[1] for _ in range(9)]

    with pytest.raises(NatsUnreachable, match="not answered"):
        replies.expect()
    for future in futures:
        future.cancel()

    token, _ = replies.expect()
    assert token in replies
