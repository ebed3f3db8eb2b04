"""Tables of a service are what DuckDB says, through edits, branches, reverts, reads and kills.

`EXAMPLES` multiplies the graphs, each of which has `ROUNDS`: 10 make 100 rounds. Of every second
graph the tables are in S3, and are computed on a cluster.
"""

import json
import os
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from rebaser_client import ChangeSetHandle
from rebaser_core.jetstream import ObjectStore
from rebaser_core.table_values import upload_value
from rebaser_core.updates import SetValue
from rebaser_server.files import SharedFiles
from rebaser_server.settings.settings import StoreSettings
from rebaser_server.tables import TableFiles
from tests.helpers.batches import new_id
from tests.helpers.deployment import Deployment
from tests.helpers.drawn_tables import DuckDb, TableDrawing, TableReader, Upload, told
from tests.helpers.s3_server import BUCKET, s3_running
from tests.integration import test_oracle
from tests.integration.test_object_stores import spark_at

ROUNDS = 10
GRAPHS = max(1, round(float(os.environ.get("EXAMPLES", "1"))))


class World(test_oracle.World):
    """As that of ordinary values, with tables among them."""

    patience = 300.0  # Spark starts first, and anew for the first query

    def __init__(
        self,
        seed: int,
        deployment: Deployment,
        environment: pytest.MonkeyPatch,
        spark: dict[str, str],
    ) -> None:
        """`spark`: settings of the place where queries run."""
        duckdb = DuckDb()
        functions = SimpleNamespace(functions=duckdb.functions(), path=[])
        super().__init__(seed, deployment, functions, environment)  # type: ignore[arg-type]
        self.drawing: TableDrawing = TableDrawing(self.chance, duckdb)  # type: ignore[assignment]
        self._spark = spark
        self.actions = {
            self.edit: 12, self.upload: 4, self.fork: 4, self.apply: 4, self.take_back: 4,
            self.look_back: 3, self.restart: 1, self.compute_again: 1,
        }  # fmt: skip

    async def begin(self) -> None:
        await self.start()
        await self.head.create()
        store = self._deployment.settings.store
        self._owner = str((await self.head.ids()).workspace_id)
        self._reader = TableReader(TableFiles(SharedFiles(store.root, store.options)), self._owner)
        for upload in self.drawing.uploads:
            await self._send_file(upload)
        await self.send(self.head, self.drawing.define())
        await self.require_right(self.head)

    async def start(self) -> None:
        options = json.dumps(self._deployment.settings.store.options)
        await self._deployment.start(STORE__OPTIONS=options, **self._spark)

    async def upload(self, line: ChangeSetHandle) -> None:
        """Another table, which no Rebaser has seen before."""
        upload = self.drawing.draw_upload()
        await self._send_file(upload)
        value_id = self.chance.choice(self.drawing.tables)
        await self.send(line, [SetValue(value_id=value_id, value=upload_value(upload.digest))])

    async def _send_file(self, upload: Upload) -> None:
        bucket = ObjectStore(self._deployment.js, self._deployment.streams.batches_bucket)
        await bucket.part(self._owner).put_once(upload.digest, upload.payload)

    def told(self, state: dict[str, tuple[str, Any]]) -> dict[str, str]:
        read = self._reader.read
        return told({value_id: (status, read(what)) for value_id, (status, what) in state.items()})


@pytest.mark.spark
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed % 2 else pytest.mark.long)
        for seed in range(GRAPHS)
    ],
)
async def test_tables_are_what_duckdb_says(
    seed: int, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads, branches, reverts, the past, deaths; queries that fail, and what is behind them."""
    with ExitStack() as stack:
        where = "the daemon"
        if seed % 2:
            where, options = "a cluster", stack.enter_context(s3_running())
            store = StoreSettings(root=f"s3://{BUCKET}/{new_id()}", options=options)
            deployment.settings = deployment.settings.model_copy(update={"store": store})
        spark = stack.enter_context(spark_at(where, deployment.directory))
        world = World(seed, deployment, monkeypatch, spark)
        await world.begin()
        for _ in range(ROUNDS):
            await world.round()
