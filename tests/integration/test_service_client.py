"""The client of services and a real worker: what it refuses, repeats, and waits for."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from rebaser_client import (
    CallRejected,
    CallTimeout,
    NoSuchService,
    OutcomeUnknown,
    ReadRefused,
    RequestIdUsed,
    sync,
)
from rebaser_core import codecs
from rebaser_core.calls import CallRequest, CallRequestV1, TimerChange, key_of
from rebaser_core.errors import TooLarge
from rebaser_core.ids import RequestId
from rebaser_core.messages import ErrorStatus
from rebaser_server.handlers import Context, Reject, Service
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.workers import Working


@dataclass
class Order:
    items: list[str] = field(default_factory=list)


class Total(BaseModel):
    items: list[str]
    count: int


def orders(**options: Any) -> Service:
    """A service of which `gate` lets `wait` go on."""
    service = Service("orders", **options)
    service.state(Order)

    @service.handler
    def add(ctx: Context[Order], item: str) -> int:
        if item in ctx.state.items:
            raise Reject(f"{item} is there")
        ctx.state.items.append(item)
        return len(ctx.state.items)

    @service.handler
    def total(ctx: Context[Order]) -> Total:
        return Total(items=ctx.state.items, count=len(ctx.state.items))

    return service


def slow(gate: asyncio.Event) -> Service:
    """A service whose one handler returns once the gate is open."""
    service = Service("slow")
    loop = asyncio.get_running_loop()
    service.state(Order)

    @service.handler
    def wait(ctx: Context[Order], item: str) -> list[str]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(60)
        ctx.state.items.append(item)
        return ctx.state.items

    return service


@pytest.fixture
def working(deployment: Deployment) -> Working:
    return Working(deployment)


async def requests(working: Working) -> int:
    """Number of requests that were ever stored."""
    streams = working.deployment.streams
    return (await streams.js.stream_info(streams.requests_stream)).state.last_seq


async def test_a_service_that_was_never_served_is_named_and_nothing_is_sent(
    working: Working,
) -> None:
    key = working.key("order", "o-17")
    with pytest.raises(NoSuchService, match=r"'order'$"):
        await key.call("add", "cup")
    async with working.worker(orders()):
        for use in (key.call("add", "cup"), key.send("add", "cup"), key.cancel("daily")):
            with pytest.raises(NoSuchService, match="did you mean 'orders'"):
                await use
        with pytest.raises(NoSuchService, match="there is orders"):
            await working.key("x", "o-17").call("add", "cup")

        assert await requests(working) == 0


async def test_a_handler_that_there_is_not_is_named_and_nothing_is_sent(working: Working) -> None:
    async with working.worker(orders()):
        with pytest.raises(CallRejected, match=r"no handler ad, but add, total; did you mean add"):
            await working.key("orders", "o-17").call("ad", "cup")

        assert await requests(working) == 0


async def test_a_handler_that_a_newer_worker_has_is_found(working: Working) -> None:
    """The client has read the description of the older one before."""
    key, newer = working.key("orders", "o-17"), orders(version=2)
    newer.upgrade_call(1)(lambda handler, arguments: (handler, arguments))

    @newer.handler
    def clear(ctx: Context[Order]) -> None:
        ctx.state.items.clear()

    async with working.worker(orders()):
        assert await key.call("add", "cup") == 1
    async with working.worker(newer):
        await key.call("clear")
        assert (await key.state()).value == {"items": []}


async def test_a_result_is_made_into_the_type_that_the_caller_names(working: Working) -> None:
    key = working.key("orders", "o-17")
    async with working.worker(orders()):
        assert await key.call("add", "cup", returns=int) == 1
        assert await key.call("total", returns=Total) == Total(items=["cup"], count=1)
        with pytest.raises(ReadRefused, match="the result is no"):
            await key.call("total", returns=int)
        assert await key.call("total") == {"items": ["cup"], "count": 1}


async def test_a_call_that_is_given_up_takes_effect_all_the_same(working: Working) -> None:
    """It was not waited for long enough, or cancelled: its id asks for the answer."""
    gate, key = asyncio.Event(), working.key("slow", "k")
    async with working.worker(slow(gate)):
        with pytest.raises(
            CallTimeout, match=r"call wait of slow/k had no answer in 0\.1 s"
        ) as out:
            await key.call("wait", "late", timeout=0.1)
        given = RequestId()
        calling = asyncio.create_task(key.call("wait", "given up", request_id=given))
        await eventually(lambda: has_stored(working, 2))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        with pytest.raises(CallTimeout, match="is not settled"):
            await key.outcome(given)
        gate.set()

        assert await key.call("wait", "late", request_id=out.value.request_id) == ["late"]
        await eventually(lambda: is_settled(key, given))
        assert await key.outcome(given, returns=list[str]) == ["late", "given up"]
        assert (await key.state()).value == {"items": ["late", "given up"]}


async def has_stored(working: Working, number: int) -> bool:
    return await requests(working) >= number


async def is_settled(key: Any, request: RequestId) -> bool:
    try:
        await key.outcome(request)
    except CallTimeout:
        return False
    return True


async def test_a_call_repeated_under_its_id_has_one_effect_and_one_answer(working: Working) -> None:
    key, given = working.key("orders", "o-17"), RequestId()
    async with working.worker(orders()):
        assert await key.call("add", "cup", request_id=given) == 1
        assert await key.call("add", "cup", request_id=str(given)) == 1
        assert await key.send("add", "cup", request_id=given) == given
        with pytest.raises(RequestIdUsed):
            await key.call("add", "saucer", request_id=given)
        refused = RequestId()
        for _ in range(2):
            with pytest.raises(CallRejected, match=r"^cup is there$"):
                await key.call("add", "cup", request_id=refused)
        with pytest.raises(CallRejected, match=r"^cup is there$"):
            await key.outcome(refused)

        assert (await key.state()).value == {"items": ["cup"]}


async def test_a_call_is_known_under_its_id_also_once_its_service_was_upgraded(
    working: Working,
) -> None:
    """The version that a caller knows is not part of what it asks for."""
    given, newer = RequestId(), orders(version=2)
    newer.upgrade_call(1)(lambda handler, arguments: (handler, arguments))
    async with working.worker(orders()):
        assert await working.key("orders", "o-17").call("add", "cup", request_id=given) == 1
    async with working.worker(newer):
        await eventually(lambda: is_known_as(working, 2))
        key = working.key("orders", "o-17")
        assert await key.call("add", "cup", request_id=given) == 1
        with pytest.raises(RequestIdUsed):
            await key.call("add", "saucer", request_id=given)
        assert (await key.state()).value == {"items": ["cup"]}


async def is_known_as(working: Working, version: int) -> bool:
    described = await working.deployment.client.service("orders").describe()
    return described.version == version


@pytest.mark.parametrize("encoding", [codecs.CBOR, codecs.JSON])
async def test_arguments_beyond_the_limit_are_refused_whoever_sends_them(
    working: Working, encoding: str
) -> None:
    """This client sends nothing; another one hears the same, and leaves no dead letter.

    The size of the arguments as JSON is limited, whatever encoding they come in.
    """
    key, target = working.key("orders", "o-17"), key_of("orders", "o-17")
    largest, reason = 256 * 1024 - len('[""]'), r"arguments of add have 262,145 bytes, more than"
    async with working.worker(orders()):
        with pytest.raises(TooLarge, match=reason):
            await key.call("add", "x" * (largest + 1))
        assert await requests(working) == 0
        for timer in (None, TimerChange(name="t", after=3600)):
            call = CallRequestV1(
                id=RequestId(),
                **target._asdict(),
                service="orders",
                key="o-17",
                handler="add",
                arguments=["x" * (largest + 1)],
                timer=timer,
            )
            headers, payload = CallRequest.encode(call, encoding)
            sent = await key._sender.send_encoded_with_reply(target, call.id, headers, payload)
            status = (await sent).status
            assert isinstance(status, ErrorStatus)
            assert re.match(f"refused: the {reason}", status.error.message)

        with pytest.raises(CallRejected, match="is no cron: it is too long"):
            await key.send("add", "x", every="* * * * 0" + 500 * ",0", timer="daily")
        assert await key.call("add", "x" * (largest - 100)) == 1
        assert (await key.state()).timers == ()


async def test_the_outcome_of_what_was_never_stored_is_unknown(working: Working) -> None:
    async with working.worker(orders()):
        with pytest.raises(OutcomeUnknown, match="neither waiting nor remembered"):
            await working.key("orders", "o-17").outcome(RequestId())


async def test_a_declared_service_is_called_as_its_version_before_it_is_served(
    working: Working,
) -> None:
    declared = orders(version=2)
    declared.upgrade_call(1)(lambda handler, arguments: (handler, arguments))
    key = working.deployment.client.service(declared).key("o-17")

    calling = asyncio.create_task(key.call("add", "cup"))

    async with working.worker(declared):
        assert await calling == 1


async def test_timers_are_listed_moved_and_cancelled_by_name(working: Working) -> None:
    key = working.key("orders", "o-17")
    async with working.worker(orders()):
        await key.send("add", "tea", every="0 7 * * 1-5", zone="Europe/Berlin", timer="daily")
        once = await key.send("add", "cup", after=3600)
        await key.send("add", "tea", every="0 8 * * 1-5", zone="Europe/Berlin", timer="daily")

        timers = {each.name: each for each in await key.timers()}
        assert timers.keys() == {"daily", str(once)}
        assert (timers["daily"].every, timers["daily"].zone) == ("0 8 * * 1-5", "Europe/Berlin")
        for name in timers:
            await key.cancel(name)
        with pytest.raises(CallRejected, match="no timer 'daily'"):
            await key.cancel("daily")

        state = await key.state()
        assert (state.timers, state.value) == ((), None)
        assert state.commit > 0


async def test_a_thread_without_a_loop_calls_and_sends(working: Working) -> None:
    def use(url: str) -> tuple[Any, Any]:
        with sync.connect(url) as client:
            key = client.service("orders").key("o-17")
            sent = key.send("add", "cup")
            return key.call("add", "saucer"), key.outcome(sent)

    async with working.worker(orders()):
        assert await asyncio.to_thread(use, working.deployment.nats.url) == (2, 1)


async def test_an_older_worker_does_not_take_back_the_description_of_a_newer_one(
    working: Working,
) -> None:
    newer = orders(version=2)
    newer.upgrade_call(1)(lambda handler, arguments: (handler, arguments))
    for service in (newer, orders()):
        async with working.worker(service):
            assert (await working.deployment.client.service("orders").describe()).version == 2
