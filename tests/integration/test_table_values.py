"""Values that are tables: uploaded before the request that names them, and read over NATS."""

import pyarrow as pa
import pytest

from rebaser_client import Draft
from rebaser_client.client import RebaserClient
from rebaser_client.errors import RequestDead, RequestRefused, TooLarge
from rebaser_core.table_values import upload_of, upload_value
from rebaser_core.updates import BatchLimits
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from tests.helpers.deployment import Deployment

ORDERS = pa.table({"id": range(1000), "day": [f"d{n % 3}" for n in range(1000)]})


def draft_of(table: pa.Table = ORDERS) -> Draft:
    g = Draft()
    g.table("orders", table)
    return g


async def test_a_table_is_there_once_the_request_is_committed(deployment: Deployment) -> None:
    """Loading equal rows again sends nothing."""
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()

    outcome = await shop.load(draft_of())
    value = (await shop.values("orders"))["orders"].value
    again = await shop.load(draft_of(pa.concat_tables([ORDERS.slice(0, 7), ORDERS.slice(7)])))

    assert outcome is not None and outcome.corrections == ()
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


async def test_a_request_that_names_a_file_that_nothing_uploaded_is_refused(
    deployment: Deployment,
) -> None:
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()

    with pytest.raises((RequestRefused, RequestDead), match="was not uploaded"):
        async with shop.edit() as g:
            g.source("orders", upload_value("0" * 64))
