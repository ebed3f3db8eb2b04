"""Parts of the benchmarks in several checkouts, in turns, each with its own virtual environment.

python -m benchmarks.versions OLD_CHECKOUT [CHECKOUT …] [--parts requests dvu] [--rounds 3]

Each round starts all processes anew, since the same code differs by a tenth from one start of its
process to the next. Machine and order are the same for all; only ratios are to be believed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

from benchmarks.tables import Table, median

Figures = dict[tuple[str, str, str], list[float]]
"""Of each round, by table, row and column."""
_NOTE: Final = "Medians of {rounds} rounds in turns; ratios to the first checkout."


def measure(checkout: Path, part: str, found: Figures, *options: str) -> None:
    """Run a part as that checkout has it, and add its figures."""
    results = checkout / "benchmarks" / "results.md"
    kept = results.read_bytes()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            subprocess.run(
                [
                    checkout / ".venv/bin/python",
                    "-m",
                    "benchmarks",
                    part,
                    "--json",
                    file.name,
                    *options,
                ],
                cwd=checkout,
                env=os.environ | {"PYTHONPATH": f".{os.pathsep}examples/debian"},
                stdout=subprocess.DEVNULL,
                check=True,
            )
        finally:
            results.write_bytes(kept)
        tables = json.loads(Path(file.name).read_text())["tables"]
    for table in tables:
        for number, row in enumerate(table["rows"]):
            texts = [cell for cell in row.values() if isinstance(cell, str)]
            for column, cell in row.items():
                if isinstance(cell, int | float):
                    what = ", ".join(texts) + f" ({number + 1})"
                    found[table["title"], what, column].append(float(cell))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--parts", nargs="+", default=["requests", "dvu"], metavar="PART")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    asked = parser.parse_args()
    checkouts = [each.resolve() for each in asked.checkouts]
    options = ["--quick"] if asked.quick else []
    for part in asked.parts:
        found: dict[Path, Figures] = {each: defaultdict(list) for each in checkouts}
        for number in range(asked.rounds):
            print(f"{part}: round {number + 1} of {asked.rounds}", file=sys.stderr)
            for checkout in checkouts[:: 1 if number % 2 else -1]:
                measure(checkout, part, found[checkout], *options)
        first, *others = found.values()
        table = Table(
            f"{part}: {', '.join(str(each) for each in checkouts)}",
            ["table", "row", "column", "first", *(f"ratio of {n + 2}" for n in range(len(others)))],
            notes=[_NOTE.format(rounds=asked.rounds)],
        )
        for where, figures in first.items():
            base = median(figures)
            ratios = [
                median(each[where]) / base if each[where] and base else None for each in others
            ]
            table.rows.append([*where, base, *ratios])
        print(f"\n{table.text()}", flush=True)


if __name__ == "__main__":
    main()
