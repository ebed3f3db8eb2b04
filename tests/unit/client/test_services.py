"""What a client of services refuses before it sends anything, and the bytes of a call."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import pytest
from nats.aio.client import Client
from pydantic import BaseModel

from rebaser_client import KeyHandle, RebaserClient
from rebaser_client.requests import ReplyInbox
from rebaser_core.calls import SERVICE_VERSION, CallRequestV1, TimerChange, key_of, read_call
from rebaser_core.codecs import CBOR, JSON
from rebaser_core.errors import MalformedMessage, TooLarge
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.versioning import AUTHOR

SENT = RequestId.from_int(7)
NOON = datetime(2027, 1, 4, 12, tzinfo=UTC)
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@dataclass(frozen=True)
class Orders:
    """A service as a program declares it, which needs no description."""

    name: str = "orders"
    version: int = 3


@dataclass
class Item:
    name: str
    price: Decimal


class Buyer(BaseModel):
    id: UUID
    since: datetime


def key(replies: ReplyInbox | None = None, **options: Any) -> KeyHandle:
    """A key of a client that has no connection."""
    js = JetStream(Client(), api_prefix="JS.shared.API")
    client = RebaserClient(js, replies or ReplyInbox("_INBOX.a"), **options)
    return client.service(Orders()).key("o-17")


async def sent(key: KeyHandle, *arguments: Any, **named: Any) -> CallRequestV1:
    """The call, as a worker reads it."""
    headers, payload = await key._encode(SENT, "add", arguments, named, None)
    return read_call(headers, payload)


@pytest.mark.parametrize("content_type", [CBOR, JSON])
@pytest.mark.parametrize(
    "timer", [None, TimerChange(name="daily", every="0 7 * * *", zone="Europe/Berlin")]
)
async def test_a_call_reads_as_its_class(content_type: str, timer: TimerChange | None) -> None:
    """It is written without, since a model for each call takes as long as the rest of it."""
    written = key(content_type=content_type, author="ada")

    headers, payload = await written._encode(SENT, "add", ("cup", 3), {}, timer)

    assert headers[AUTHOR] == "ada"
    assert read_call(headers, payload) == CallRequestV1(
        id=SENT,
        **key_of("orders", "o-17")._asdict(),
        service="orders",
        key="o-17",
        handler="add",
        arguments=["cup", 3],
        service_version=3,
        timer=timer,
    )


@pytest.mark.parametrize("version", ["", "0", "-1", "1.0", "²", "9" * 10])
async def test_a_version_of_a_service_that_is_none_is_malformed(version: str) -> None:
    headers, payload = await key()._encode(SENT, "add", ("cup",), {}, None)

    with pytest.raises(MalformedMessage, match="X-Service-Version is no positive integer"):
        read_call(headers | {SERVICE_VERSION: version}, payload)


async def test_arguments_are_a_list_by_position_and_an_object_by_name() -> None:
    assert (await sent(key(), "cup")).arguments == ["cup"]
    assert (await sent(key(), item="cup")).arguments == {"item": "cup"}
    assert (await sent(key())).arguments == []


async def test_arguments_of_pydantic_and_the_standard_library_become_json() -> None:
    buyer = Buyer(id=UUID(int=1), since=NOON)

    call = await sent(key(), Item("cup", Decimal("3.50")), buyer, {"at": NOON})

    assert call.arguments == [
        {"name": "cup", "price": "3.50"},
        {"id": "00000000-0000-0000-0000-000000000001", "since": "2027-01-04T12:00:00Z"},
        {"at": "2027-01-04T12:00:00Z"},
    ]


@pytest.mark.parametrize(
    "argument", [object(), float("inf"), 2**63, "\ud800", CYCLE, pd.NaT], ids=type
)
async def test_arguments_that_are_no_json_are_refused_and_nothing_is_awaited(argument: Any) -> None:
    replies = ReplyInbox("_INBOX.a")

    with pytest.raises(MalformedMessage, match="the arguments of add are no JSON"):
        await key(replies).call("add", argument)

    assert not replies._pending


async def test_arguments_are_by_position_or_by_name_and_not_both() -> None:
    with pytest.raises(MalformedMessage, match="by position or by name"):
        await key().call("add", "cup", number=3)


async def test_arguments_beyond_the_limit_are_too_large() -> None:
    with pytest.raises(TooLarge, match="the arguments of add have"):
        await key().send("add", "x" * 300_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timer": "daily"}, "a timer needs one of"),
        ({"zone": "Europe/Berlin"}, "a timer needs one of"),
        ({"at": NOON, "after": 3}, "at and after are given"),
        ({"every": "0 7 * * *"}, "every= needs a name"),
        ({"at": NOON.replace(tzinfo=None)}, "at= needs a time zone"),
        ({"at": "2027-01-04T12:00:00Z"}, "at= needs a time zone"),
        ({"at": NOON.date()}, "at= needs a time zone"),
        ({"after": float("inf")}, "after: Input should be a finite number"),
        ({"after": "soon"}, "after= is 'soon': give seconds"),
        ({"after": timedelta(seconds=-1)}, "timer: after"),
        ({"after": float("nan")}, "timer: after"),
        ({"after": 1, "timer": "x" * 201}, "timer: name"),
    ],
    ids=str,
)
async def test_a_timer_that_makes_no_sense_is_refused(options: Any, says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        await key().send("add", "cup", **options)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"], ids=["none", "long", "line feed"])
async def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(MalformedMessage):
        key().service.key(name)
    with pytest.raises(MalformedMessage):
        await key().cancel(name)


@pytest.mark.parametrize("handler", ["", "to-pay", "add item", "é"])
async def test_no_call_is_sent_to_what_cannot_be_a_handler(handler: str) -> None:
    """A worker could not read it, and it would end in the dead letters."""
    with pytest.raises(MalformedMessage, match="is no name of a handler"):
        await key().call(handler)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 201, "a\nb", 17, None])
def test_what_is_no_name_of_a_key_is_malformed(name: Any) -> None:
    service = key().service

    with pytest.raises(MalformedMessage):
        service.key(name)


@pytest.mark.parametrize(
    "when",
    [
        {"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
        {"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))},
        {"after": 10**400},
        {"after": float("nan")},
    ],
    ids=["late", "early", "long", "nan"],
)
async def test_a_time_that_no_calendar_has_is_malformed_and_nothing_is_sent(
    when: dict[str, Any],
) -> None:
    with pytest.raises(MalformedMessage, match="timer: "):
        await key().send("add", "cup", **when)
