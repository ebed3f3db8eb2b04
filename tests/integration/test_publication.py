"""The tables of heads, published for other engines while requests come and Rebasers end."""

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rebaser_client import WorkspaceHandle, sql
from rebaser_server.store.publications import folder_of
from tests.helpers.deployment import Daemon, Deployment
from tests.helpers.eventually import eventually

ORDERS = pa.table({"id": range(100), "day": [f"d{n % 3}" for n in range(100)]})
BY_DAY = "SELECT day, count(*) AS orders FROM orders WHERE id >= :least GROUP BY day"


class Reader:
    """A program that knows the folder alone."""

    def __init__(self, deployment: Deployment) -> None:
        self.folder = deployment.directory / "published"
        self.workspace = ""

    async def start(self, deployment: Deployment, **settings: str) -> Daemon:
        return await deployment.start(STORE__PUBLISHED=str(self.folder), **settings)

    async def create(self, deployment: Deployment) -> WorkspaceHandle:
        shop = await deployment.client.workspace("shop").create()
        self.workspace = str((await shop.ids()).workspace_id)
        return shop

    def path(self, name: str) -> str:
        return str(self.folder / self.workspace / folder_of(name))

    def rows(self, name: str, version: int | None = None) -> int | None:
        if not self.entries(name):
            return None
        return int(DeltaTable(self.path(name), version=version).to_pyarrow_table().num_rows)

    async def sees(self, name: str, rows: int) -> None:
        async def are_there() -> bool:
            return self.rows(name) == rows

        await eventually(are_there, within=60)

    def entries(self, name: str) -> list[Path]:
        return sorted((Path(self.path(name)) / "_delta_log").glob("*.json"))

    def commits(self, name: str) -> list[int]:
        """The commit that each version names."""
        lines = [line for path in self.entries(name) for line in path.read_text().splitlines()]
        actions = map(json.loads, lines)
        return [action["txn"]["version"] for action in actions if "txn" in action]


@pytest.fixture
def reader(deployment: Deployment) -> Reader:
    return Reader(deployment)


async def put_orders(shop: Any, rows: int) -> int:
    """Give the change set a table with so many orders; return its last commit."""
    async with shop.edit() as g:
        g.table("orders", ORDERS.slice(0, rows))
    return int((await shop.settled()).commit)


async def test_head_alone_is_published_one_version_a_commit(
    deployment: Deployment, reader: Reader
) -> None:
    """A branch is, once it is applied; a revert publishes the rows of before."""
    await reader.start(deployment)
    shop = await reader.create(deployment)
    await put_orders(shop, 10)
    await reader.sees("orders", 10)
    await put_orders(shop, 20)
    await reader.sees("orders", 20)
    branch = await shop.fork("branch")
    await put_orders(branch, 30)
    async with shop.edit() as g:
        g.source("rate", 2)
    await deployment.at_rest()
    assert reader.rows("orders") == 20

    await branch.apply()
    await reader.sees("orders", 30)
    applied = reader.commits("orders")[-1]
    plan = await shop.plan_revert(applied)
    await shop.enqueue(plan.updates)
    await reader.sees("orders", 20)

    commits = reader.commits("orders")
    assert len(commits) == len(set(commits)) == len(reader.entries("orders")) == 4
    assert commits == sorted(commits)
    assert [reader.rows("orders", version) for version in range(4)] == [10, 20, 30, 20]
    folders = {path.name for path in reader.folder.iterdir()}
    assert folders == {reader.workspace, "unfinished"}
    assert deployment.daemons[0].said("publication failed") == []


async def test_a_value_that_is_removed_leaves_a_table_without_rows(
    deployment: Deployment, reader: Reader
) -> None:
    await reader.start(deployment)
    shop = await reader.create(deployment)
    await put_orders(shop, 10)
    await reader.sees("orders", 10)

    async with shop.edit() as g:
        g.remove("orders")

    await reader.sees("orders", 0)
    assert DeltaTable(reader.path("orders")).schema().fields[0].name == "id"


async def test_what_was_not_published_before_a_kill_is_made_up_for(
    deployment: Deployment, reader: Reader
) -> None:
    """By the Rebaser that takes over; requests went on while nothing could be published."""
    daemon = await reader.start(deployment)
    shop = await reader.create(deployment)
    await put_orders(shop, 10)
    await reader.sees("orders", 10)
    aside = reader.folder.rename(reader.folder.with_name("aside"))
    reader.folder.write_text("no folder")
    await put_orders(shop, 20)
    last = await put_orders(shop, 30)

    async def has_failed() -> bool:
        return bool(daemon.said("publication failed"))

    await eventually(has_failed, within=60)
    daemon.kill()
    reader.folder.unlink()
    aside.rename(reader.folder)
    await reader.start(deployment)

    await reader.sees("orders", 30)
    commits = reader.commits("orders")
    assert len(commits) == len(set(commits)) == 2
    assert commits[-1] >= last


async def test_heads_at_rest_are_published_once_there_is_a_folder(
    deployment: Deployment, reader: Reader
) -> None:
    """Also by several Rebasers at a time, and each table once."""
    daemon = await deployment.start()
    shop = await reader.create(deployment)
    await put_orders(shop, 10)
    await deployment.at_rest()
    daemon.kill()

    for _ in range(2):
        await reader.start(deployment)

    await reader.sees("orders", 10)
    await deployment.at_rest()
    assert len(reader.entries("orders")) == 1


async def test_a_failure_is_tried_again_without_a_commit(
    deployment: Deployment, reader: Reader
) -> None:
    reader.folder.write_text("no folder")
    daemon = await reader.start(deployment)
    shop = await reader.create(deployment)
    await put_orders(shop, 10)

    async def has_failed() -> bool:
        return bool(daemon.said("publication failed"))

    await eventually(has_failed, within=60)
    reader.folder.unlink()

    await reader.sees("orders", 10)


@pytest.mark.long
@pytest.mark.spark
async def test_computed_tables_are_published_and_read_by_other_engines(
    deployment: Deployment, reader: Reader
) -> None:
    """A query that fails leaves the last rows, and goes on after that."""
    await reader.start(deployment, SPARK__MASTER="local[2]")
    shop = await reader.create(deployment)
    async with shop.edit() as g:
        orders, least = g.table("orders", ORDERS), g.source("least", 0)
        g.value("by_day", sql(BY_DAY), orders=orders, least=least)
    await shop.settled()
    await reader.sees("by_day", 3)
    async with shop.edit() as g:
        g.source("least", 98)
    await shop.settled()
    await reader.sees("by_day", 2)

    table = await shop.table("by_day")
    expected = sorted((await table.to_arrow()).to_pylist(), key=str)
    dataset = DeltaTable(reader.path("by_day")).to_pyarrow_dataset()
    polars = pl.scan_delta(reader.path("by_day")).sort("day").collect().to_dicts()
    assert dataset.to_table().sort_by("day").to_pylist() == polars == expected
    duck = duckdb.connect().execute("SELECT day, orders FROM dataset ORDER BY day").fetchall()
    assert duck == [(row["day"], row["orders"]) for row in expected]

    async with shop.edit() as g:
        g.source("least", "no number")
    await shop.settled()
    assert (await shop.values())["by_day"].status == "failed"
    async with shop.edit() as g:
        g.source("least", 99)
    await shop.settled()
    await reader.sees("by_day", 1)
    assert [reader.rows("by_day", version) for version in range(3)] == [3, 2, 1]
