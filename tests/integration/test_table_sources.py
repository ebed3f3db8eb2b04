"""Tables of others as values: pinned to a version, copied once, followed by a watcher."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rebaser_client import Draft, WorkspaceHandle, arrow
from rebaser_client.errors import RequestRefused
from rebaser_core.table_values import PinnedTable
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.command_line import Commands
from tests.helpers.deployment import REBASER, Daemon, Deployment
from tests.integration.test_action_service import target
from tests.integration.test_ops_endpoint import get, started, url_of

ORDERS = pa.table({"day": ["mon", "tue", "mon"], "amount": pa.array([10, 90, 50], pa.int64())})
NO_SPARK = {"SPARK__MASTER": "sc://127.0.0.1:1"}


class Shop:
    """A workspace whose orders lie in a lake, and what is computed from them without Spark."""

    def __init__(self, deployment: Deployment, lake: Path) -> None:
        self.deployment = deployment
        self.path = str(lake / "orders")
        self.settings = {"STORE__SOURCES": str(lake)}
        self.commands = Commands(deployment, **self.settings)
        self.daemon: Daemon
        self.shop: WorkspaceHandle = deployment.client.workspace("shop")

    def write(self, table: pa.Table = ORDERS, mode: Any = "overwrite") -> None:
        write_deltalake(self.path, table, mode=mode)

    def draft(self, version: int) -> Draft:
        g = Draft()
        orders = g.table("orders", uri=self.path, version=version)
        by_day = g.value("by_day", arrow("arrow.by_day"), orders=orders)
        g.value("rows", arrow("arrow.count_all"), several=[by_day, orders])
        return g

    async def total(self) -> int:
        await self.shop.settled()
        return int((await self.shop.values("rows"))["rows"].value)


@pytest.fixture
async def shop(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    install_arrow_functions(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    made = Shop(deployment, tmp_path / "lake")
    made.write()
    made.daemon = await started(deployment, **NO_SPARK, **made.settings)
    await made.shop.create()
    return made


async def test_a_table_of_others_is_a_value_by_its_version(shop: Shop) -> None:
    """The same graph again sends nothing, and the source may go once it is copied."""
    first = await shop.shop.load(shop.draft(0))
    again = await shop.shop.load(shop.draft(0))
    shutil.rmtree(shop.path)
    branch = await shop.shop.fork("winter")
    async with branch.edit() as g:
        g.source("rate", 1)
    table = await branch.table("orders")

    assert first is not None
    assert first.corrections == ()
    assert again is None
    assert await shop.total() == 5
    assert await table.to_arrow() == ORDERS
    assert f"table: {shop.path}@0" in await shop.commands.tell("values", "shop")


async def test_commands_say_where_a_table_comes_from(shop: Shop) -> None:
    """Its version, what it is made of, and what is made of it; `set` takes the newest."""
    commands = shop.commands
    await shop.shop.load(shop.draft(0))
    shop.write(ORDERS.slice(0, 1))

    await commands.tell("values", "set", "shop", "orders", "--table", shop.path)
    shown = await commands.tell("tables", "show", "shop", "orders")
    lineage = await commands.tell("tables", "show", "--lineage", "shop", "by_day")
    plain = await commands.read("tables", "show", "--lineage", "shop", "by_day")
    printed = await commands.tell("tables", "pin", shop.path)

    assert f"copied from version 1 of {shop.path}" in shown
    assert [line.split()[:2] for line in lineage.splitlines()[1:]] == [
        ["-1", "orders"],
        ["0", "by_day"],
        ["+1", "rows"],
    ]
    [made_of], [goes_into] = plain["madeOf"], plain["goesInto"]
    assert (made_of["name"], made_of["source"]) == ("orders", {"uri": shop.path, "version": 1})
    assert (goes_into["name"], goes_into["isTable"]) == ("rows", False)
    assert printed.strip() == f"{{$table: {{uri: {json.dumps(shop.path)}, version: 1}}}}"
    assert await commands.read("tables", "pin", shop.path) == made_of["source"]
    await commands.tell("values", "set", "shop", "orders", "--table", f"{shop.path}@0")
    assert await shop.total() == 5


async def test_the_page_shows_columns_and_first_rows(shop: Shop) -> None:
    """With where they come from; of a value that is no table there are none."""
    await shop.shop.load(shop.draft(0))
    await shop.shop.settled()
    values, where = await shop.shop.values(), target(await shop.shop.ids())

    async def shown(name: str) -> Any:
        asked = urlencode({**where, "id": values[name].id})
        _, body = await get(f"{url_of(shop.daemon)}change-set/value?{asked}")
        return json.loads(body)["table"]

    assert await shown("orders") == {
        "rows": 3,
        "size": (await shop.shop.table("orders")).size,
        "columns": [
            {"name": "day", "type": "string", "nullable": True, "first": ["mon", "tue", "mon"]},
            {"name": "amount", "type": "bigint", "nullable": True, "first": ["10", "90", "50"]},
        ],
        "source": {"uri": shop.path, "version": 0},
    }
    assert (await shown("by_day"))["source"] is None
    assert await shown("rows") is None


async def test_a_graph_file_names_a_table_of_others(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(
        json.dumps(
            {"sources": {"orders": {"$table": {"uri": f"file://{shop.path}", "version": 0}}}}
        )
    )

    await shop.commands.tell("load", "shop", file, "--yes")

    assert (await shop.shop.table("orders")).rows == 3


async def test_a_watcher_proposes_each_new_version_once(shop: Shop) -> None:
    """Two propose it once; a version that was taken back is not proposed again."""
    await shop.shop.load(shop.draft(0))
    assert await shop.commands.tell("tables", "watch", "shop", "--once") == ""
    shop.write(ORDERS.slice(0, 1), "append")

    said = await shop.commands.tell("tables", "watch", "shop", "orders", "--once")
    none = await shop.commands.tell("tables", "watch", "shop", "--once")
    total = await shop.total()
    await shop.commands.tell("values", "set", "shop", "orders", "--table", f"{shop.path}@0")
    other = await shop.commands.tell("tables", "watch", "shop", "--once")

    assert f"orders: version 1 of {shop.path}, commit " in said
    assert none == ""
    assert total == 6
    assert f"orders: version 1 of {shop.path} was proposed before, by commit " in other
    assert await shop.total() == 5
    assert "'rows' is no table with a URI" in await shop.commands.tell(
        "tables", "watch", "shop", "rows", "--once", code=2
    )


async def test_a_watcher_outlasts_a_table_that_is_away_and_a_restart_of_nats(shop: Shop) -> None:
    """Say once that the table is away; propose its version when it is back."""
    await shop.shop.load(shop.draft(0))
    shutil.move(shop.path, f"{shop.path}.away")
    sources = {"REBASER_STORE__SOURCES": shop.settings["STORE__SOURCES"]}
    watcher = await asyncio.create_subprocess_exec(
        *(*REBASER, "tables", "watch", "shop", "--every", "0.1"),
        env=os.environ | {"REBASER_NATS__URL": shop.deployment.nats.url} | sources,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert watcher.stdout is not None
    assert watcher.stderr is not None
    try:
        async with asyncio.timeout(180):
            said = await watcher.stderr.readline()
        assert b"orders: " + shop.path.encode() + b": there is no such file" in said
        shop.deployment.nats.kill()
        shop.deployment.nats.start()
        shutil.move(f"{shop.path}.away", shop.path)
        shop.write(ORDERS.slice(0, 1), "append")
        async with asyncio.timeout(180):
            said = await watcher.stdout.readline()
        assert f"orders: version 1 of {shop.path}, commit ".encode() in said
        assert await shop.total() == 6
    finally:
        watcher.terminate()
        await watcher.wait()


async def test_what_cannot_be_copied_is_refused_and_changes_nothing(shop: Shop) -> None:
    """The error names the table, and what is wrong about it; the request is not tried again."""
    await shop.shop.load(shop.draft(0))
    commit = (await shop.shop.settled()).commit

    for path, version, message in [
        (shop.path, 3, "orders: it has no version 3 yet: the newest is 0"),
        (f"{shop.path}/none", 0, "there is no such file or folder"),
        ("/etc/passwd", 0, "not below a folder that the operator allows"),
    ]:
        with pytest.raises(RequestRefused, match=message):
            async with shop.shop.edit() as g:
                g.table("orders", uri=path, version=version)

    assert (await shop.shop.values("orders"))["orders"].value == (
        PinnedTable(shop.path, 0).to_value()
    )
    assert commit <= (await shop.shop.settled()).commit
    assert await shop.total() == 5


async def test_a_version_with_the_rows_of_before_changes_nothing_behind_it(shop: Shop) -> None:
    """The values computed from it are looked up, and come out as they were."""
    await shop.shop.load(shop.draft(0))
    before = (await shop.shop.values("by_day"))["by_day"]
    shop.write(ORDERS.take([2, 1, 0]))

    await shop.commands.tell("tables", "watch", "shop", "--once")
    await shop.shop.settled()

    assert (await shop.shop.table("orders")).rows == 3
    assert (await shop.shop.values("by_day"))["by_day"].value == before.value
