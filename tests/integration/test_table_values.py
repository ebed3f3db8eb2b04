"""Values that are tables: uploaded before the request that names them, and read over NATS."""

import json
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pyarrow as pa
import pytest

from rebaser_client import Draft, WorkspaceHandle, sql
from rebaser_client.client import RebaserClient
from rebaser_client.errors import NoSuchValue, ReadRefused, RequestDead, RequestRefused
from rebaser_core.errors import TooLarge
from rebaser_core.table_values import upload_of, upload_value
from rebaser_core.updates import BatchLimits, PutValue
from rebaser_server.files import SharedFiles
from rebaser_server.queries import table_differences, table_reads
from rebaser_server.tables import TableFiles
from tests.helpers.batches import new_id
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.integration.test_action_service import bearer, target
from tests.integration.test_ops_endpoint import get, started, url_of

ORDERS = pa.table({"id": range(1000), "day": [f"d{n % 3}" for n in range(1000)]})
BEFORE = pa.table({"id": [1, 2, 3], "net": [Decimal("1.50"), Decimal("2.50"), None]})
AFTER = pa.table({"id": [1, 3, 4], "net": [Decimal("1.75"), None, Decimal("9.00")]})
"""Rows that a branch has in place of those before."""


def draft_of(table: pa.Table = ORDERS) -> Draft:
    g = Draft()
    g.table("orders", table)
    return g


async def shop_with(deployment: Deployment, table: pa.Table) -> WorkspaceHandle:
    """A workspace with that table, and a rate."""
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()
    draft = draft_of(table)
    draft.source("rate", 1.5)
    await shop.load(draft)
    return shop


async def test_a_table_is_there_once_the_request_is_committed(deployment: Deployment) -> None:
    """Loading equal rows again sends nothing."""
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()

    outcome = await shop.load(draft_of())
    value = (await shop.values("orders"))["orders"].value
    again = await shop.load(draft_of(pa.concat_tables([ORDERS.slice(0, 7), ORDERS.slice(7)])))

    assert outcome is not None
    assert outcome.corrections == ()
    assert again is None
    tables = TableFiles(SharedFiles(deployment.settings.store.root))
    manifest = tables.get(str((await shop.ids()).workspace_id), upload_of(value) or "")
    assert manifest.rows == 1000


async def test_a_table_beyond_the_limit_is_refused_before_anything_is_sent(
    deployment: Deployment,
) -> None:
    await deployment.start()
    await deployment.client.workspace("shop").create()
    limits = BatchLimits(batch_bytes=1_000)

    async with RebaserClient.on(deployment.nc, deployment.js, limits=limits) as client:
        shop = client.workspace("shop")
        with pytest.raises(TooLarge, match=r"table 'orders' has .* bytes as Parquet, and at most"):
            async with shop.edit() as g:
                g.table("orders", ORDERS)

    assert await shop.log() == []


async def test_the_rows_of_a_table_are_read_in_parts(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer ends behind one part, and the next one goes on from there."""
    monkeypatch.setattr(table_reads, "_PART_BYTES", 2_000)
    monkeypatch.setattr(table_reads, "_ANSWER_BYTES", 1)
    shop = await shop_with(deployment, ORDERS)
    deployment.daemons[0].kill()

    async with deployment.answering().serve():
        table = await shop.table("orders")
        batches = [batch async for batch in table.scan()]
        few = [batch async for batch in table.scan(["day"], offset=500, limit=300)]

        assert (table.name, table.rows, table.files) == ("orders", 1000, 1)
        assert [(each.name, each.type, each.nullable) for each in table.schema] == [
            ("id", "bigint", True),
            ("day", "string", True),
        ]
        assert len(batches) > 3
        assert pa.Table.from_batches(batches) == ORDERS
        assert pa.Table.from_batches(few) == ORDERS.select(["day"]).slice(500, 300)
        assert await table.head(7) == ORDERS.slice(0, 7)
        assert (await table.head(0)).schema == ORDERS.schema
        assert (await table.to_pandas(["day", "id"])).equals(ORDERS.select([1, 0]).to_pandas())
        assert (await table.to_polars()).equals(pl.from_arrow(ORDERS))


async def test_a_file_is_compared_once_however_many_answers_have_its_rows(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a large table would be read whole for each of them."""
    monkeypatch.setattr(table_reads, "_PART_BYTES", 2_000)
    monkeypatch.setattr(table_reads, "_ANSWER_BYTES", 1)
    shop = await shop_with(deployment, ORDERS)
    deployment.daemons[0].kill()
    compared, compare = [], TableFiles._digest_of

    def noting(tables: TableFiles, path: str, *sink: Any) -> str:
        compared.append(path)
        return compare(tables, path, *sink)

    monkeypatch.setattr(TableFiles, "_digest_of", noting)
    async with deployment.answering().serve():
        table = await shop.table("orders")
        batches = [batch async for batch in table.scan()]

    assert len(batches) > 3
    assert len(compared) == 1


async def test_a_table_is_read_as_of_a_commit(deployment: Deployment) -> None:
    """What was found first is read on, also if the value has changed since then."""
    shop = await shop_with(deployment, ORDERS)

    first = await shop.table("orders")
    await shop.load(draft_of(ORDERS.slice(0, 0)))
    now, then = await shop.table("orders"), await shop.table("orders", at=first.commit)

    assert (now.rows, then.rows) == (0, 1000)
    assert await now.to_arrow() == ORDERS.slice(0, 0)
    assert await first.to_arrow() == await then.to_arrow() == ORDERS


async def test_what_is_no_table_is_said_so(deployment: Deployment) -> None:
    shop = await shop_with(deployment, ORDERS)

    table = await shop.table("orders")
    with pytest.raises(ReadRefused, match="'rate' is no table"):
        await shop.table("rate")
    with pytest.raises(NoSuchValue, match="there is no value 'order'"):
        await shop.table("order")
    with pytest.raises(ReadRefused, match="'orders' has no column 'dai'; there is 'day'"):
        await table.to_arrow(["dai"])
    tables = SharedFiles(deployment.settings.store.root)
    tables.delete_directory(f"tables/{(await shop.ids()).workspace_id}")
    with pytest.raises(ReadRefused, match=r"not whole in the store: .* upload it again"):
        await table.head()


async def test_a_request_that_names_a_file_that_nothing_uploaded_is_refused(
    deployment: Deployment,
) -> None:
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()

    with pytest.raises((RequestRefused, RequestDead), match="was not uploaded"):
        async with shop.edit() as g:
            g.source("orders", upload_value("0" * 64))


async def test_commands_show_tables(deployment: Deployment) -> None:
    """For people in words; as JSON a value stays what it is."""
    table = pa.table(
        {
            "id": [1, 2, 3],
            "net": [Decimal("1.50"), None, Decimal("20.00")],
            "day": [date(2026, 1, 5), date(2026, 1, 6), None],
            "note": ["a, b", 'say "c"', ""],
            "tags": [["x"], [], None],
            "rate": [float("nan"), float("-inf"), None],
        }
    )
    shop = await shop_with(deployment, table)
    commands = Commands(deployment)
    value = (await shop.values("orders"))["orders"]
    digest = upload_of(value.value) or ""

    listed, shown = await commands.tell("tables", "shop"), await commands.tell("values", "shop")
    described = await commands.tell("tables", "show", "shop", "orders")
    head = await commands.tell("tables", "show", "shop", "orders", "-n", 2)
    rows = await commands.read("tables", "show", "shop", value.id, "--rows", 10)

    assert [word for word in listed.splitlines()[1].split() if word != "orders"][:2] == ["3", "6"]
    assert f"table: upload {digest[:12]}" in shown
    assert f"table: upload {digest[:12]}" in await commands.tell("values", "--tree", "shop")
    assert f"table: upload {digest[:12]}" in await commands.tell("why", "shop", "orders")
    assert [each["value"] for each in await commands.read("values", "shop", "orders")] == [
        upload_value(digest)
    ]
    assert described.startswith("orders: 3 rows, ")
    assert [line.split() for line in described.splitlines()[2:4]] == [
        ["id", "bigint"],
        ["net", "decimal(4,2)"],
    ]
    assert [line.split()[:3] for line in head.splitlines()] == [
        ["id", "net", "day"],
        ["1", "1.50", "2026-01-05"],
        ["2", "2026-01-06", "say"],
    ]
    assert rows == [
        {"id": 1, "net": "1.50", "day": "2026-01-05", "note": "a, b", "tags": ["x"], "rate": "nan"},
        {"id": 2, "net": None, "day": "2026-01-06", "note": 'say "c"', "tags": [], "rate": "-inf"},
        {"id": 3, "net": "20.00", "day": None, "note": "", "tags": None, "rate": None},
    ]
    assert await commands.tell("tables", "show", "shop", "orders", "--csv") == (
        "id,net,day,note,tags,rate\n"
        '1,1.50,2026-01-05,"a, b","[""x""]",nan\n'
        '2,,2026-01-06,"say ""c""",[],-inf\n'
        "3,20.00,,,,\n"
    )
    [plain] = await commands.read("tables", "shop")
    described_again = await commands.read("tables", "show", "shop", "orders")
    assert plain | {"commit": None} == described_again | {"commit": None}  # one may come between
    assert (plain["name"], plain["rows"], plain["computedBy"]) == ("orders", 3, None)


async def test_commands_say_what_is_no_table(deployment: Deployment) -> None:
    """A table whose rows are gone is listed, with what to do."""
    shop = await shop_with(deployment, ORDERS)
    commands = Commands(deployment)

    assert "name one value" in await commands.tell("tables", "diff", "shop", code=2)
    assert "'rate' is no table" in await commands.tell("tables", "show", "shop", "rate", code=1)
    SharedFiles(deployment.settings.store.root).delete_directory(
        f"tables/{(await shop.ids()).workspace_id}"
    )
    assert "upload it again" in await commands.tell("tables", "shop")
    assert "upload it again" in (await commands.read("tables", "shop"))[0]["problem"]
    async with shop.edit(wait="committed") as g:
        g.remove("orders")
    assert "no value is a table" in (await commands.give("tables", "shop")).err


async def test_the_rows_of_a_branch_that_differ_are_shown(deployment: Deployment) -> None:
    """By a key, or as whole rows; and between two commits of one change set."""
    shop = await shop_with(deployment, BEFORE)
    commit = (await shop.table("orders")).commit
    branch = await shop.fork("winter")
    await branch.load(draft_of(AFTER))

    table = await branch.table("orders")
    found, whole = await table.diff(["id"]), await table.diff()
    await branch.apply()
    since = await (await shop.table("orders")).diff("id", commit=commit)

    assert (found.changed, found.added, found.removed) == (1, 1, 1)
    assert repr(found) == (
        "<TableDifference of 'orders': 1 row changed, 1 added, 1 removed; sum(net) 4 → 10.75>"
    )
    assert found.added_rows().to_pylist() == [{"id": 4, "net": Decimal("9.00")}]
    assert found.removed_rows().to_pylist() == [{"id": 2, "net": Decimal("2.50")}]
    assert [rows.to_pylist() for rows in found.changed_rows()] == [
        [{"id": 1, "net": Decimal("1.50")}],
        [{"id": 1, "net": Decimal("1.75")}],
    ]
    assert [(each.before, each.after) for each in found.totals] == [("4.00", "10.75")]
    assert "<td>sum(net)</td><td>4.00</td><td>10.75</td>" in found._repr_html_()
    assert (whole.changed, whole.added, whole.removed) == (None, 2, 2)
    assert (since.summary(), since.since) == (found.summary(), commit)
    assert not await (await shop.table("orders")).diff(commit=(await shop.table("orders")).commit)


async def test_what_cannot_be_compared_is_said_so(deployment: Deployment) -> None:
    shop = await shop_with(deployment, ORDERS)
    branch = await shop.fork("winter")
    async with branch.edit(wait="committed") as g:
        g.table("orders", ORDERS.slice(1))
        g.table("new", ORDERS)
    table = await branch.table("orders")

    with pytest.raises(ReadRefused, match=r"is no branch.*name a commit to compare with"):
        await (await shop.table("orders")).diff()
    with pytest.raises(ReadRefused, match="head has no value 'new': all rows are new"):
        await (await branch.table("new")).diff()
    with pytest.raises(ReadRefused, match=r"column 'dai' is in none of them; there is 'day'"):
        await table.diff("dai")
    with pytest.raises(ReadRefused, match=r"the rows of head apart: 334 have day = d0; name more"):
        await table.diff("day")
    with pytest.raises(ReadRefused, match="before"):
        await table.diff(commit=10**9)


async def test_commands_show_which_rows_differ(deployment: Deployment) -> None:
    """`rebaser diff --rows` has one line for each table that differs."""
    shop = await shop_with(deployment, BEFORE)
    commit = (await shop.table("orders")).commit
    branch = await shop.fork("winter")
    await branch.load(draft_of(AFTER))
    commands = Commands(deployment)

    shown = await commands.tell("tables", "diff", "shop/winter", "orders", "--key", "id")
    plain = await commands.read(
        "tables", "diff", "shop/winter", "orders", "--key", "id", "--since", commit
    )
    lines = await commands.tell("diff", "shop/winter", "--rows")
    of_all = await commands.read("diff", "shop/winter", "--rows")

    assert [" ".join(line.split()) for line in shown.splitlines()] == [
        "orders: 1 row changed, 1 added, 1 removed; sum(net) 4 → 10.75",
        "before after",
        "sum(net) 4.00 10.75",
        "rows 3 3",
        "id net",
        "changed 1 1.50 → 1.75",
        "added 4 9.00",
        "removed 2 2.50",
    ]
    assert plain["changedRows"] == [
        {"before": {"id": 1, "net": "1.50"}, "after": {"id": 1, "net": "1.75"}}
    ]
    assert (plain["added"], plain["addedRows"]) == (1, [{"id": 4, "net": "9.00"}])
    assert "orders: 2 rows added, 2 removed; sum(id) 6 → 8; sum(net) 4 → 10.75" in lines
    [rows] = of_all["tables"]
    assert (rows["changed"], rows["added"], rows["removed"]) == (None, 2, 2)
    problem = await commands.tell("tables", "diff", "shop/winter", "orders", "--key", "day", code=1)
    assert "column 'day' is in none of them" in problem


@pytest.mark.spark
@pytest.mark.long
async def test_a_changed_rate_shows_which_rows_of_a_query_differ(deployment: Deployment) -> None:
    """By the key that the query declares, in a branch and since a commit."""
    await deployment.start(SPARK__MASTER="local[2]")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        orders, least = g.table("orders", ORDERS), g.source("least", 500)
        code = "-- key: day\nSELECT day, count_if(id >= :least) AS large FROM orders GROUP BY day"
        g.value("by_day", sql(code), orders=orders, least=least)
    commit = (await shop.table("by_day")).commit
    branch = await shop.fork("winter")
    async with branch.edit() as g:
        g.source("least", 999)
        g.table("orders", pa.concat_tables([ORDERS, pa.table({"id": [1000], "day": ["d3"]})]))

    found = await (await branch.table("by_day")).diff()
    listed = await Commands(deployment).tell("diff", "shop/winter", "--rows")
    await branch.apply()
    await shop.settled()
    since = await (await shop.table("by_day")).diff(commit=commit)

    words = "3 rows changed, 1 added, 0 removed; sum(large) 500 → 2"
    assert (found.key, found.summary(), found.may_be_stale) == (("day",), words, False)
    assert f"by_day: {words}" in listed
    assert found.added_rows().to_pylist() == [{"day": "d3", "large": 1}]
    assert since.summary() == words


async def test_the_page_of_a_branch_says_which_rows_differ(deployment: Deployment) -> None:
    """Of tables with few rows; of others what to do."""
    daemon = await started(deployment, OPS__TOKEN="t")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit(wait="committed") as g:
        g.table("orders", ORDERS)
        g.table("large", pa.table({"id": range(200_001)}))
    branch = await shop.fork("winter")
    async with branch.edit(wait="committed") as g:
        g.table("orders", ORDERS.slice(1))
        g.table("large", pa.table({"id": range(1)}))

    where = urlencode(target(await branch.ids()))
    _, body = await get(f"{url_of(daemon)}change-set/difference?{where}", **bearer("t"))

    assert {row["name"]: row["rows"] for row in json.loads(body)["changes"]} == {
        "orders": "0 rows added, 1 removed",
        "large": "its rows are not compared here; rebaser tables diff does",
    }


async def test_a_comparison_that_takes_too_long_is_given_up(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = await shop_with(deployment, ORDERS)
    commit = (await shop.table("orders")).commit
    await shop.load(draft_of(ORDERS.slice(1)))
    deployment.daemons[0].kill()

    async with deployment.answering().serve():
        table = await shop.table("orders")
        with monkeypatch.context() as patched:
            patched.setattr(table_differences, "_SECONDS", 0.0)
            with pytest.raises(ReadRefused, match=r"comparing 1,000 with 999 rows, .* took more"):
                await table.diff(commit=commit)
        assert (await table.diff(commit=commit)).removed == 1


async def test_an_upload_is_of_its_workspace_alone(deployment: Deployment) -> None:
    """Its digest leads nowhere in another one, as if it had never been uploaded."""
    await deployment.start()
    shop, other = [await deployment.client.workspace(n).create() for n in ("shop", "other")]
    plan = await shop.plan(draft_of())
    [digest] = plan.uploads

    await shop.upload(plan)
    with pytest.raises(RequestRefused, match=r"of a table was not uploaded"):
        await other.enqueue([PutValue(value_id=new_id(), value=upload_value(digest))])
    await shop.enqueue(plan.batch())
    with pytest.raises(RequestRefused, match=r"of a table was not uploaded"):
        await other.enqueue([PutValue(value_id=new_id(), value=upload_value(digest))])

    assert (await shop.values("orders"))["orders"].value == upload_value(digest)
    assert (await other.load(draft_of())) is not None
