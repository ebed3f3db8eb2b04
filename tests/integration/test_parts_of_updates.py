"""Results that are committed before the others of their update: people wait for each (D4)."""

import asyncio
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from rebaser_client import ChangeSetHandle, Draft, arrow, cel
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.integration.test_arrow_values import NO_SPARK, ORDERS

CHEAP = [f"cheap {number}" for number in range(5)]


@pytest.fixture
async def shop(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ChangeSetHandle:
    install_arrow_functions(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    await deployment.start(**NO_SPARK)
    return await deployment.client.workspace("shop").create()


def define(g: Draft, place: Path, rate: int = 2) -> None:
    """Cheap values, a table that is there once `place` is, and what is computed from both."""
    base = g.source("rate", rate)
    cheap = [g.value(name, cel("rate + 1"), rate=base) for name in CHEAP]
    orders = g.table("orders", ORDERS)
    slow = g.value("slow", arrow("arrow.waits"), orders=orders, place=g.source("place", str(place)))
    priced = g.value("priced", arrow("arrow.times"), orders=slow, rate=cheap[0])
    g.value("total", arrow("arrow.total"), orders=priced)


async def require_cheap_ones(shop: ChangeSetHandle, value: int) -> None:
    async def are_there() -> bool:
        values = await shop.values(*CHEAP, "slow")
        is_slow = values["slow"].status == "pending"
        return is_slow and all(values[name].value == value for name in CHEAP)

    await eventually(are_there, within=120)


async def test_what_needs_no_table_is_committed_while_a_table_is_computed(
    shop: ChangeSetHandle, tmp_path: Path
) -> None:
    """Each result once, in commits of their own; the update is not over until all are there."""
    place = tmp_path / "go on"
    async with shop.edit(wait="committed") as g:
        define(g, place)

    await require_cheap_ones(shop, 3)
    settling = asyncio.create_task(shop.settled())
    await asyncio.wait([settling], timeout=0.5)
    assert not settling.done()
    await asyncio.to_thread(place.touch)
    await settling

    values = await shop.values("total", *CHEAP)
    assert values["total"].value == 450
    computed = [entry for entry in await shop.log() if entry.computed]
    assert len(computed) >= 2
    assert len({entry.request for entry in computed}) == len(computed)
    assert sum(sum(entry.updates.values()) for entry in computed) == len(CHEAP) + 3


async def test_a_change_meanwhile_is_computed_after_it(
    shop: ChangeSetHandle, tmp_path: Path
) -> None:
    """And no result of the update in hand outlives it."""
    place = tmp_path / "go on"
    async with shop.edit(wait="committed") as g:
        define(g, place)
    await require_cheap_ones(shop, 3)

    async with shop.edit(wait="committed") as g:
        g.source("rate", 7)
    await asyncio.to_thread(place.touch)
    await shop.settled()

    values = await shop.values("total", *CHEAP)
    assert [values[name].value for name in CHEAP] == [8] * len(CHEAP)
    assert values["total"].value == 1_200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_who_ends_after_a_part_leaves_the_update_due(
    deployment: Deployment, shop: ChangeSetHandle, tmp_path: Path, how: signal.Signals
) -> None:
    """The next owner makes the rest."""
    place = tmp_path / "go on"
    async with shop.edit(wait="committed") as g:
        define(g, place)
    await require_cheap_ones(shop, 3)

    [daemon] = deployment.daemons
    daemon.send(how)
    await daemon.ended()
    assert (await deployment.graph(await shop.ids())).roots
    await asyncio.to_thread(place.touch)
    await deployment.start(**NO_SPARK)
    await shop.settled()

    values = await shop.values("total", *CHEAP)
    assert values["total"].value == 450
    assert [values[name].value for name in CHEAP] == [3] * len(CHEAP)
    assert not (await deployment.graph(await shop.ids())).roots


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
async def test_what_takes_a_value_of_a_part_is_computed_by_the_next_owner(
    deployment: Deployment, shop: ChangeSetHandle, tmp_path: Path, how: signal.Signals
) -> None:
    """That value comes out as it is by now, and yet what takes it has the one of before."""
    place, again = tmp_path / "go on", tmp_path / "go on again"
    await asyncio.to_thread(place.touch)
    async with shop.edit() as g:
        define(g, place)
    async with shop.edit(wait="committed") as g:
        g.source("rate", 7)
        g.source("place", str(again))

    async def is_there() -> bool:
        values = await shop.values(*CHEAP)
        return all(values[name].value == 8 for name in CHEAP)

    await eventually(is_there)
    [daemon] = deployment.daemons
    daemon.send(how)
    await daemon.ended()
    await asyncio.to_thread(again.touch)
    await deployment.start(**NO_SPARK)
    await shop.settled()

    assert (await shop.values("total"))["total"].value == 1_200


async def test_a_table_that_fails_takes_nothing_back(shop: ChangeSetHandle, tmp_path: Path) -> None:
    place = tmp_path / "go on"
    async with shop.edit(wait="committed") as g:
        define(g, place)
        odd, there = g.table("odd", pa.table({"no_amount": [1]})), g.source("there", str(place))
        slow = g.value("slow too", arrow("arrow.waits"), orders=odd, place=there)
        g.value("wrong", arrow("arrow.total"), orders=slow)
    await require_cheap_ones(shop, 3)

    await asyncio.to_thread(place.touch)
    await shop.settled()

    values = await shop.values("wrong", "total", *CHEAP)
    assert values["wrong"].status == "failed"
    assert values["total"].value == 450
    assert [values[name].value for name in CHEAP] == [3] * len(CHEAP)
