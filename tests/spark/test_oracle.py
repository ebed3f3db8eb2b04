"""Values of graphs of tables are what DuckDB says: graphs and edits are drawn at random.

`EXAMPLES` multiplies the graphs, each of which has `ROUNDS`: 10 make 1,000 rounds. Below 1, as in
`make test`, one graph has four. Of every second graph the tables are in S3, and are computed on a
cluster.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rebaser_core.table_values import TableHandle
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import UnitResult, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, TableExecutor
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.tables import TableFiles
from rebaser_server.values.edits import DefinitionView
from rebaser_server.values.graph import Graph
from rebaser_server.values.merge import changes_between
from rebaser_server.values.rebase import apply_result_table
from tests.helpers.drawn_tables import DuckDb, Rows, TableDrawing, TableReader, told
from tests.helpers.in_memory_branch import Head
from tests.helpers.reference_spreadsheet import Sheet
from tests.spark.conftest import ON_A_CLUSTER, Place
from tests.unit.compute import test_oracle
from tests.unit.compute.test_oracle import EVERYTHING, Line

pytestmark = pytest.mark.spark

EXAMPLES = float(os.environ.get("EXAMPLES", "1"))
ROUNDS = 4 if EXAMPLES < 1 else 10
GRAPHS = 1 if EXAMPLES < 1 else round(10 * EXAMPLES)
WORKSPACE = "01J00000000000000000000000"


class InProcess:
    """Ordinary functions, evaluated here."""

    async def run(self, units: Sequence[WorkUnit], _: Run) -> list[UnitResult]:
        return [decode_result(evaluate(unit.encode())) for unit in units]


class Counted:
    """Queries on Spark, and how many of them had a result."""

    def __init__(self, spark: SparkExecutor) -> None:
        self._spark = SparkQueries(spark)
        self.results = 0

    async def run_query(self, query: Query, about: str, run: Run) -> Any:
        found = await self._spark.run_query(query, about, run)
        self.results += 1
        return found


class World(test_oracle.World):
    """World of the oracle of values, in a store that has the tables of all worlds."""

    def __init__(self, seed: int, root: Path, place: Place) -> None:
        self.duckdb = DuckDb()
        functions = SimpleNamespace(functions=self.duckdb.functions())
        super().__init__(seed, root, functions)  # type: ignore[arg-type]
        self.drawing: TableDrawing = TableDrawing(self.chance, self.duckdb)  # type: ignore[assignment]
        tables = TableFiles(place.new_store())
        for upload in self.drawing.uploads:
            tables.adopt(WORKSPACE, upload.digest, upload.payload)
        self.reader = TableReader(tables, WORKSPACE)
        self.queries = Counted(place.executor)
        self.asked: set[str] = set()
        """Queries with all that they took, of which each may have had a result once."""
        self.executor = TableExecutor(InProcess(), self.queries, tables)
        self.actions = {
            self.edit: 12, self.fork: 3, self.apply: 4, self.take_back: 4, self.again: 1,
        }  # fmt: skip

    async def begin(self) -> None:
        self.head.request(self.drawing.define())
        await self.check()

    def apply(self, line: Line) -> None:
        super().apply(line)
        self.merge(line)

    def again(self, line: Line) -> None:
        """Have all values and functions defined anew, as they are."""
        line.request(changes_between(DefinitionView.of(Graph()), line.at.graph, *_ids(line)))

    async def check(self) -> None:
        for line in [self.head, *self.branches]:
            await self.compute(line.at.graph)
            self.require_right(line)
            line.past.append(deepcopy(line.at.graph))

    async def compute(self, graph: Graph) -> None:
        units = plan(graph, self.chance.randint(1, 2), small=self.chance.choice([0, 256])).units
        for outcome in await self.executor.run(units, Run(WORKSPACE)):
            assert isinstance(outcome, UnitResult)
            apply_result_table(graph, outcome.table, EVERYTHING)
        graph.clear_roots(EVERYTHING)

    def require_right(self, line: Line) -> None:
        """All values are as DuckDB says, and no query that had a result ran twice."""
        found = {
            value.id: (
                value.status.value,
                value.message if value.status == "blocked" else self.reader.read(value.value),
            )
            for value in line.at.graph.values.values()
            if value.func_id is not None
        }
        expected = line.sheet.worked_out()
        assert told(found) == told(expected), explain(self, line, found, expected)
        self.asked |= {*self.with_results(line)}
        assert self.queries.results <= len(self.asked)

    def with_results(self, line: Line) -> Iterator[str]:
        """Queries that have a result, each with all that it takes; columns may be null or not."""
        values, sheet = line.at.graph.values, line.sheet
        for value_id, (func_id, inputs) in sheet.formulas.items():
            query = self.duckdb.queries.get(str(sheet.codes.get(func_id)))
            if query is not None and values[value_id].status == "ok":
                names = [*query.takes, *query.parameters]
                used = {name: _content(values[str(inputs[name])].value) for name in names}
                yield json.dumps([query.code, used], sort_keys=True)


def _content(value: Any) -> Any:
    handle = TableHandle.of(value)
    return value if handle is None else [handle.content, handle.schema]


def _ids(line: Line) -> tuple[set[str], set[str]]:
    return {*line.at.graph.values}, {*line.at.graph.funcs}


def explain(world: World, line: Line, found: Any, expected: Any) -> str:
    """What is needed to look into a difference."""
    sheet, graph, lines = line.sheet, line.at.graph, []
    for value_id, what in told(expected).items():
        if told(found).get(value_id) == what:
            continue
        func_id, inputs = sheet.formulas[value_id]
        value = graph.values[value_id]
        lines += [
            f"{value_id} {sheet.codes.get(func_id)!r} {inputs} {value.message}",
            *(f"  {name}: {sheet.sources.get(str(each), expected.get(str(each)))}"
              for name, each in inputs.items()),
            f"  here {_shown(found[value_id])}",
            f"  DuckDB {_shown(expected[value_id])}",
            f"  {world.duckdb.errors.get(str(sheet.codes.get(func_id)))}",
        ]  # fmt: skip
    return "\n".join(lines)


def _shown(what: tuple[str, Any]) -> str:
    status, value = what
    if hasattr(value, "rows"):
        return f"{status} {value.kinds} {sorted(map(str, value.rows))}"
    return json.dumps([status, value], default=str)


@pytest.mark.parametrize(
    ("seed", "place"),
    [
        pytest.param(seed, ON_A_CLUSTER, marks=pytest.mark.slow) if seed % 2 else (seed, None)
        for seed in range(GRAPHS)
    ],
    indirect=["place"],
)
async def test_tables_are_what_duckdb_says(seed: int, tmp_path: Path, place: Place) -> None:
    """Edits, branches, applies, reverts; failures, empty tables, other rules and uploads."""
    world = World(seed, tmp_path, place)
    await world.begin()
    for _ in range(ROUNDS):
        world.act()
        await world.check()


def test_what_is_drawn_shows_something() -> None:
    """Most queries have rows, some fail, and some are behind these."""
    seen = Counter[str]()
    for seed in range(20):
        duckdb = DuckDb()
        drawing, sheet = TableDrawing(random.Random(seed), duckdb), Sheet(duckdb.functions())
        line = Line(Head(), sheet)
        line.request(drawing.define())
        for _ in range(10):
            line.request(drawing.edits(sheet))
            for status, value in sheet.worked_out().values():
                seen[status] += 1
                seen["rows"] += isinstance(value, Rows) and len(value.table) > 0

    total = seen["ok"] + seen["failed"] + seen["blocked"]
    assert seen["rows"] > total / 3, seen
    assert total / 20 < seen["failed"] < total / 3, seen
    assert total / 20 < seen["blocked"] < total / 3, seen
