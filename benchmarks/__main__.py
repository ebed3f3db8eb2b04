"""`python -m benchmarks [PART…] [--quick] [--json FILE]`: tables on stdout, progress on stderr.

A full run also writes its tables to `results.md` in this folder. Parts that begin with `scale` are
about very many change sets and daemons; each takes up to an hour and gigabytes, and is run by name.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    cold,
    dvu,
    evaluation,
    graph,
    large,
    loads,
    parquet,
    partitions,
    peers,
    questions,
    requests,
    results,
    scale_active,
    scale_fair,
    scale_known,
    scale_out,
    scale_page,
    small_tables,
    store,
    table_values,
    takeover,
    trips,
)
from benchmarks.machine import Machine, load_average
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.tables import Table

Say = Callable[[str], None]
Run = Callable[[Path, Sizes, Say], Awaitable[list[Table]]]


def _sized(
    run: Callable[..., Awaitable[list[Table]]], full: Sequence[Any], quick: Sequence[Any]
) -> Run:
    return lambda files, sizes, say: run(files, *(quick if sizes is QUICK else full), say)


PARTS: dict[str, Run] = {
    "trips": trips.run,
    "requests": requests.run,
    "peers": peers.run,
    "graph": graph.run,
    "store": store.run,
    "dvu": dvu.run,
    "large": large.run,
    "loads": loads.run,
    "parquet": parquet.run,
    "evaluation": evaluation.run,
    "tables": table_values.run,
    "small-tables": small_tables.run,
    "partitions": partitions.run,
    "takeover": takeover.run,
    "questions": questions.run,
    "cold": cold.run,
    "scale-active": _sized(scale_active.run, [(1_000, 10_000)], [(100,)]),
    "scale-known": _sized(scale_known.run, [(1_000, 1_000_000), 5, 40], [(1_000, 20_000), 1, 5]),
    "scale-fair": _sized(scale_fair.run, [1_000, 3], [60, 1]),
    "scale-out": _sized(scale_out.run, [(1, 2, 4, 8), 3, 400], [(1, 2), 1, 60]),
    "scale-page": _sized(scale_page.run, [(10, 1_000), 5], [(5, 50), 1]),
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _arguments(arguments)
    with tempfile.TemporaryDirectory(
        prefix="rebaser-bench-", dir=asked.directory, ignore_cleanup_errors=True
    ) as name:
        machine = Machine.look(Path(name))
        print(machine.text(), flush=True)
        tables = []
        for part in asked.parts or (each for each in PARTS if not each.startswith("scale")):
            directory = Path(name) / part
            directory.mkdir()
            found = asyncio.run(_run(PARTS[part], directory, QUICK if asked.quick else FULL))
            for table in found:
                print(f"\n{table.text()}", flush=True)
                tables.append(table.as_json())
            if not asked.quick:
                results.record(part, machine, found)
    machine.facts["load average at the end"] = load_average()
    print(f"\nload average at the end: {machine.facts['load average at the end']}")
    if asked.json:
        figures = {"quick": asked.quick, "machine": machine.facts, "tables": tables}
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")


async def _run(part: Run, directory: Path, sizes: Sizes) -> list[Table]:
    return await part(directory, sizes, _say)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all but scale-…"
    )
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--directory", type=Path, help="for the servers' files; default: TMPDIR")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return asked


def _say(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
