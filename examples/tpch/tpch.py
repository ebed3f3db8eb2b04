"""Twelve queries of TPC-H as tables that follow their inputs; a branch with another tax and rule.

Against the NATS that REBASER_NATS__URL names, or beside a Rebaser in a temporary directory.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats

from rebaser_client import cel, connect, sql
from rebaser_core.activities import Activity, ActivityKind

HERE = Path(__file__).parent

SCALARS = {
    "tax": 0.02, "shipped_until": "1998-09-02", "segment": "BUILDING", "day": "1995-03-15",
    "quarter": "1993-07-01", "year": "1994-01-01", "area": "ASIA", "discount": 0.06,
    "nations": ["FRANCE", "GERMANY"], "modes": ["MAIL", "SHIP"], "share": 0.9, "quantity": 250,
}  # fmt: skip

TABLES = {
    "pricing_summary": "lineitem tax shipped_until",
    "shipping_priority": "customer orders lineitem segment day tax",
    "order_priority": "orders lineitem quarter",
    "local_suppliers": "customer orders lineitem supplier nation region area year tax",
    "volume_shipping": "lineitem supplier orders customer nation nations",
    "returned_items": "customer orders lineitem nation quarter tax",
    "shipping_modes": "orders lineitem modes year",
    "order_counts": "customer orders",
    "promotion_effect": "lineitem part quarter",
    "supplier_revenue": "lineitem quarter tax",
    "top_suppliers": "supplier supplier_revenue best_revenue share",
    "large_orders": "customer orders lineitem quantity",
}
"""Each table, whose query is in `queries`, and what it takes: tables, scalars, or both."""

VALUES = {
    "forecast": "lineitem year discount_low discount_high",
    "best_revenue": "supplier_revenue",
}
"""Queries that return one value."""


def query(name):
    return (HERE / "queries" / f"{name}.sql").read_text()


def define(graph, name, text):
    inputs = {each: each for each in {**TABLES, **VALUES}[name].split()}
    graph.value(name, sql(text, name=name), **inputs)


def load(graph, data):
    for file in sorted(data.glob("*.parquet")):
        graph.table(file.stem, file)
    for name, value in SCALARS.items():
        graph.source(name, value)
    graph.value("discount_low", cel("discount - 0.01"), discount="discount")
    graph.value("discount_high", cel("discount + 0.01"), discount="discount")
    for name in {**TABLES, **VALUES}:
        define(graph, name, query(name))


async def run(url, data):
    async with connect(url) as client, watched(url) as work:
        head = await client.workspace("tpch").create()
        async with head.edit() as graph:
            load(graph, data)
        await work.report("all tables loaded and computed", head)
        for name in TABLES:
            print(f"    {name:<18}{(await head.table(name)).rows:>8,} rows")
        for value in (await head.values(*VALUES)).values():
            print(f"    {value.name:<18}{value.value:>16,.2f}")

        branch = await head.fork("dearer")
        async with branch.edit() as graph:
            graph.source("tax", 0.05)
        await work.report("on a branch: tax from 0.02 to 0.05", branch)

        async with branch.edit() as graph:
            text = query("shipping_modes").replace("'2-HIGH'", "'2-HIGH', '3-MEDIUM'")
            define(graph, "shipping_modes", text)
        await work.report("on the branch: 3-MEDIUM is urgent, too", branch)

        print("  these tables would differ:")
        for each in await branch.differences():
            if each.name in TABLES:
                await show(each.name, head, branch)

        async with branch.edit() as graph:
            graph.source("tax", 0.02)
        await work.report("on the branch: tax set back", branch)
        async with branch.edit() as graph:
            graph.source("tax", 0.05)
        await work.report("on the branch: tax at 0.05 again", branch)

        await branch.apply()
        await work.report("applied to head", head)
        edits = [entry.commit for entry in await head.log() if entry.updates and not entry.computed]
        plan = await head.plan_revert(edits[-1])
        await head.enqueue(plan.updates)
        await work.report("reverted", head)


async def show(name, head, branch):
    """Print how many rows differ, and the first of them before and after."""
    before, after = await rows_of(name, head), await rows_of(name, branch)
    stay = {*before} & {*after}
    gone, new = ([row for row in rows if row not in stay] for rows in (before, after))
    print(f"    {name}: {len(gone):,} of {len(before):,} rows go, {len(new):,} come")
    for sign, rows in (("-", gone), ("+", new)):
        print(f"      {sign}", *next((row for row in rows if row[0] == gone[0][0]), rows[0]))


async def rows_of(name, change_set):
    """Return the rows in an order, which tables have not: it is another one on another Spark."""
    columns = (await (await change_set.table(name)).to_arrow()).to_pydict()
    return sorted(zip(*columns.values(), strict=True), key=lambda row: [*map(str, row)])


class Work:
    """Number of values that Rebaser has computed since the last report."""

    def __init__(self):
        self.begun, self.computed, self.finished = time.monotonic(), 0, asyncio.Event()

    async def note(self, message):
        activity = Activity.decode(message.headers, message.data)
        if activity.kind is ActivityKind.DVU_FINISHED:
            self.computed += activity.details["recomputed"]
            self.finished.set()

    async def report(self, what, change_set):
        settled = await change_set.settled()
        assert not settled.failed, settled.failed
        async with asyncio.timeout(10):
            await self.finished.wait()
        seconds = time.monotonic() - self.begun
        print(f"{what:<42}{self.computed:>3} values computed anew, {seconds:.1f} s", flush=True)
        self.__init__()


@asynccontextmanager
async def watched(url):
    work, nc = Work(), await nats.connect(url)
    await nc.subscribe("rebaser.activities.>", cb=work.note)
    try:
        yield work
    finally:
        await nc.close()


@contextmanager
def rebaser(directory):
    """Yield the address of NATS: that of REBASER_NATS__URL, or of a Rebaser that runs meanwhile."""
    if url := os.environ.get("REBASER_NATS__URL"):
        yield url
        return
    up = [
        sys.executable,
        "-m",
        "rebaser_server",
        "up",
        "--json",
        "--port",
        "-1",
        "--data",
        directory,
    ]
    with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            yield json.loads(server.stdout.readline())["nats"]
        finally:
            server.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="0.1", help="scale factor (default: %(default)s)")
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory(prefix="tpch-") as directory:
        data = Path(directory) / "tables"
        generate = [
            Path(sys.executable).with_name("tpchgen-cli"),
            "parquet",
            "--scale-factor",
            scale,
        ]
        subprocess.run([*generate, "--output-dir", data], check=True)
        with rebaser(Path(directory) / "rebaser") as url:
            asyncio.run(run(url, data))


if __name__ == "__main__":
    main()
