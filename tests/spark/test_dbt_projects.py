"""A dbt project computes on Spark what it computes in its own database."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rebaser_client.draft import Computed, Source
from rebaser_client.graph_files import read_graph_file
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.paths import ROOT
from tests.helpers.table_sheet import OWNER, TableSheet

pytestmark = pytest.mark.spark

PROJECT = ROOT / "examples" / "dbt"
MANIFEST = PROJECT / "target" / "manifest.json"
MODELS = ("stg_customers", "stg_orders", "stg_payments", "customers", "orders")


@pytest.mark.long
async def test_models_have_the_rows_of_duckdb_and_tests_pass(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    sheet = TableSheet(executor, tmp_path)
    draft = read_graph_file(MANIFEST)
    for upload in draft.uploads.values():
        upload.file.seek(0)
        sheet.tables.adopt(OWNER, upload.digest, upload.file.read())
    ids = {name: f"v{number}" for number, name in enumerate(draft.definitions)}
    for value_id in ids.values():
        sheet.source(value_id, None)
    for name, content in draft.definitions.items():
        if isinstance(content, Computed):
            inputs = {argument: ids[str(value)] for argument, value in content.inputs.items()}
            sheet.dependent(ids[name], content.function.code, inputs, "sql")
        else:
            assert isinstance(content, Source)
            sheet.source(ids[name], content.value)

    await sheet.compute()

    expected = by_duckdb()
    assert {name: plain(sheet.rows(ids[name])) for name in MODELS} == expected
    tests = [name for name in draft.definitions if name.startswith("test/")]
    assert {name: sheet.value(ids[name]) for name in tests} == dict.fromkeys(tests, 0)
    assert len(tests) == 20
    await sheet.close()


def by_duckdb() -> dict[str, Any]:
    """Rows of each model, as the project's own database computes it."""
    database = duckdb.connect()
    database.execute("ATTACH ':memory:' AS shop; USE shop")
    for seed in PROJECT.glob("seeds/*.csv"):
        database.execute(f"CREATE TABLE {seed.stem} AS FROM read_csv('{seed}')")
    nodes = json.loads(MANIFEST.read_text())["nodes"]
    found = {}
    for name in MODELS:
        code = nodes[f"model.shop.{name}"]["compiled_code"]
        database.execute(f"CREATE TABLE {name} AS {code}")
        found[name] = plain(database.table(name).to_arrow_table().to_pylist())
    return found


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in one order, with all numbers as floats."""
    numbers = int, float, Decimal
    return sorted(
        str({name: float(v) if isinstance(v, numbers) else v for name, v in row.items()})
        for row in rows
    )
