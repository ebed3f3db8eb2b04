"""Functions of runtime `arrow`: sound ones, and others that return what is no table."""

from pathlib import Path

from tests.helpers.graph_builder import install

_CODE = '''"""For tests."""

import datetime
import os
import time

import pyarrow as pa
import pyarrow.compute as pc


# Sound.

def times(*, orders, rate):
    place = orders.column_names.index("amount")
    return orders.set_column(place, "amount", pc.multiply(orders["amount"], rate))
def backwards(*, orders): return orders.take(list(range(orders.num_rows))[::-1])
def total(*, orders): return pc.sum(orders["amount"]).as_py()
def empty(*, orders): return orders.slice(0, 0)
def count_all(*, several): return sum(each.num_rows for each in several)
def echo(*, value): return value
def made(*, rows): return pa.table({"n": range(rows)})
def kind(*, orders, rate): return [type(orders).__module__, type(rate).__name__]
def by_day(*, orders):
    summed = orders.group_by("day").aggregate([("amount", "sum")])
    return summed.rename_columns({"amount_sum": "total"})
def polars(*, orders):
    import polars as pl
    return pl.from_arrow(orders).group_by("day").agg(pl.col("amount").sum().alias("total"))
def duck(*, orders):
    import duckdb
    return duckdb.sql("SELECT day, sum(amount)::bigint AS total FROM orders GROUP BY day")
def pandas(*, orders): return orders.to_pandas().groupby("day", as_index=False)["amount"].sum()
def batch(*, orders): return orders.combine_chunks().to_batches()[0]
def reader(*, orders): return orders.to_reader()
def waits(*, orders, place):
    while not os.path.exists(place): time.sleep(0.01)
    return orders

# Not sound.

def raises(*, orders): return orders["amounts"]
def ends(*, orders): os._exit(3)
def killed(*, orders): os.kill(os.getpid(), 9)
def sleeps(*, orders): time.sleep(600)
def twice(*, orders): return pa.table([orders["day"], orders["day"]], ["day", "day"])
def durations(*, orders): return pa.table({"d": [datetime.timedelta(1)]})
def nulls(*, orders): return pa.table({"n": pa.nulls(3)})
def no_columns(*, orders): return orders.select([])
def not_nullable(*, orders):
    return pa.table([[1, None]], pa.schema([pa.field("n", pa.int64(), False)]))
def nanoseconds(*, orders): return pa.table({"t": pa.array([1], pa.timestamp("ns"))})
def scalar(*, orders): return pc.sum(orders["amount"])
def column(*, orders): return orders["amount"]
def lazy(*, orders):
    import polars as pl
    return pl.from_arrow(orders).lazy()
def filtered(*, orders):
    frame = orders.to_pandas()
    return frame[frame.amount > 10]
def objects(*, orders):
    import polars as pl
    return pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)})
def handle(*, orders): return {"$table": {"content": "a" * 32}}
def given(*, value): return value["inside"]
def huge(*, orders): return pa.table({"n": pa.array(range(9_000_000), pa.int64())})
def printing(*, orders):
    os.chdir("/")
    print(orders.num_rows)
    return orders
def noting(*, orders, place):
    with open(place, "a") as file: file.write("called")
    return orders
def notes_scalar(*, orders, place):
    with open(place, "a") as file: file.write("called")
    return orders.num_rows
'''
_NAMES = [line[4:].partition("(")[0] for line in _CODE.splitlines() if line.startswith("def ")]


def install_arrow_functions(directory: Path) -> None:
    """Make them known to processes that have the directory in their `PYTHONPATH`."""
    directory.mkdir(exist_ok=True)
    install(directory, "of_arrow", _CODE, {f"arrow.{name}": f"of_arrow:{name}" for name in _NAMES})
