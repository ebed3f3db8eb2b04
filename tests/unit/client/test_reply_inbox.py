"""Each response reaches the one who waits for it, and nobody else."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_client.requests import ReplyInbox
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse
from tests.wire.samples import FAILED, REQUEST, SAMPLES, response

RESPONSE = response(FAILED)
WHERE = ChangeSet(RESPONSE.workspace_id, RESPONSE.change_set_id)
OTHER = RequestId.from_int(8)
DIGEST = "01234567"


def message(headers, payload):
    return Msg(_client=Client(), subject=f"_INBOX.a.b-{DIGEST}", headers=headers, data=payload)


def answer():
    return message(*EnqueueUpdatesResponse.encode(RESPONSE))


@pytest.fixture
def replies():
    return ReplyInbox("_INBOX.a")


def test_every_request_has_an_inbox_of_its_own(replies):
    assert replies.address(REQUEST, DIGEST) == f"_INBOX.a.{REQUEST}-{DIGEST}"


@pytest.mark.parametrize(
    "other",
    [
        (WHERE, OTHER, DIGEST),
        (WHERE._replace(change_set_id=ChangeSetId()), REQUEST, DIGEST),
        (WHERE, REQUEST, "89abcdef"),
    ],
    ids=["another request", "of another change set", "another batch"],
)
async def test_a_response_reaches_its_request_and_no_other(replies, other):
    """Also of the same id, in another change set or with another batch."""
    mine, others = replies.expect(WHERE, REQUEST, DIGEST), replies.expect(*other)

    await replies.receive(answer())

    assert mine.result() == RESPONSE
    assert not others.done()


async def test_an_answer_of_version_1_reads_as_the_current_one(replies):
    sample = next(s for s in SAMPLES if str(s) == "EnqueueUpdatesResponse-v1")
    mine = replies.expect(WHERE, REQUEST, DIGEST)

    await replies.receive(
        message(sample.headers("application/json"), sample.payload("application/json"))
    )

    assert mine.result() == sample.read


async def test_the_first_answer_is_final(replies):
    mine = replies.expect(WHERE, REQUEST, DIGEST)

    await replies.receive(answer())
    await replies.receive(answer())

    assert mine.result() == RESPONSE


async def test_nonsense_answers_no_request(replies):
    mine = replies.expect(WHERE, REQUEST, DIGEST)

    await replies.receive(message(None, b""))
    await replies.receive(message({"X-MESSAGE-TYPE": "EnqueueUpdatesResponse"}, b"\xff"))

    assert not mine.done()


async def test_an_unawaited_answer_is_dropped(replies):
    replies.expect(WHERE, REQUEST, DIGEST).cancel()

    await replies.receive(answer())
    await asyncio.sleep(0)
    await replies.receive(answer())


async def test_a_retry_right_after_a_timeout_gets_the_reply(replies):
    """The same request is sent again after an error, before the loop has turned once."""
    replies.expect(WHERE, REQUEST, DIGEST).cancel()
    again = replies.expect(WHERE, REQUEST, DIGEST)
    await asyncio.sleep(0)

    await replies.receive(answer())

    assert again.result() == RESPONSE


async def test_a_cancelled_waiter_leaves_the_others_waiting(replies):
    first, second = replies.expect(WHERE, REQUEST, DIGEST), replies.expect(WHERE, REQUEST, DIGEST)

    first.cancel()
    await replies.receive(answer())

    assert first.cancelled()
    assert second.result() == RESPONSE


async def test_finished_waiters_leave_nothing_behind(replies):
    replies.expect(WHERE, REQUEST, DIGEST).cancel()
    replies.expect(WHERE, REQUEST, DIGEST)
    await replies.receive(answer())
    await asyncio.sleep(0)

    assert not replies._pending
