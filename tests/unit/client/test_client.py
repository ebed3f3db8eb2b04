"""What a client refuses before it sends anything: it has no connection here."""

import asyncio

import pytest
from nats.aio.client import Client

from rebaser_client import ClientError, RebaserClient, connect
from rebaser_client.requests import ReplyInbox
from rebaser_core.errors import MalformedMessage, TooLarge
from rebaser_core.ids import ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.updates import BatchLimits, SetValue

WHERE = (WorkspaceId.from_int(1), ChangeSetId.from_int(2))
ONE = "0" * 26
GOOD = SetValue(value_id=ONE, value=1)
CYCLE = []
CYCLE.append(CYCLE)


def client(replies=None, **options):
    """A client of another account's streams: it looks nothing up before it sends."""
    js = JetStream(Client(), api_prefix="JS.shared.API")
    return RebaserClient(js, replies or ReplyInbox("_INBOX.a"), **options)


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"dropTable": {}}, "updates: 1: no update is called 'dropTable'"),
        ({"setValue": {"valueId": ONE}}, "updates: 1.value: Field required"),
        ({"setValue": {"valueId": ONE, "value": {1}}}, "updates: 1.value: set is not JSON"),
        ({"setValue": {"valueId": ONE, "value": 2**63}}, "updates: 1.value: an integer beyond"),
        ({"setValue": {"valueId": ONE, "value": "\ud800"}}, "updates: 1.value: text with half"),
        ({"setValue": {"valueId": ONE, "value": CYCLE}}, "updates: 1.value: nested deeper"),
        ({"removeValue": {"value_id": ONE}}, "updates: 1.valueId: Field required"),
        (None, "updates: 1: an update is an object"),
    ],
)
async def test_an_invalid_update_is_named(update, says):
    with pytest.raises(MalformedMessage) as caught:
        await client().enqueue_updates(*WHERE, [GOOD, update])

    assert str(caught.value).startswith(says)


async def test_a_large_batch_is_checked_as_well():
    with pytest.raises(MalformedMessage, match="updates: 5000: no update"):
        await client().enqueue_updates_with_reply(*WHERE, [GOOD] * 5000 + [{"no": {}}])


async def test_a_value_beyond_the_limit_is_refused_before_sending():
    limited = client(limits=BatchLimits(value_bytes=10), retry_for=0)

    with pytest.raises(TooLarge, match="a value of more than 10 bytes"):
        await limited.enqueue_updates(*WHERE, [SetValue(value_id=ONE, value="x" * 20)])


async def test_a_request_that_was_not_sent_is_not_awaited():
    replies = ReplyInbox("_INBOX.a")
    with pytest.raises(MalformedMessage):
        await client(replies).enqueue_updates_with_reply(*WHERE, [1])

    assert not replies._pending


async def test_a_request_that_is_not_stored_is_not_awaited():
    replies = ReplyInbox("_INBOX.a")
    with pytest.raises(ClientError):
        await client(replies, retry_for=0).enqueue_updates_with_reply(*WHERE, [GOOD])

    await asyncio.sleep(0)
    assert not replies._pending


async def test_a_reply_ends_a_wait_though_nobody_tells_the_outcome():
    answer, told = asyncio.get_running_loop().create_future(), []

    async def ask():
        answer.set_result(None)
        await asyncio.sleep(0.1)
        told.append("late")

    assert await client()._sender._look_after(ask, answer) is None
    assert told == []


@pytest.mark.parametrize("options", [{"content_type": "json"}, {"prefix": "a.b"}], ids=str)
def test_a_wrong_option_is_refused_at_once(options):
    with pytest.raises(ValueError, match=r"content type|prefix"):
        client(**options)


@pytest.mark.parametrize("use", [lambda client: client.workspace("shop"), lambda c: c.workspaces])
def test_a_client_that_is_not_connected_yet_says_how(use):
    with pytest.raises(AttributeError, match=r"`async with connect\(…\) as client:`") as caught:
        use(connect(author="ada"))

    assert "client.workspace" in str(caught.value)
