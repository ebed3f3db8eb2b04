"""Tables that functions of runtime `arrow` compute in a daemon, without Spark."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rebaser_client import ChangeSetHandle, Draft, arrow
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment

ORDERS = pa.table({"day": ["mon", "tue", "mon"], "amount": pa.array([10, 90, 50], pa.int64())})
NO_SPARK = {"SPARK__MASTER": "sc://127.0.0.1:1"}
"""A server for all updates that is not there."""

NAMES = ["orders", "rate", "priced", "by_day", "total", "wrong", "behind"]


def define(g: Draft) -> None:
    """Totals by day of orders at a rate; their sum; and what cannot be computed."""
    orders = g.table("orders", ORDERS, partition_by="day")
    rate = g.source("rate", 2)
    priced = g.value("priced", arrow("arrow.times"), orders=orders, rate=rate)
    g.value("by_day", arrow("arrow.by_day"), orders=priced)
    g.value("total", arrow("arrow.total"), orders=priced)
    wrong = g.value("wrong", arrow("arrow.durations"), orders=orders)
    g.value("behind", arrow("arrow.total"), orders=wrong)


async def rows_of(change_set: ChangeSetHandle, name: str) -> list[dict[str, Any]]:
    rows = (await (await change_set.table(name)).to_arrow()).to_pylist()
    return sorted(rows, key=lambda row: str(row["day"]))


async def test_tables_are_computed_without_spark(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a branch, too; and what was computed there is found when the branch is applied."""
    install_arrow_functions(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    await deployment.start(**NO_SPARK)
    shop = await deployment.client.workspace("shop").create()

    async with shop.edit() as g:
        define(g)

    values = await shop.values(*NAMES)
    assert [values[name].status for name in NAMES] == [*["ok"] * 5, "failed", "blocked"]
    assert values["total"].value == 300
    assert "column 'd' is of type duration" in str(values["wrong"].message)
    assert await rows_of(shop, "by_day") == [
        {"day": "mon", "total": 120},
        {"day": "tue", "total": 180},
    ]

    dearer = await shop.fork("dearer")
    async with dearer.edit() as g:
        g.source("rate", 3)
    found = await (await dearer.table("by_day")).diff()
    await dearer.apply()
    await shop.settled()

    assert (found.added, found.removed) == (2, 2)
    assert (await shop.values("total"))["total"].value == 450
    assert await rows_of(shop, "by_day") == [
        {"day": "mon", "total": 180},
        {"day": "tue", "total": 270},
    ]
    assert "180" in await Commands(deployment).tell("tables", "show", "shop", "by_day", "--rows", 9)


async def test_tables_are_computed_again_where_that_is_asked_for(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of what their function imports calls for it."""
    install_arrow_functions(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    await deployment.start(**NO_SPARK)
    shop, note = await deployment.client.workspace("shop").create(), tmp_path / "note"
    async with shop.edit() as g:
        orders, place = g.table("orders", ORDERS), g.source("place", str(note))
        g.value("noted", arrow("arrow.noting"), orders=orders, place=place)
    before = (await shop.values("noted"))["noted"].value

    await Commands(deployment).tell("dvu", "run", "shop", "noted", "--wait")

    assert note.read_text() == "calledcalled"
    assert (await shop.values("noted"))["noted"].value == before
