"""Checkpoints are tables that other engines read as `docs/store.md` tells."""

import json
import re

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from rebaser_core.updates import PutFunc, PutValue, RemoveFunc, RemoveValue, SetInputs, SetValue
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, saved, ulid
from tests.helpers.paths import ROOT

DOCUMENT = (ROOT / "docs/store.md").read_text()
NET, TAX, GROSS, GONE, FUNC, OLD = (ulid(number) for number in range(6))


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found, language
    return found


@pytest.fixture
def uri(tmp_path):
    """Three checkpoints of a small change set."""
    checkpoints, graph = Checkpoints(str(tmp_path)), Graph()
    inputs = {"values": [NET, TAX], "ro\"u'nding": NET}
    batches = {
        10: [
            PutFunc(func_id=FUNC, name="add", runtime="cel", code='a + "b"'),
            PutFunc(func_id=OLD, name="old", runtime="builtin", code="sum"),
            PutValue(value_id=NET, name="net", value={"amount": 100, "of": ["ä", None]}),
            PutValue(value_id=TAX, name="tax", value=19),
            PutValue(value_id=GONE, value=True),
        ],
        20: [PutValue(value_id=GROSS, name="gross", func_id=FUNC, inputs=inputs)],
        30: [
            SetValue(value_id=TAX, value=None),
            RemoveValue(value_id=GONE),
            RemoveFunc(func_id=OLD),
            SetInputs(value_id=GROSS, inputs={"values": [TAX, NET], "rounding": NET}),
        ],
    }
    for commit, batch in batches.items():
        rebase(graph, commit, batch)
        saved(checkpoints, graph, commit)
    return checkpoints.uri(CHANGE_SET)


@pytest.fixture
def duck(uri):
    """A connection with the documented views."""
    with duckdb.connect() as connection:
        connection.register("all_rows", DeltaTable(uri).to_pyarrow_dataset())
        connection.sql("CREATE VIEW rows AS FROM all_rows")
        for statement in blocks("sql"):
            connection.execute(statement)
        yield connection


def test_duckdb_reads_the_present_values(duck):
    found = duck.sql('SELECT id, name, value, func_id, status FROM "values" ORDER BY id').fetchall()

    assert [(*row[:2], json.loads(row[2]), *row[3:]) for row in found] == [
        (NET, "net", {"amount": 100, "of": ["ä", None]}, None, "ok"),
        (TAX, "tax", None, None, "ok"),
        (GROSS, "gross", None, FUNC, "pending"),
    ]


def test_duckdb_reads_functions_and_inputs(duck):
    functions = duck.sql("SELECT id, name, runtime, code FROM functions").fetchall()
    inputs = duck.sql(
        "SELECT value_id, argument, position, input_id FROM inputs ORDER BY ALL"
    ).fetchall()

    assert functions == [(FUNC, "add", "cel", 'a + "b"')]
    assert inputs == [
        (GROSS, "rounding", 0, NET),
        (GROSS, "values", 0, TAX),
        (GROSS, "values", 1, NET),
    ]


def test_duckdb_reads_the_past_by_commit(duck):
    duck.execute("CREATE OR REPLACE VIEW rows AS SELECT * FROM all_rows WHERE commit <= 25")

    assert duck.sql("SELECT value FROM \"values\" WHERE name = 'tax'").fetchall() == [("19",)]
    assert duck.sql('SELECT count(*) FROM "values"').fetchall() == [(4,)]
    assert duck.sql("SELECT count(*) FROM functions").fetchall() == [(2,)]
    inputs = duck.sql("SELECT argument, input_id FROM inputs ORDER BY ALL").fetchall()
    assert inputs == [("ro\"u'nding", NET), ("values", NET), ("values", TAX)]


def test_what_is_documented_for_duckdb_in_python_runs(uri, capfd):
    exec(blocks("python duckdb")[0], {"uri": uri})  # noqa: S102 - our own document


def test_polars_reads_the_present_values(uri):
    known = {"uri": uri}
    exec(blocks("python polars")[0], known)  # noqa: S102

    values = {row["id"]: row for row in known["values"].to_dicts()}
    assert values.keys() == {NET, TAX, GROSS}
    assert values[TAX]["value"] == "null"
    assert values[GROSS]["status"] == "pending"


def test_polars_reads_the_past_by_commit(uri):
    rows = pl.scan_delta(uri).filter(pl.col("commit") <= 10).sort("commit")
    values = rows.group_by("kind", "id").last().filter(~pl.col("removed"), kind="value")

    assert set(values.collect()["id"]) == {NET, TAX, GONE}
