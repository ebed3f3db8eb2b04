"""The store on S3, as a server on loopback speaks it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rebaser_client import sql
from rebaser_core.updates import PutValue, RemoveValue, SetValue
from rebaser_server.files import BatchFiles, OrphanFiles, SharedFiles
from rebaser_server.runtime.ports import free_port
from rebaser_server.settings.settings import StoreSettings
from rebaser_server.store import compaction
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.values.rebase import rebase
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.checkpoint_writer import CHANGE_SET, graph_of, saved, ulid
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT
from tests.helpers.random_batches import contents
from tests.helpers.s3_server import BUCKET, s3_running
from tests.integration.test_checkpoints import history
from tests.spark.servers import cluster, connect_server, connect_url, driver_settings


@pytest.fixture
def options() -> Iterator[dict[str, str]]:
    """What `REBASER_STORE__OPTIONS` would be, for an S3 with an empty bucket."""
    with s3_running() as options:
        yield options


@pytest.fixture
def root():
    """Of each test its own: the server keeps its buckets for as long as the process lives."""
    return f"s3://{BUCKET}/some/where/{new_id()}"


def test_checkpoints_are_kept_tidied_and_read_back(root, options, monkeypatch):
    monkeypatch.setattr(compaction, "MAX_FILES", 5)
    checkpoints, graph = Checkpoints(root, options), graph_of(1)
    saved(checkpoints, graph, 1)
    rebase(graph, 2, [RemoveValue(value_id=ulid(1)), SetValue(value_id=ulid(2), value="ä")])
    saved(checkpoints, graph, 2)
    earlier = contents(graph)
    for commit in range(3, 8):
        rebase(graph, commit, [PutValue(value_id=ulid(3), value=commit)])
        saved(checkpoints, graph, commit)

    done = compaction.compact(checkpoints, CHANGE_SET, 0, 0)

    assert done == "small files merged"
    assert contents(checkpoints.load(CHANGE_SET).graph) == contents(graph)
    assert contents(checkpoints.load(CHANGE_SET, 2).graph) == earlier


def test_of_two_writers_the_later_state_wins(root, options):
    """S3's conditional put is the fence: what was overtaken changes nothing."""
    known = history()
    checkpoints = Checkpoints(root, options)
    for changes, _ in known[:4]:
        checkpoints.save(CHANGE_SET, changes)

    checkpoints.save(CHANGE_SET, known[2][0])

    loaded = checkpoints.load(CHANGE_SET)
    assert loaded.commit == 4
    assert contents(loaded.graph) == known[3][1]


def test_results_lie_there_until_they_are_deleted(root, options):
    results = BatchFiles(SharedFiles(root, options))
    results.put("key", b"one")
    results.put("key", b"two")
    assert results.get("key") == b"two"
    leftovers = OrphanFiles(SharedFiles(root, options))
    found = leftovers.older_than(4e9)
    assert [file.key for file in found] == ["key"]

    leftovers.remove(found)
    leftovers.remove(found)

    with pytest.raises(FileNotFoundError):
        results.get("key")
    assert leftovers.older_than(4e9) == []


@pytest.mark.long
async def test_a_daemon_works_on_it(
    deployment: Deployment, root: str, options: dict[str, str]
) -> None:
    """From a batch too large for a message to the values, across a change of owner."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    store = {"STORE__ROOT": root, "STORE__OPTIONS": str(options).replace("'", '"')}
    daemon = await deployment.start(CHECKPOINT_EVERY="2", **store)
    many = [put(new_id(), number) for number in range(600)]

    await deployment.client.enqueue_updates(*change_set, [*many, *values.define(1, 2)])
    await deployment.at_rest()
    daemon.kill()
    await deployment.start(CHECKPOINT_EVERY="2", **store)
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 40)])
    await deployment.at_rest()

    checkpoint = await asyncio.to_thread(Checkpoints(root, options).load, change_set)
    assert checkpoint.graph.values[values.gross].value == 42
    assert len(checkpoint.graph.values) == 603


ORDERS = pa.table({"id": range(1000), "day": [f"d{n % 3}" for n in range(1000)]})
BY_DAY = "-- key: day\nSELECT day, count_if(id >= :least) AS large FROM orders GROUP BY day"
APART = "-- partition by: day\nSELECT day, id * 2 AS twice FROM orders WHERE id >= :least"


@contextmanager
def spark_at(where: str, directory: Path) -> Iterator[dict[str, str]]:
    """Settings of a Rebaser whose Spark is there, as the chart or an operator sets them."""
    port = free_port()
    match where:
        case "a Connect server":
            with connect_server(directory, port):
                yield {"SPARK__MASTER": connect_url(port)}
        case "a cluster":
            with cluster(directory, port, workers=2) as there:
                conf = json.dumps(driver_settings())
                yield {"SPARK__MASTER": there.url, "SPARK__CONF": conf}
        case _:
            yield {"SPARK__MASTER": "local[2]"}


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("where", ["the daemon", "a Connect server", "a cluster"])
async def test_tables_are_computed_reviewed_published_and_collected_on_it(
    deployment: Deployment, root: str, options: dict[str, str], where: str
) -> None:
    """Whole, in parts, and by another Rebaser after the first was killed."""
    with spark_at(where, deployment.directory) as spark:
        await require_tables(deployment, root, options, spark)


async def require_tables(
    deployment: Deployment, root: str, options: dict[str, str], spark: dict[str, str]
) -> None:
    store = StoreSettings(root=root, options=options)
    deployment.settings = deployment.settings.model_copy(update={"store": store})
    published = deployment.directory / "published"
    commands = Commands(deployment, STORE__OPTIONS=json.dumps(options))
    settings = {
        "STORE__OPTIONS": json.dumps(options),
        "STORE__PUBLISHED": str(published),
        **spark,
    }
    daemon = await deployment.start(**settings)
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        orders, least = g.table("orders", ORDERS), g.source("least", 500)
        by_day = g.value("by_day", sql(BY_DAY), orders=orders, least=least)
        g.value("apart", sql(APART), orders=orders, least=least)
        total = "-- returns: value\nSELECT sum(large) FROM by_day"
        g.value("total", sql(total), by_day=by_day)
    await shop.settled()
    assert (await shop.values("total"))["total"].value == 500
    first = await shop.table("apart")
    assert sorted((await first.to_arrow())["twice"].to_pylist()) == [*range(1000, 2000, 2)]

    branch = await shop.fork("winter")
    async with branch.edit() as g:
        g.source("least", 999)
    found = await (await branch.table("by_day")).diff()
    assert found.summary() == "3 rows changed, 0 added, 0 removed; sum(large) 500 → 1"
    listed = await commands.tell("diff", "shop/winter", "--rows")
    assert f"by_day: {found.summary()}" in listed
    await branch.apply()
    await shop.settled()

    folder = published / str((await shop.ids()).workspace_id) / "apart"

    async def is_published() -> bool:
        return folder.exists() and DeltaTable(folder).count() == 1

    await eventually(is_published, within=60)
    daemon.kill()
    await deployment.start(**settings)
    async with shop.edit() as g:
        g.source("least", 998)
    await shop.settled()
    assert (await shop.values("total"))["total"].value == 2
    assert (await (await shop.table("apart")).to_arrow()).num_rows == 2
    collector = deployment.collector()
    for _ in range(3):
        await collector.remove(await collector.find())
    assert await first.to_arrow() is not None  # the past has it
    assert (await (await shop.table("orders")).to_arrow()) == ORDERS


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_in_s3", "where"),
    [(False, "the daemon"), (True, "the daemon"), (True, "a Connect server"), (True, "a cluster")],
    ids=["a folder", "S3", "S3 and a Connect server", "S3 and a cluster"],
)
async def test_the_example_of_tables_says_what_its_page_shows(
    deployment: Deployment, root: str, options: dict[str, str], is_in_s3: bool, where: str
) -> None:
    """Wherever the tables lie and are computed."""
    example = ROOT / "examples" / "tpch"
    page = (example / "README.md").read_text()
    [shown] = re.findall(r"^```\n(all tables loaded.*?)^```", page, re.DOTALL | re.MULTILINE)
    store = {"STORE__ROOT": root, "STORE__OPTIONS": json.dumps(options)} if is_in_s3 else {}

    with spark_at(where, deployment.directory) as spark:
        await deployment.start(**store, **spark)
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            example / "tpch.py",
            env=os.environ | {"REBASER_NATS__URL": deployment.nats.url},
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await running.communicate()

    assert re.sub(r"[\d.]+ s$", "… s", printed.decode(), flags=re.MULTILINE) == shown
