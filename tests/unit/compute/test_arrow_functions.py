"""Functions of runtime `arrow`, in evaluators beside the daemon: what they take, give, leave."""

import asyncio
import io
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Never

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_core.table_schemas import arrow_schema
from rebaser_core.table_values import TableHandle, upload_value
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.executors import ChildProcessExecutor, RoutingExecutor
from rebaser_server.compute.rescue import isolated
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.tables import Query, TableExecutor
from rebaser_server.compute.work_unit import CallLimits
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.tables import TableFiles
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows

SHOP = "01KAXW1KQW0000000000000000"
ORDERS = pa.table({"day": ["mon", "tue", "mon"], "amount": pa.array([10, 90, 50], pa.int64())})

MADE_ANEW = "import pyarrow as pa\n\ndef made(*, rows): return pa.table({'n': [rows]})"


class NoSpark:
    """Spark that is not there: a query to it is a mistake."""

    async def run_query(self, query: Query, *_: object) -> Never:
        raise AssertionError(query)

    async def run(self, *_: object, **__: object) -> Never:
        raise AssertionError

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Shop:
    """Values by functions of tables, without Spark, as a daemon with a cluster computes them."""

    def __init__(self, root: Path) -> None:
        self.tables = TableFiles(SharedFiles(str(root / "store")))
        self.children = ChildProcessExecutor(2)
        inner = RoutingExecutor(self.children, NoSpark(), CostModel(), large_from=0)
        self.executor = TableExecutor(inner, NoSpark(), self.tables)
        self.orders = self.upload(ORDERS)
        self.recomputed = 0

    def upload(self, table: pa.Table) -> dict[str, Any]:
        sink = io.BytesIO()
        pq.write_table(table, sink)
        digest = blake3(sink.getvalue()).hexdigest()
        self.tables.adopt(SHOP, digest, sink.getvalue())
        return upload_value(digest)

    async def outcome(
        self,
        name: str,
        *,
        former: tuple[str, Any] = ("pending", None),
        limits: CallLimits = CallLimits(seconds=60, memory=1 << 30),
        **inputs: Any,
    ) -> tuple[str, Any]:
        """Status, and value or message, of a value by the function `arrow.NAME`."""
        lists = {each: value for each, value in inputs.items() if each == "several"}
        flat = [item for each, value in inputs.items() for item in lists.get(each, [value])]
        unit = unit_from_rows(
            [("arrow", f"arrow.{name}")],
            [
                (
                    0,
                    [
                        (each, len(value) if each in lists else None)
                        for each, value in inputs.items()
                    ],
                )
            ],
            [("it", 0, *former, True, [~n for n in range(len(flat))])],
            [(f"input {n}", True, value) for n, value in enumerate(flat)],
            limits,
        )
        try:
            [result] = await self.executor.run([unit], Run(SHOP))
        except RunFailed:  # as an update goes on
            [result] = await self.executor.run(isolated([unit], 60), Run(SHOP))
        assert isinstance(result, UnitResult)
        self.recomputed = result.recomputed
        return result.value_results[0][1:] if len(result) else former

    async def value(self, name: str, **inputs: Any) -> Any:
        status, value = await self.outcome(name, **inputs)
        assert status == "ok", value
        return value

    def rows(self, value: Any) -> pa.Table:
        handle = TableHandle.of(value)
        assert handle is not None, value
        manifest = self.tables.get(SHOP, handle.key)
        names = [field["name"] for field in manifest.fields]
        batches = self.tables.batches(SHOP, manifest, names)
        table = pa.Table.from_batches(batches, arrow_schema(manifest.fields))
        assert (handle.rows, handle.bytes) == (table.num_rows, manifest.size)
        return table

    def left(self) -> list[str]:
        """Attempts of tables that have no manifest."""
        stored = list(self.tables.stored())
        return [name for each in stored if each.written is None for name in each.attempts]


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    install_arrow_functions(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Shop(tmp_path)
    yield found
    await found.children.close()


async def test_a_function_takes_tables_and_returns_one(shop: Shop) -> None:
    """A table of pyarrow, and scalars as JSON has them."""
    doubled = await shop.value("times", orders=shop.orders, rate=2)

    assert shop.rows(doubled).to_pydict() == {
        "day": ["mon", "tue", "mon"],
        "amount": [20, 180, 100],
    }
    assert await shop.value("total", orders=doubled) == 300
    assert await shop.value("kind", orders=doubled, rate=1.5) == ["pyarrow.lib", "float"]
    assert await shop.value("count_all", several=[shop.orders, doubled]) == 6
    assert await shop.value("echo", value={"a": [1, None]}) == {"a": [1, None]}
    assert shop.rows(await shop.value("made", rows=3)).to_pydict() == {"n": [0, 1, 2]}
    assert shop.left() == []


async def test_whatever_arrow_can_read_is_a_table(shop: Shop) -> None:
    """A frame, a relation, a batch or a stream; also one without rows."""
    names = ("polars", "duck", "pandas", "batch", "reader", "empty")
    tables = {name: shop.rows(await shop.value(name, orders=shop.orders)) for name in names}

    assert {name: sorted(each.column(1).to_pylist()) for name, each in tables.items()} == {
        "polars": [60, 90],
        "duck": [60, 90],
        "pandas": [60, 90],
        "batch": [10, 50, 90],
        "reader": [10, 50, 90],
        "empty": [],
    }
    for each in tables.values():
        assert {str(kind) for kind in each.schema.types} == {"string", "int64"}


REFUSED = {
    "raises": r"KeyError: 'Field \"amounts\" does not exist in schema' \(at of_arrow.py:\d+ in r",
    "twice": "the result cannot be a value: two columns are called 'day': give each a name",
    "durations": r"the result cannot be a value: column 'd' is of type duration\[us\], which",
    "nulls": "the result cannot be a value: column 'n' is of type null, which a table",
    "no_columns": "the result cannot be a value: a table has at least one column",
    "not_nullable": "the result cannot be a value: column 'n' is not nullable, and has nulls",
    "nanoseconds": r"the result cannot be a value: column 't' does not fit timestamp\[us\]",
    "scalar": "the result cannot be a value: Int64Scalar is neither JSON nor a table: .* its",
    "column": "the result cannot be a value: ChunkedArray is no table: ",
    "lazy": "the result cannot be a value: LazyFrame is neither JSON nor a table",
    "filtered": r"the result cannot be a value: column '__index_level_0__': the index of the frame",
    "objects": "the result cannot be a value: DataFrame is no table: column 'o' has objects of Pyt",
    "handle": r"the result cannot be a value: an object with the key \$table: return the tab",
    "huge": "the result has more than 64 MiB, the most that a function .* returns: use `sql`",
    "missing": "no Python function 'arrow.missing' is installed here",
}
"""Functions, and the beginning of what their values fail with."""


async def test_a_result_that_is_no_table_fails_its_value(shop: Shop) -> None:
    """The message says what is wrong, and nothing is left in the store."""
    outcomes = {name: await shop.outcome(name, orders=shop.orders) for name in REFUSED}

    assert {status for status, _ in outcomes.values()} == {"failed"}
    unlike = {
        name: text for name, (_, text) in outcomes.items() if not re.match(REFUSED[name], text)
    }
    assert unlike == {}
    assert shop.left() == []


async def test_equal_rows_keep_the_handle(shop: Shop) -> None:
    """In whichever order they come out, and also if the function has other inputs."""
    first = await shop.value("times", orders=shop.orders, rate=1)
    other = await shop.value("times", orders=shop.orders, rate=2)

    again = await shop.outcome("backwards", orders=first, former=("ok", first))

    assert again == ("ok", first)
    assert first != other
    assert shop.recomputed == 1


async def test_a_table_that_was_computed_before_is_found(shop: Shop, tmp_path: Path) -> None:
    """Under the function's code and what is in its inputs, also if these lie under other keys."""
    note = tmp_path / "note"
    one = await shop.value("times", orders=shop.orders, rate=1)
    other = await shop.value("backwards", orders=shop.orders)

    found = [await shop.value("noting", orders=each, place=str(note)) for each in (one, other)]

    assert shop.recomputed == 0
    assert found[0] == found[1]
    assert note.read_text() == "called"


async def test_other_code_computes_anew(shop: Shop, tmp_path: Path) -> None:
    """A table is found under the code that computed it."""
    first = await shop.value("made", rows=3)

    install(tmp_path, "of_arrow", MADE_ANEW, {"arrow.made": "of_arrow:made"}, version="2.0")
    await shop.children.close()
    second = await shop.value("made", rows=3)

    assert shop.rows(first).to_pydict() == {"n": [0, 1, 2]}
    assert shop.rows(second).to_pydict() == {"n": [3]}


async def test_a_plain_value_is_computed_again(shop: Shop, tmp_path: Path) -> None:
    """So that `rebaser dvu run` has it computed: it has no table that could be condemned."""
    note = tmp_path / "note"

    for _ in range(2):
        assert await shop.value("notes_scalar", orders=shop.orders, place=str(note)) == 3

    assert note.read_text() == "calledcalled"


async def test_a_table_that_is_condemned_is_computed_again(shop: Shop, tmp_path: Path) -> None:
    note = tmp_path / "note"
    first = await shop.value("noting", orders=shop.orders, place=str(note))
    handle = TableHandle.of(first)
    assert handle is not None

    shop.tables.condemn(SHOP, handle.key)
    status, again = await shop.outcome(
        "noting", orders=shop.orders, place=str(note), former=("ok", first)
    )

    assert (status, again) == ("ok", first)
    assert note.read_text() == "calledcalled"


async def test_a_list_is_not_taken_for_the_table_with_its_content(shop: Shop) -> None:
    """Equal keys would give one's result to the other."""
    table = await shop.value("times", orders=shop.orders, rate=1)
    handle = TableHandle.of(table)
    assert handle is not None
    await shop.value("backwards", orders=table)

    for forged in (["table", handle.content, handle.schema], [handle.content, handle.schema]):
        status, message = await shop.outcome("backwards", orders=forged)
        assert (status, message[:14]) == ("failed", "AttributeError")


@pytest.mark.parametrize("what", ["another workspace's", "with other content", "no handle"])
async def test_a_function_reads_no_table_by_an_object_that_was_made_up(
    shop: Shop, what: str
) -> None:
    handle = TableHandle.of(await shop.value("times", orders=shop.orders, rate=1))
    assert handle is not None
    forged = {
        "another workspace's": asdict(replace(handle, key=f"../theirs/{handle.key}")),
        "with other content": asdict(replace(handle, content="0" * 32)),
        "no handle": {"content": "0" * 32},
    }[what]

    alone = await shop.outcome("total", orders={"$table": forged})
    among = await shop.outcome("count_all", several=[shop.orders, {"$table": forged}])
    inside = await shop.outcome("given", value={"inside": {"$table": forged}})

    for status, message in (alone, among):
        assert (status, "is no table" in message) == ("failed", True)
    assert inside[0] == "failed"
    assert "an object with the key $table: return the table itself" in inside[1]


async def test_a_table_beyond_the_limit_is_for_sql(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose files are too large, and one whose rows are, as they are read."""
    repeated = shop.upload(pa.table({"text": ["a" * 1_000] * 80_000}))
    message = "table 'orders' has more than 64 MiB, the most that a function of runtime `arrow`"

    read = await shop.outcome("empty", orders=repeated)
    monkeypatch.setattr("rebaser_server.compute.tables.MAX_TABLE_BYTES", 10)
    unread = await shop.outcome("empty", orders=shop.orders)

    for status, text in (read, unread):
        assert (status, text[: len(message)]) == ("failed", message)


@pytest.mark.parametrize(
    ("name", "seconds", "message"),
    [
        ("killed", 60, "computing it ended the evaluator: killed by SIGKILL"),
        ("sleeps", 0.5, "it did not return "),
    ],
)
async def test_a_call_that_ends_its_process_or_never_returns_fails_its_value(
    shop: Shop, name: str, seconds: float, message: str
) -> None:
    """As one of runtime `python`."""
    status, text = await shop.outcome(name, orders=shop.orders, limits=CallLimits(seconds))

    assert (status, text[: len(message)]) == ("failed", message)
    assert shop.left() == []


async def test_a_guarded_call_of_a_library_with_threads_returns(shop: Shop) -> None:
    """Polars waits for its threads for ever in a fork of a process that has used it."""
    rows = {"day": [str(n % 100) for n in range(200_000)], "amount": list(range(200_000))}
    large = shop.upload(pa.table(rows))
    guarded = CallLimits(seconds=20, is_forked=True)

    first = await shop.outcome("polars", orders=shop.orders)
    second = await shop.outcome("polars", orders=large, limits=guarded)

    assert (first[0], second[0]) == ("ok", "ok"), second


async def test_what_a_call_changes_reaches_no_other(shop: Shop) -> None:
    """The process is put back, and used on."""
    before = await shop.value("total", orders=shop.orders)
    same = await shop.value("printing", orders=shop.orders)

    assert shop.rows(same) == ORDERS
    assert await shop.value("total", orders=same) == before


async def test_a_cancelled_call_leaves_nothing(shop: Shop) -> None:
    asking = asyncio.ensure_future(shop.outcome("sleeps", orders=shop.orders))
    await eventually(lambda: bool(shop.children._busy))

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert not shop.children._busy
    assert shop.left() == []


async def test_a_store_that_cannot_be_written_to_fails_no_value(shop: Shop) -> None:
    """The update is tried again."""
    root = Path(shop.tables.files.root)
    shutil.rmtree(root / "unfinished")
    (root / "unfinished").touch()

    with pytest.raises(StoreFailed, match="File exists"):
        await shop.value("backwards", orders=shop.orders)
