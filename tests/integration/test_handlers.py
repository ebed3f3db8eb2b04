"""Services and their handlers, through a real NATS: each call once, in order, with its answer."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from rebaser_client import CallRejected, connect
from rebaser_client.errors import RequestDead, RequestRefused
from rebaser_core.calls import key_of, service_id
from rebaser_core.jetstream import KeyValue
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.handlers import Context, Reject, Service
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.sending import Alarms
from rebaser_server.handlers.service import ServiceMisused
from rebaser_server.ops.dead_letters import replay
from rebaser_server.processor.run import ChangeSetRun
from rebaser_server.service import composition
from rebaser_server.settings.settings import OpsSettings
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT
from tests.helpers.workers import Working


@dataclass
class Order:
    items: list[str] = field(default_factory=list)
    paid: bool = False


def order_service(name: str = "orders", **options: Any) -> Service:
    """A service whose state is an `Order`."""
    orders = Service(name, **options)
    orders.state(Order)

    @orders.handler
    async def add(ctx: Context[Order], item: str) -> int:
        if ctx.state.paid:
            raise Reject("the order is paid")
        ctx.state.items.append(item)
        return len(ctx.state.items)

    @orders.handler
    def pay(ctx: Context[Order]) -> list[str]:
        ctx.state.paid = True
        return ctx.state.items

    @orders.handler
    def show(ctx: Context[Order]) -> Order:
        return ctx.state

    return orders


@pytest.fixture
def working(deployment: Deployment) -> Working:
    return Working(deployment)


async def test_a_call_changes_the_state_of_its_key_and_answers(working: Working) -> None:
    order, other = working.key("orders", "o-17"), working.key("orders", "o-18")
    async with working.worker(order_service()):
        assert await order.call("add", "cup") == 1
        assert await order.call("add", item="saucer") == 2
        assert await other.call("add", "spoon") == 1
        assert await order.call("show") == {"items": ["cup", "saucer"], "paid": False}


async def test_a_rejection_is_final_and_changes_nothing(working: Working) -> None:
    order = working.key("orders", "o-17")
    refusing = order_service()

    @refusing.handler
    def spoil(ctx: Context[Order]) -> None:
        ctx.state.items.append("spoilt")
        ctx.to("o-18").send("add", "sent")
        raise Reject("no")

    async with working.worker(refusing):
        await order.call("add", "cup")
        with pytest.raises(CallRejected, match=r"^no$"):
            await order.call("spoil")
        await order.call("pay")
        with pytest.raises(CallRejected, match="the order is paid"):
            await order.call("add", "late")

        assert (await order.call("show"))["items"] == ["cup"]
        assert (await working.key("orders", "o-18").call("show"))["items"] == []


async def test_an_action_that_services_do_not_know_is_refused(working: Working) -> None:
    async with working.worker(order_service()):
        await working.key("orders", "o-17").call("add", "cup")

        with pytest.raises(RequestRefused, match="there is no action 'recompute'"):
            await working.deployment.client.change_set(*key_of("orders", "o-17")).recompute()


async def test_a_rejection_that_is_no_text_of_unicode_is_final_too(working: Working) -> None:
    refusing = order_service()

    @refusing.handler
    def spoil(ctx: Context[Order]) -> None:
        raise Reject("half a pair: \ud800")

    async with working.worker(refusing):
        with pytest.raises(CallRejected, match=r"^half a pair: \?$"):
            await working.key("orders", "o-17").call("spoil")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((["cup"],), "argument item: Input should be a valid string"),
        ((), "missing a required argument: 'item'"),
        (("cup", "saucer"), "too many positional arguments"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(
    working: Working, arguments: tuple[Any, ...], reason: str
) -> None:
    async with working.worker(order_service()):
        with pytest.raises(CallRejected, match=reason):
            await working.key("orders", "o-17").call("add", *arguments)


async def test_a_failing_handler_is_tried_again_and_ends_in_the_dead_letters(
    working: Working,
) -> None:
    failing, tried = order_service(), []

    @failing.handler
    def fail(ctx: Context[Order]) -> None:
        ctx.state.items.append("half done")
        ctx.to("o-18").send("add", "never")
        tried.append(ctx.request_id)
        raise ValueError("boom")

    order = working.key("orders", "o-17")
    async with working.worker(failing):
        await order.call("add", "cup")
        with pytest.raises(
            RequestDead, match=r"ValueError: boom \(at .*test_handlers\.py:\d+ in fail"
        ):
            await order.call("fail")

        assert len(tried) == 2
        assert len(set(tried)) == 1
        assert (await order.call("show"))["items"] == ["cup"]
        assert (await working.key("orders", "o-18").call("show"))["items"] == []


async def test_a_key_whose_calls_all_failed_is_found_by_its_name(working: Working) -> None:
    """People look for it: there is a dead letter of it."""
    failing = order_service()

    @failing.handler
    def fail(ctx: Context[Order]) -> None:
        raise ValueError("boom")

    async with working.worker(failing):
        with pytest.raises(RequestDead):
            await working.key("orders", "o-17").call("fail")

        async def is_found() -> bool:
            found = await working.deployment.client.workspaces.change_sets(service_id("orders"))
            return [each.name for each in found] == ["o-17"]

        await eventually(is_found)


async def test_a_call_that_is_replayed_has_the_author_that_it_had(working: Working) -> None:
    """Code that is declared around handlers may authorise calls by their author."""
    service, authors, mended = order_service(), list[str | None](), threading.Event()

    @service.handler
    def sign(ctx: Context[Order]) -> None:
        authors.append(ctx.author)
        if not mended.is_set():
            raise ValueError("boom")

    deployment, order = working.deployment, key_of("orders", "o-17")
    async with (
        working.worker(service),
        connect(deployment.nats.url, author="Zoë") as client,
    ):
        with pytest.raises(RequestDead):
            await client.service("orders").key("o-17").call("sign")
        before = len(authors)
        mended.set()
        await replay(deployment.streams, deployment.archive(order).batches, client, 1)

        await eventually(lambda: len(authors) > before)
    assert {*authors} == {"Zoë"}


@pytest.mark.parametrize("stored", [b'{"v9": {}}', b"{", b""], ids=["newer", "malformed", "empty"])
async def test_records_that_a_worker_cannot_read_end_none(working: Working, stored: bytes) -> None:
    """People lack a name then; calls need none."""
    streams, order = working.deployment.streams, working.key("orders", "o-17")
    async with working.worker(order_service()):
        assert await order.call("add", "cup") == 1
    bucket, service = KeyValue(streams.js, streams.change_sets_bucket), service_id("orders")
    described = f"{service}.service.description"
    was = await bucket.get(described)
    for key in (str(service), str(key_of("orders", "o-17")), described):
        await bucket.put(key, stored)

    async with working.worker(order_service()):
        await bucket.put(described, was.value)  # for the client, which asks for it
        assert await order.call("add", "saucer") == 2
        await working.key("orders", "o-18").call("add", "cup")
        await eventually(lambda: _is_there(bucket, str(key_of("orders", "o-18"))))


async def _is_there(bucket: KeyValue, key: str) -> bool:
    return key in await bucket.keys(key)


async def test_calls_are_counted_by_handler_and_outcome(working: Working) -> None:
    """A handler that no service declares, of which callers name any number, has one count."""
    service = order_service("metered")

    @service.handler
    def fail(ctx: Context[Order]) -> None:
        raise ValueError("boom")

    deployment, ops = working.deployment, OpsSettings(port=0)
    key = deployment.client.service(service).key("o-17")
    # Made anew with a long lease: a call that is made again is counted again.
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    async with working.worker(service, ops=ops, ack_wait=timedelta(minutes=1)) as page:

        async def calls() -> dict[str, float]:
            shown = await asyncio.to_thread(urlopen, f"{page}metrics")
            with shown:
                lines = shown.read().decode().splitlines()
            pairs = [line.rsplit(" ", 1) for line in lines if 'service="metered"' in line]
            left_out = ("_bucket", "_created")
            return {
                name: float(value)
                for name, value in pairs
                if not any(each in name for each in left_out)
            }

        before = await calls()
        await key.call("add", "cup")
        await key.call("add", "saucer")
        await key.call("pay")
        for handler, arguments, error in (
            ("add", ["spoon"], CallRejected),
            ("add", [], CallRejected),
            ("fail", [], RequestDead),
            ("no_such", [], CallRejected),
            ("nor_such", [], CallRejected),
        ):
            with pytest.raises(error):
                await key.call(handler, *arguments)
        after = await calls()

    assert set(before.values()) == {0}
    assert before.keys() == after.keys()
    grown = {name: value for name, value in after.items() if value and "_sum" not in name}
    assert grown == {
        _counted("add", "returned"): 2,
        _counted("add", "rejected"): 1,
        _counted("add", "refused"): 1,
        _counted("pay", "returned"): 1,
        _counted("fail", "failed"): 2,
        _counted("(unknown)", "refused"): 2,
        'rebaser_call_seconds_count{handler="add",service="metered"}': 3,
        'rebaser_call_seconds_count{handler="pay",service="metered"}': 1,
        'rebaser_call_seconds_count{handler="fail",service="metered"}': 2,
    }


def _counted(handler: str, outcome: str) -> str:
    labels = f'handler="{handler}",outcome="{outcome}",service="metered"'
    return f"rebaser_calls_total{{{labels}}}"


async def test_calls_of_a_key_are_made_one_after_the_other_and_keys_beside_each_other(
    working: Working,
) -> None:
    service, running, together = Service("slow"), set(), asyncio.Event()

    @service.handler
    async def wait(ctx: Context[None], number: int) -> int:
        assert ctx.key not in running
        running.add(ctx.key)
        if len(running) > 1:
            together.set()
        await together.wait()
        await asyncio.sleep(0.02)
        running.discard(ctx.key)
        return number

    async with working.worker(service):
        keys = [working.key("slow", f"k-{number}") for number in range(8)]
        numbers = await asyncio.gather(
            *(key.call("wait", number) for key in keys for number in range(5))
        )

    assert numbers == list(range(5)) * 8


async def test_the_answer_to_a_call_waits_for_no_longer_one_behind_it(working: Working) -> None:
    service, begun, go_on = Service("counts"), threading.Semaphore(0), threading.Semaphore(0)

    @service.handler
    def count(ctx: Context[Any]) -> int:
        ctx.state = (ctx.state or 0) + 1
        return int(ctx.state)

    @service.handler
    def dwell(ctx: Context[Any]) -> None:
        begun.release()
        go_on.acquire()

    key, rounds = working.key("counts", "k"), 20
    counted = list[asyncio.Task[int]]()
    async with working.worker(service):
        await key.send("dwell")
        await asyncio.to_thread(begun.acquire)
        # In turns, and many, so that they are committed together.
        for number in range(rounds):
            counted.append(asyncio.create_task(key.call("count")))
            await eventually(partial(waits, working, 2 * number + 2))
            await key.send("dwell")
        try:
            for each in counted:
                go_on.release()
                await asyncio.to_thread(begun.acquire)
                await eventually(partial(is_over, each))
        finally:
            for _ in range(2 * rounds):
                go_on.release()
        assert [each.result() for each in counted] == list(range(1, rounds + 1))


async def is_over(task: asyncio.Task[int]) -> bool:
    return task.done()


async def waits(working: Working, number: int) -> bool:
    """Whether that many calls are stored."""
    streams, subject = working.deployment.streams, "rebaser.requests.>"
    there = await streams.js.stream_subjects(streams.requests_stream, subject)
    return sum(there.values()) == number


async def test_an_async_handler_and_one_in_a_thread_that_never_return_fail_alone(
    working: Working,
) -> None:
    service, forever = order_service(timeout=1), threading.Event()

    @service.handler
    async def sleep(ctx: Context[Order]) -> None:
        await asyncio.sleep(3600)

    @service.handler
    def hang(ctx: Context[Order]) -> None:
        forever.wait()

    try:
        async with working.worker(service):
            sleeping = asyncio.create_task(working.key("orders", "sleeping").call("sleep"))
            hanging = asyncio.create_task(working.key("orders", "hanging").call("hang"))
            assert await working.key("orders", "o-17").call("add", "cup") == 1
            for stuck in (sleeping, hanging):
                with pytest.raises(RequestDead, match="took longer than 1 s"):
                    await stuck
            assert await working.key("orders", "hanging").call("add", "cup") == 1
    finally:
        forever.set()


async def of_its_own(block: Callable[[], object]) -> None:
    block()


async def in_a_child_task(block: Callable[[], object]) -> None:
    await asyncio.gather(of_its_own(block), asyncio.sleep(3600))


async def in_a_callback(block: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(block)
    await asyncio.sleep(3600)


@pytest.mark.parametrize("how", [of_its_own, in_a_child_task, in_a_callback])
async def test_a_handler_that_blocks_its_loop_fails_and_others_go_on(
    working: Working, how: Callable[[Callable[[], object]], Awaitable[None]]
) -> None:
    service, forever = order_service(timeout=1), threading.Event()

    @service.handler
    async def block(ctx: Context[Order]) -> None:
        await how(forever.wait)

    try:
        with capture_logs() as logged:
            async with working.worker(service):
                blocking = asyncio.create_task(working.key("orders", "bad").call("block"))
                with pytest.raises(RequestDead, match="took longer than 1 s"):
                    await blocking
                others = [
                    working.key("orders", f"o-{number}").call("add", "cup") for number in range(5)
                ]
                assert await asyncio.gather(*others) == [1] * 5
    finally:
        forever.set()

    named = [each for each in logged if each["event"] == "handler blocks the loop of handlers"]
    assert named
    who = "a callback" if how is in_a_callback else "block"
    assert all(who in each["handler"] for each in named)


@pytest.mark.parametrize("how", [of_its_own, in_a_child_task])
async def test_calls_beside_one_that_blocks_their_loop_are_made_again_and_count_nothing(
    working: Working, how: Callable[[Callable[[], object]], Awaitable[None]]
) -> None:
    service, began, forever = order_service(timeout=1), threading.Event(), threading.Event()

    @service.handler
    async def block(ctx: Context[Order]) -> None:
        began.set()
        await how(forever.wait)

    try:
        async with working.worker(service, max_attempts=1):
            blocking = asyncio.create_task(working.key("orders", "bad").call("block"))
            await asyncio.to_thread(began.wait)
            others = [
                working.key("orders", f"o-{number}").call("add", "cup") for number in range(5)
            ]
            assert await asyncio.gather(*others) == [1] * 5
            with pytest.raises(RequestDead, match="took longer than 1 s"):
                await blocking
    finally:
        forever.set()


async def test_a_task_that_a_call_left_behind_blocks_others_for_no_longer_than_a_call_may_take(
    working: Working,
) -> None:
    service, forever, left = order_service(timeout=1), threading.Event(), set[Any]()

    @service.handler
    async def leave(ctx: Context[Order]) -> None:
        left.add(asyncio.create_task(of_its_own(forever.wait)))

    try:
        async with working.worker(service, max_attempts=1):
            await working.key("orders", "bad").call("leave")
            others = [
                working.key("orders", f"o-{number}").call("add", "cup") for number in range(5)
            ]
            assert await asyncio.gather(*others) == [1] * 5
    finally:
        forever.set()


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [StopIteration, Unreadable])
@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_an_error_that_no_future_or_log_takes_fails_its_call_at_once(
    working: Working, error: type[Exception], is_wrapped: bool
) -> None:
    service = order_service(timeout=3)

    @service.handler
    def fail(ctx: Context[Order]) -> None:
        raise error

    if is_wrapped:

        @service.wrap
        async def around(ctx: Any, handler: str, call_next: Callable[[], Awaitable[Any]]) -> Any:
            return await call_next()

    async with working.worker(service):
        with pytest.raises(RequestDead, match=error.__name__):
            await working.key("orders", "o-17").call("fail")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_what_a_handler_raises_ends_that_call_alone(
    working: Working, error: type[BaseException], kind: str
) -> None:
    service = order_service()

    async def in_loop(ctx: Context[Order]) -> None:
        raise error("leave")

    def in_thread(ctx: Context[Order]) -> None:
        raise error("leave")

    service.handler(name="leave")(in_loop if kind == "async def" else in_thread)
    async with working.worker(service):
        with pytest.raises(RequestDead, match=f"{error.__name__}: leave"):
            await working.key("orders", "o-17").call("leave")
        assert await working.key("orders", "o-17").call("add", "cup") == 1


async def test_what_cannot_be_kept_is_a_dead_letter_at_once(working: Working) -> None:
    service, calls = Service("wide"), []

    @service.handler
    def give(ctx: Context[Any], what: str) -> Any:
        calls.append(what)
        if what == "nan":
            return float("nan")
        if what == "object":
            return object()
        if what == "sends":
            for _ in range(3):
                ctx.to("other").send("give", "x" * 100_000)
            return None
        ctx.state = "x" * 300_000 if what == "large" else {1: object()}
        return None

    reasons = {
        "nan": "what give returned cannot be kept as JSON",
        "object": "what give returned cannot be kept as JSON",
        "large": r"the state of wide would have 300,002 bytes, more than 262,144",
        "state": "the state of wide cannot be kept as JSON",
        "sends": r"the arguments that give sends have 300,012 bytes, more than 262,144",
    }
    async with working.worker(service):
        for what, reason in reasons.items():
            with pytest.raises(RequestDead, match=reason):
                await working.key("wide", "k").call("give", what)

    assert calls == list(reasons)


async def test_calls_of_a_newer_version_and_of_another_service_wait_for_their_worker(
    working: Working,
) -> None:
    new = order_service(version=2)
    order = working.deployment.client.service(new).key("o-17")
    async with working.worker(order_service()):
        waiting = asyncio.create_task(order.call("add", "cup"))
        elsewhere = await working.key("orders", "o-18").call("add", "spoon")
        assert elsewhere == 1
        await asyncio.sleep(0.5)
        assert not waiting.done()
    async with working.worker(new):
        assert await waiting == 1


async def test_a_call_of_a_newer_version_is_offered_again_soon_and_then_less_often(
    working: Working,
) -> None:
    """While both versions run, the next worker that it is offered to may be a newer one."""
    new = order_service(version=2)
    order = working.deployment.client.service(new).key("o-17")
    with capture_logs() as logs:
        async with working.worker(order_service()):
            waiting = asyncio.create_task(order.call("add", "cup"))

            async def is_offered() -> bool:
                return sum(each["event"] == "retry scheduled" for each in logs) == 3

            await eventually(is_offered)
    async with working.worker(new):
        assert await waiting == 1


async def test_an_older_state_and_an_older_call_are_upgraded(working: Working) -> None:
    order = working.key("orders", "o-17")
    async with working.worker(order_service()):
        await order.call("add", "cup")
    newer = Service("orders", version=2)

    @newer.state(version=2)
    class Basket:
        count: int = 0

    @newer.upgrade(1)
    def basket(old: dict[str, Any]) -> dict[str, Any]:
        return {"count": len(old["items"])}

    @newer.upgrade_call(1)
    def by_number(handler: str, arguments: Any) -> tuple[str, Any]:
        return "put", [1]

    @newer.handler
    def put(ctx: Context[Basket], number: int) -> int:
        ctx.state.count += number
        return ctx.state.count

    async with working.worker(newer):
        assert await order.call("add", "saucer") == 2


async def test_a_call_sends_others_with_its_commit_in_order(working: Working) -> None:
    service = order_service()

    @service.handler
    def spread(ctx: Context[Order], to: str, number: int) -> None:
        for each in range(number):
            ctx.to(to).send("add", f"{ctx.key} {each}")

    async with working.worker(service):
        senders = [working.key("orders", f"s-{number}") for number in range(4)]
        await asyncio.gather(*(each.call("spread", "target", 10) for each in senders))
        target, items = working.key("orders", "target"), []

        async def has_all() -> bool:
            items[:] = (await target.call("show"))["items"]
            return len(items) >= 40

        await eventually(has_all)

    assert len(items) == 40
    for number in range(4):
        of_one = [item for item in items if item.startswith(f"s-{number} ")]
        assert of_one == [f"s-{number} {each}" for each in range(10)]


async def test_a_timer_calls_once_also_if_its_worker_stops_meanwhile(working: Working) -> None:
    order = working.key("orders", "o-17")
    with mock.patch.object(Alarms, "_hear", endless):  # else one rings before it is moved
        async with working.worker(order_service()):
            await order.send("add", "later", after=1.5)
            await order.send("add", "moved", after=0.1, timer="moved")
            await order.send("add", "moved", after=0.7, timer="moved")
            await order.send("add", "cancelled", after=1.0, timer="cancelled")
            await order.cancel("cancelled")
            assert (await order.call("show"))["items"] == []
    await asyncio.sleep(1)
    async with working.worker(order_service()):

        async def has_two() -> bool:
            return len((await order.call("show"))["items"]) >= 2

        await eventually(has_two)
        await asyncio.sleep(1)
        assert sorted((await order.call("show"))["items"]) == ["later", "moved"]


async def endless(*_: Any) -> None:
    await asyncio.Event().wait()


async def test_a_timer_that_cannot_be_set_is_refused(working: Working) -> None:
    order = working.key("orders", "o-17")
    async with working.worker(order_service()):
        with pytest.raises(CallRejected, match="is no cron"):
            await order.send("add", "x", every="61 * * * *", timer="t")
        with pytest.raises(CallRejected, match=r"is no cron|never comes"):
            await order.send("add", "x", every="0 0 30 2 *", timer="t")
        with pytest.raises(CallRejected, match="no time zone 'Europe/Nowhere'"):
            await order.send("add", "x", every="* * * * *", zone="Europe/Nowhere", timer="t")
        with pytest.raises(CallRejected, match="too many positional arguments"):
            await order.send("add", "x", "y", after=3600)
        assert not await order.timers()


async def test_the_context_tells_of_the_call(working: Working) -> None:
    service, seen = Service("seen"), []

    @service.handler
    def look(ctx: Context[None]) -> None:
        seen.append(ctx)

    before = datetime.now(UTC)
    async with working.worker(service):
        await working.key("seen", "k").call("look")
    [ctx] = seen
    assert (ctx.service, ctx.key) == ("seen", "k")
    assert abs(ctx.time - before) < timedelta(seconds=60)
    assert ctx.request_id


async def test_what_is_around_calls_sees_them_all_and_may_reject(working: Working) -> None:
    service, seen = order_service(), []

    @service.wrap
    async def watch(ctx: Any, handler: str, call_next: Callable[[], Any]) -> Any:
        if ctx.key == "forbidden":
            raise Reject("not yours")
        seen.append((ctx.key, handler))
        return await call_next()

    async with working.worker(service):
        assert await working.key("orders", "o-17").call("add", "cup") == 1
        assert await working.key("orders", "o-17").call("pay") == ["cup"]
        with pytest.raises(CallRejected, match="not yours"):
            await working.key("orders", "forbidden").call("add", "cup")

    assert seen == [("o-17", "add"), ("o-17", "pay")]


async def test_a_state_outlives_its_worker_with_and_without_a_checkpoint(working: Working) -> None:
    few, many = working.key("orders", "few"), working.key("orders", "many")
    async with working.worker(order_service()):
        assert await few.call("add", "cup") == 1
        await asyncio.gather(*(many.call("add", f"{number}") for number in range(150)))
        await working.deployment.at_rest()
    application = HandlerApplication(
        working.deployment.streams,
        working.deployment.archive(key_of("orders", "few")).batches,
        {},
    )
    assert application.load(key_of("orders", "few")) is None
    checkpoint = application.load(key_of("orders", "many"))
    assert checkpoint is not None
    async with working.worker(order_service()):
        assert await few.call("add", "saucer") == 2
        assert await many.call("add", "last") == 151


async def test_one_worker_serves_several_services(working: Working) -> None:
    async with working.worker(order_service("one"), order_service("two")):
        assert await working.key("one", "k").call("add", "cup") == 1
        assert await working.key("two", "k").call("add", "cup") == 1


APP = """
import os, time
from dataclasses import field
from pathlib import Path
from rebaser_server import Context, Service

counts = Service("counts")

@counts.state
class Count:
    total: int = 0

@counts.handler
def add(ctx: Context[Count], number: int) -> int:
    with Path("calls").open("a") as calls:
        calls.write(f"{number}\\n")
    if number == 13 and Path("calls").read_text().split().count("13") == 1:
        os.kill(os.getpid(), 9)
    ctx.state.total += number
    return ctx.state.total
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "counting.py").write_text(APP)
    return folder


async def serving(
    deployment: Deployment, folder: Path, *options: str
) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "REBASER_NATS__URL": deployment.nats.url,
        "REBASER_STORE__ROOT": deployment.settings.store.root,
        "REBASER_ACK_WAIT": "PT2S",
        "REBASER_QUIET_PERIOD": "PT0.3S",
        "REBASER_RECONCILE_INTERVAL": "PT1S",
    }
    command = sys.executable, "-m", "rebaser_server", "serve", "--app", "counting:counts", *options
    return await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment)


async def test_a_worker_that_is_killed_in_a_call_leaves_it_to_be_made_once(
    deployment: Deployment, app: Path
) -> None:
    first, second = await serving(deployment, app), None
    try:
        client = deployment.client
        await eventually(lambda: has_service(deployment, "counts"), within=120)
        key = client.service("counts").key("k")
        assert await key.call("add", 1) == 1
        deadly = asyncio.create_task(key.call("add", 13))
        assert await first.wait() == -9
        second = await serving(deployment, app)
        assert await deadly == 14
        assert await key.call("add", 1) == 15
    finally:
        for each in (first, second):
            if each is not None and each.returncode is None:
                each.terminate()
                assert await each.wait() == 0
    assert (app / "calls").read_text().split() == ["1", "13", "13", "1"]


async def has_service(deployment: Deployment, name: str) -> bool:
    found = await deployment.client.workspaces.services()
    return name in {each.name for each in found}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_reloads_changed_code_and_stops_with_its_program(
    deployment: Deployment, app: Path, stop: signal.Signals
) -> None:
    worker = await serving(deployment, app, "--reload")
    try:
        await eventually(lambda: has_service(deployment, "counts"), within=120)
        key = deployment.client.service("counts").key("k")
        assert await key.call("add", 1) == 1
        (app / "counting.py").write_text(APP.replace("total += number", "total += 10 * number"))

        async def adds_tens() -> bool:
            before = await key.call("add", 0)
            return await key.call("add", 1) == before + 10

        await eventually(adds_tens, within=120)
        [child] = children_of(worker.pid)
    finally:
        worker.send_signal(stop)
        assert await worker.wait() == 0
    assert not is_there(child)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_there(pid: str) -> bool:
    return Path("/proc", pid).exists()


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda s: s.handler(no_context), "context"),
        (lambda s: (s.handler(fine), s.handler(fine)), "two handlers fine"),
        (lambda s: s.handler(name="a b")(fine), "no name of a handler"),
        (lambda s: (s.handler(fine), s.state(Needy), s.prepare()), "without arguments"),
        (lambda s: (s.handler(fine), s.state(version=3)(Order), s.prepare()), r"upgrade\(1\)"),
        (lambda s: s.prepare(), "has no handler"),
    ],
)
def test_a_service_that_cannot_work_is_refused_before_it_is_served(
    declare: Callable[[Service], Any], reason: str
) -> None:
    with pytest.raises(ServiceMisused, match=reason):
        declare(Service("wrong"))


def no_context() -> None:
    """Lacks its first parameter."""


def fine(ctx: Context[Any]) -> None:
    """Is a handler."""


@dataclass
class Needy:
    amount: int


async def test_a_worker_frees_garbage_that_became_old(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks at old objects too rarely: runs of keys that have ended would stay.

    Each of them is garbage with a cycle, and a run lives long enough to become old.
    """

    class Node:
        itself: Any

    def old_garbage() -> weakref.ref[Node]:
        node = Node()
        node.itself = node
        for generation in range(2):
            gc.collect(generation)
        return weakref.ref(node)

    collect = partial(composition.collect_garbage, every=0.01)
    monkeypatch.setattr(composition, "collect_garbage", collect)
    garbage: list[weakref.ref[Node]] = []

    def is_freed() -> bool:
        garbage.append(old_garbage())
        return any(each() is None for each in garbage)

    async with working.worker(order_service()):
        await eventually(is_freed)


async def test_a_run_that_has_ended_is_freed_without_a_look_for_garbage(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of its key may be large, and the limit of the states that are kept must hold."""
    seldom = partial(composition.collect_garbage, every=3600)
    monkeypatch.setattr(composition, "collect_garbage", seldom)

    def runs() -> int:
        return sum(isinstance(each, ChangeSetRun) for each in gc.get_objects())

    counting = order_service()

    @counting.handler
    def count(ctx: Context[Order]) -> int:
        return runs()

    async with working.worker(counting, quiet_period=timedelta(seconds=2)):
        gc.collect()
        gc.disable()
        try:
            assert await working.key("orders", "o-1").call("count") == 1
            await eventually(lambda: runs() == 0, within=60)
        finally:
            gc.enable()
