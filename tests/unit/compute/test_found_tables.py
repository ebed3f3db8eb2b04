"""Tables that are condemned, damaged or too large are not found; `tests/spark` shows which are."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rebaser_core.table_values import TableHandle
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.tables import Query, TableExecutor, Written
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from tests.helpers.work_units import unit_from_rows

SHOP = "shop"
FIELDS = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]


class Writing:
    """Queries that write one row, with the parameter `:n` in it."""

    def __init__(self) -> None:
        self.count = 0
        self.content = "a" * 32
        """Digest of the rows that come next."""

    async def run_query(self, query: Query, *_: object) -> Any:
        self.count += 1
        assert query.target is not None
        files, attempt = query.target
        row = pa.record_batch({"n": [self.count]})
        written = TableFiles(files).write(attempt, row.schema, [row])
        return Written(FIELDS, 1, self.content, written)


class Shop:
    """One value, `totals`, that a query computes from the parameter `:n`."""

    def __init__(self, root: Path) -> None:
        self.tables = TableFiles(SharedFiles(str(root)))
        self.queries = Writing()
        self.executor = TableExecutor(ChildProcessExecutor(), self.queries, self.tables)
        self.former: tuple[str, Any] = ("pending", None)

    async def compute(self, n: int) -> TableHandle:
        unit = unit_from_rows(
            [("sql", "SELECT :n AS n")],
            [(0, [("n", None)])],
            [("totals", 0, *self.former, True, [~0])],
            [("rate", True, n)],
        )
        [result] = await self.executor.run([unit], Run(SHOP))
        assert isinstance(result, UnitResult)
        for _, status, value in result.value_results:
            self.former = (status, value)
        handle = TableHandle.of(self.former[1])
        assert handle is not None
        return handle


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def damage(shop: Shop, handle: TableHandle, *, is_lost: bool = True) -> None:
    [path] = Path(shop.tables.files.root).glob(f"tables/{SHOP}/{handle.key}/*/*.parquet")
    if is_lost:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().swapcase())


async def test_a_value_that_has_kept_another_handle_is_computed(shop: Shop) -> None:
    """Its rows came out as before, so that its table lies under another key than its query's."""
    first = await shop.compute(1)
    assert await shop.compute(2) == first
    assert shop.queries.count == 2

    shop.tables.condemn(SHOP, first.key)
    forced = await shop.compute(2)

    assert shop.queries.count == 3
    assert forced == replace(first, key=forced.key, bytes=forced.bytes)
    assert forced.key != first.key
    assert await shop.compute(2) == forced
    assert shop.queries.count == 3


async def test_a_damaged_table_is_computed_again(shop: Shop) -> None:
    """Those that name it read what replaces it, if that has equal rows."""
    first = await shop.compute(1)
    damage(shop, first)

    assert await shop.compute(1) == first

    assert shop.queries.count == 2
    assert shop.tables.get(SHOP, first.key)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_query_over_a_damaged_table_fails_with_what_to_do(
    shop: Shop, is_lost: bool
) -> None:
    """An upload cannot be computed. A file that has its size is compared before it is read."""
    first = await shop.compute(1)
    damage(shop, first, is_lost=is_lost)
    unit = unit_from_rows(
        [("sql", "SELECT n FROM t")],
        [(0, [("t", None)])],
        [("it", 0, "pending", None, True, [~0])],
        [("orders", True, first.to_value())],
    )

    [result] = await shop.executor.run([unit], Run(SHOP))

    assert isinstance(result, UnitResult)
    [(_, status, message)] = result.value_results
    assert (status, shop.queries.count) == ("failed", 1)
    assert ("not whole in" if is_lost else "is damaged in") in message
    assert "if this table was uploaded, upload it again" in message


async def test_a_query_that_fails_leaves_nothing(shop: Shop) -> None:
    """Neither a table nor a part of one."""

    class Failing(Writing):
        async def run_query(self, query: Query, *_: object) -> Any:
            await super().run_query(query)
            raise OSError("the disk is full")

    shop.executor = TableExecutor(ChildProcessExecutor(), Failing(), shop.tables)

    with pytest.raises(OSError, match="disk is full"):
        await shop.compute(1)

    assert [(each.written, each.attempts) for each in shop.tables.stored()] == [(None, ())]


async def test_equal_work_side_by_side_is_done_once(shop: Shop) -> None:
    unit = unit_from_rows(
        [("sql", "SELECT :n AS n")],
        [(0, [("n", None)])],
        [(f"totals {n}", 0, "pending", None, True, [~0]) for n in range(3)],
        [("rate", True, 1)],
    )

    [result] = await shop.executor.run([unit], Run(SHOP))

    assert isinstance(result, UnitResult)
    assert len({str(value) for _, _, value in result.value_results}) == 1
    assert shop.queries.count == 1


class Endless:
    """A query that writes, and goes on."""

    def __init__(self) -> None:
        self.is_cancelled = False

    async def run_query(self, query: Query, *_: object) -> Any:
        assert query.target is not None
        files, attempt = query.target
        files.put(f"{attempt.directory}/part-0.parquet", bytes(2000))
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True


async def test_a_query_that_writes_too_much_is_ended_and_fails_its_value(tmp_path: Path) -> None:
    """What it has written is gone."""
    queries = Endless()
    tables = TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables, max_bytes=1000)
    unit = unit_from_rows(
        [("sql", "SELECT :n AS n")],
        [(0, [("n", None)])],
        [("totals", 0, "pending", None, True, [~0])],
        [("rate", True, 1)],
    )

    [result] = await executor.run([unit], Run(SHOP))

    assert isinstance(result, UnitResult)
    [(_, status, message)] = result.value_results
    assert status == "failed"
    assert "the result has more than 1,000 bytes" in message
    assert queries.is_cancelled
    left = tables.files.list_infos(".", recursive=True)
    assert not [info for info in left if info.base_name.endswith(".parquet")]
