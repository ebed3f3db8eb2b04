"""`python -m benchmarks [PART…] [--quick] [--json FILE]`: tables on stdout, progress on stderr.

A full run also writes its tables to `results.md` in this folder.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    beside,
    cold,
    dvu,
    evaluation,
    graph,
    harmful,
    large,
    loads,
    parquet,
    partitions,
    peers,
    questions,
    requests,
    results,
    runs,
    store,
    sweeps,
    table_values,
    takeover,
    trips,
)
from benchmarks.machine import Machine, load_average
from benchmarks.sizes import FULL, QUICK

PARTS = {
    "trips": trips.run,
    "requests": requests.run,
    "peers": peers.run,
    "graph": graph.run,
    "store": store.run,
    "dvu": dvu.run,
    "large": large.run,
    "loads": loads.run,
    "parquet": parquet.run,
    "runs": runs.run,
    "evaluation": evaluation.run,
    "sweeps": sweeps.run,
    "tables": table_values.run,
    "partitions": partitions.run,
    "takeover": takeover.run,
    "beside": beside.run,
    "questions": questions.run,
    "harmful": harmful.run,
    "cold": cold.run,
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _arguments(arguments)
    with tempfile.TemporaryDirectory(
        prefix="rebaser-bench-", dir=asked.directory, ignore_cleanup_errors=True
    ) as name:
        machine = Machine.look(Path(name))
        print(machine.text(), flush=True)
        tables = []
        for part in asked.parts or PARTS:
            directory = Path(name) / part
            directory.mkdir()
            found = asyncio.run(PARTS[part](directory, QUICK if asked.quick else FULL, _say))
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


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all"
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
