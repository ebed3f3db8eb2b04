"""`python -m benchmarks.scale PART… [--quick] [--json FILE]`: very many change sets, and daemons.

Apart from `python -m benchmarks`, since it takes an hour and gigabytes. A full run also writes its
tables to `results.md` in this folder.
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
    results,
    scale_active,
    scale_fair,
    scale_known,
    scale_out,
    scale_page,
    scale_refresh,
    scale_slots,
    scale_start,
)
from benchmarks.machine import Machine, load_average

FULL = {
    "active": lambda files, say: scale_active.run(files, (1_000, 10_000), say),
    "known": lambda files, say: scale_known.run(files, (1_000, 1_000_000), 5, 40, say),
    "fair": lambda files, say: scale_fair.run(files, 1_000, 3, say),
    "out": lambda files, say: scale_out.run(files, (1, 2, 4, 8), 3, 400, say),
    "slots": lambda files, say: scale_slots.run(files, 400, 100, 3, say),
    "start": lambda files, say: scale_start.run(files, 7, say),
    "page": lambda files, say: scale_page.run(files, (10, 1_000), 5, say),
    "refresh": lambda _, say: scale_refresh.run(1_000, 10_000, 15, say),
}
QUICK = {
    "active": lambda files, say: scale_active.run(files, (100,), say),
    "known": lambda files, say: scale_known.run(files, (1_000, 20_000), 1, 5, say),
    "fair": lambda files, say: scale_fair.run(files, 60, 1, say),
    "out": lambda files, say: scale_out.run(files, (1, 2), 1, 60, say),
    "slots": lambda files, say: scale_slots.run(files, 20, 5, 1, say),
    "start": lambda files, say: scale_start.run(files, 1, say),
    "page": lambda files, say: scale_page.run(files, (5, 50), 1, say),
    "refresh": lambda _, say: scale_refresh.run(50, 500, 2, say),
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _arguments(arguments)
    parts = QUICK if asked.quick else FULL
    with tempfile.TemporaryDirectory(
        prefix="rebaser-scale-", dir=asked.directory, ignore_cleanup_errors=True
    ) as name:
        machine = Machine.look(Path(name))
        print(machine.text(), flush=True)
        tables = []
        for part in asked.parts:
            files = Path(name) / part
            files.mkdir()
            found = asyncio.run(parts[part](files, _say))
            for table in found:
                print(f"\n{table.text()}", flush=True)
                tables.append(table.as_json())
            if not asked.quick:
                results.record(f"scale {part}", machine, found)
    machine.facts["load average at the end"] = load_average()
    print(f"\nload average at the end: {machine.facts['load average at the end']}")
    if asked.json:
        figures = {"quick": asked.quick, "machine": machine.facts, "tables": tables}
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="PART", choices=FULL, help=", ".join(FULL))
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--directory", type=Path, help="for the servers' files; default: TMPDIR")
    return parser.parse_args(arguments)


def _say(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
