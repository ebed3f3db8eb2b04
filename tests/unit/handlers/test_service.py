"""Declarations of services, and what a handler's context collects."""

import json
from dataclasses import field
from datetime import UTC, date, datetime, timedelta
from math import nan
from typing import Any

import pytest
from pydantic import BaseModel, Field

from rebaser_server.handlers import Context, Service
from rebaser_server.handlers.service import (
    MAX_SENDS,
    CallRefused,
    CallUnkeepable,
    ServiceMisused,
)


def lists() -> Service:
    service = Service("lists", version=3)

    @service.state
    class Words:
        words: list[str] = field(default_factory=list)

    @service.handler
    def add(ctx: Context[Words], word: str) -> int:
        ctx.state.words.append(word)
        return len(ctx.state.words)

    @service.upgrade_call(1)
    def _second(name: str, arguments: Any) -> tuple[str, Any]:
        return name, [f"{arguments[0]}, of 1"]

    @service.upgrade_call(2)
    def _third(name: str, arguments: Any) -> tuple[str, Any]:
        return name, [f"{arguments[0]}, of 2"]

    return service


def service_with_state(version: int) -> Service:
    service = Service("lists")

    @service.state(version=version)
    class State:
        steps: list[int] = field(default_factory=list)

    @service.handler
    def do(ctx: Context[State]) -> None: ...

    for step in range(1, version):
        service.upgrade(step)(lambda old, step=step: {"steps": [*old["steps"], step]})
    return service


def test_a_context_collects_what_is_sent_in_order() -> None:
    ctx = lists().context("k")
    ctx.to("other").send("add", "one")
    ctx.to("p-7", "payments").send("charge", amount=3)
    ctx.send("add", "later", after=timedelta(minutes=1), timer="t")

    assert [(s.service, s.key, s.handler, s.arguments) for s in ctx.sends] == [
        ("lists", "other", "add", '["one"]'),
        ("payments", "p-7", "charge", '{"amount":3}'),
        ("lists", "k", "add", '["later"]'),
    ]
    assert [s.timer and (s.timer.name, s.timer.after) for s in ctx.sends] == [
        None,
        None,
        ("t", 60.0),
    ]


def test_a_timer_that_is_cancelled_after_it_was_set_is_not_set() -> None:
    """In the order in which the handler says so; another key's timer of that name is set."""
    ctx = lists().context("k")
    ctx.send("add", "never", after=1, timer="t")
    ctx.to("other").send("add", "there", after=1, timer="t")
    ctx.cancel("t")
    assert [send.key for send in ctx.sends] == ["other"]

    ctx.send("add", "anew", after=1, timer="t")
    assert [send.arguments for send in ctx.sends] == ['["there"]', '["anew"]']
    assert ctx.cancelled == ["t"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "after": 1}, "at and after are given"),
        ({"every": "* * * * *"}, "needs a name"),
        ({"timer": "t"}, "needs one of"),
        ({"at": datetime(2026, 1, 1)}, "needs a time zone"),  # noqa: DTZ001 - what is refused
        ({"word": "named", "after": 1}, "by position or by name"),
    ],
)
def test_a_send_that_contradicts_itself_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServiceMisused, match=reason):
        lists().context("k").send("add", "by position", **options)


def test_a_call_of_an_older_version_is_upgraded_step_by_step() -> None:
    service = lists()

    assert service.find("add", ["a"], 3)[1] == ["a"]
    assert service.find("add", ["a"], 2)[1] == ["a, of 2"]
    assert service.find("add", ["a"], 1)[1] == ["a, of 1, of 2"]


def test_an_upgrade_that_changes_the_arguments_in_place_leaves_those_of_the_call() -> None:
    service, given = Service("stock", version=2), {"count": 3}

    @service.upgrade_call(1)
    def _renamed(name: str, arguments: Any) -> tuple[str, Any]:
        arguments["quantity"] = arguments.pop("count")
        return name, arguments

    @service.handler
    def put(ctx: Context[Any], quantity: int) -> None: ...

    assert service.find("put", given, 1)[1] == {"quantity": 3}
    assert given == {"count": 3}


def test_an_older_state_is_upgraded_step_by_step() -> None:
    service = service_with_state(3)

    assert service.read_state('{"steps":[]}', 3).steps == []
    assert service.read_state('{"steps":[]}', 2).steps == [2]
    assert service.read_state('{"steps":[]}', 1).steps == [1, 2]


def test_a_state_that_no_reader_would_keep_is_not_kept() -> None:
    service = lists()
    state = service.new_state()
    state.words = ["x" * 300_000]

    with pytest.raises(CallUnkeepable, match="more than 262,144"):
        service.dump_state(state)


def test_a_state_that_its_class_refuses_is_not_kept() -> None:
    service = Service("stock")

    @service.state
    class Stock(BaseModel):
        left: int = Field(default=0, ge=0)

    with pytest.raises(CallUnkeepable, match="cannot be read again: left: Input should be greater"):
        service.dump_state(Stock.model_construct(left=-1))


@pytest.mark.parametrize("kind", ["alias", "validation_alias", "serialization_alias"])
def test_a_state_is_kept_whatever_its_fields_are_called_outside(kind: str) -> None:
    service, names = Service("stock"), dict[str, Any]({kind: "itemsLeft"})

    @service.state
    class Stock(BaseModel):
        left: int = Field(default=0, **names)

    state = service.new_state()
    state.left = 3
    assert service.read_state(service.dump_state(state), 1).left == 3


def test_what_leaves_has_the_names_that_its_reader_takes() -> None:
    class Money(BaseModel):
        cents: int = Field(default=0, alias="inCents")

    service = Service("payments")

    @service.handler
    def charge(ctx: Context[Any], money: Money) -> Money:
        return money

    ctx, handler = service.context("k"), service.handlers["charge"]
    ctx.send("charge", Money(inCents=7))

    [[money], _] = handler.bind(json.loads(ctx.sends[0].arguments))
    assert money.cents == 7
    assert handler.plain_result(money) == {"inCents": 7}
    assert "inCents" in handler.describe()["result"]["properties"]


def test_a_number_that_is_not_finite_is_no_result() -> None:
    service = Service("numbers")

    @service.handler
    def anything(ctx: Context[Any]): ...  # type: ignore[no-untyped-def]

    with pytest.raises(CallUnkeepable, match="cannot be kept as JSON"):
        service.handlers["anything"].plain_result({"price": nan})


def test_a_call_sends_a_bounded_number_of_others() -> None:
    ctx = lists().context("k")
    for _ in range(MAX_SENDS):
        ctx.send("add", "a")

    with pytest.raises(ServiceMisused, match="at most 1,000 others"):
        ctx.send("add", "a")


def test_a_call_cancels_a_bounded_number_of_timers_each_by_a_name() -> None:
    ctx = lists().context("k")
    for number in range(MAX_SENDS):
        ctx.cancel(f"t-{number}")

    with pytest.raises(ServiceMisused, match="at most 1,000 timers"):
        ctx.cancel("one more")
    with pytest.raises(ServiceMisused, match="None is no name of a timer"):
        lists().context("k").cancel(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [None, 0, -1, nan, "5", True, timedelta(seconds=5)])
def test_a_limit_of_time_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    service = Service("slow", timeout=timeout)

    with pytest.raises(ServiceMisused, match="is no number of seconds"):

        @service.handler
        def do(ctx: Context[Any]) -> None: ...


def test_each_argument_is_converted_as_its_parameter_says() -> None:
    service = Service("many")

    @service.handler
    def take(ctx: Context[Any], *days: date) -> None: ...

    @service.handler
    def named(ctx: Context[Any], **days: date) -> None: ...

    days = [date(2026, 1, 1), date(2026, 1, 2)]
    take_them, named_ones = service.handlers["take"], service.handlers["named"]
    assert take_them.bind(["2026-01-01", "2026-01-02"]) == (days, {})
    assert named_ones.bind({"a": "2026-01-01"}) == ([], {"a": days[0]})
    with pytest.raises(CallRefused, match="take, argument days"):
        take_them.bind(["2026-01-01", "soon"])
