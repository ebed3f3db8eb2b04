"""Values that are tables: uploaded before the request that names them, and read over NATS."""

import polars as pl
import pyarrow as pa
import pytest

from rebaser_client import Draft, WorkspaceHandle
from rebaser_client.client import RebaserClient
from rebaser_client.errors import (
    NoSuchValue,
    ReadRefused,
    RequestDead,
    RequestRefused,
    TooLarge,
)
from rebaser_core.table_values import upload_of, upload_value
from rebaser_core.updates import BatchLimits
from rebaser_server.files import SharedFiles
from rebaser_server.queries import table_reads
from rebaser_server.tables import TableFiles
from tests.helpers.deployment import Deployment

ORDERS = pa.table({"id": range(1000), "day": [f"d{n % 3}" for n in range(1000)]})


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
