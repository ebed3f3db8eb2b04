"""Processor time of a request in several checkouts of Rebaser, which run side by side.

python -m benchmarks.versions OLD_CHECKOUT [CHECKOUT …] [--quick]

Each checkout has its own virtual environment, `.venv`. They are flooded in turns, each with a
client, a daemon and a NATS server of its own. All are started several times, since the same code
differs by a tenth from one start of its process to the next.
"""

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, Self, cast

from benchmarks.tables import Table

CHANGE_SETS: Final = 50
REQUESTS: Final = 10
"""For each change set in one flood."""
FLOODS: Final = 20
STARTS: Final = 8
PROCESSES: Final = ("client", "daemon", "nats-server")
_SCRIPT: Final = Path(__file__).with_name("flooded_version.py")


class Version:
    """One checkout, with its processes."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process = process = subprocess.Popen(
            [checkout / ".venv/bin/python", _SCRIPT, str(CHANGE_SETS), str(REQUESTS)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": "."},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._questions = cast("IO[str]", process.stdin)
        self._answers = cast("IO[str]", process.stdout)
        self._floods: list[list[float]] = []

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            sys.exit(f"{self._checkout} cannot be flooded, see above")
        return line

    def flood(self) -> None:
        print(file=self._questions, flush=True)
        self._floods.append([float(each) for each in self._answer().split()])

    def medians(self) -> list[float]:
        """Microseconds a request of each process."""
        return [statistics.median(each) for each in zip(*self._floods, strict=True)]


def measure(checkouts: list[Path], starts: int, floods: int) -> list[list[list[float]]]:
    """The medians of each start, for each checkout."""
    found: list[list[list[float]]] = [[] for _ in checkouts]
    for start in range(starts):
        print(f"versions: start {start + 1} of {starts}", file=sys.stderr)
        with ExitStack() as stack:
            versions = [stack.enter_context(Version(each)) for each in checkouts]
            for number in range(floods):
                for version in versions[:: 1 if number % 2 else -1]:
                    version.flood()
            for version, medians in zip(versions, found, strict=True):
                medians.append(version.medians())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    asked = parser.parse_args()
    checkouts = [each.resolve() for each in asked.checkouts]
    found = measure(checkouts, *((1, 2) if asked.quick else (STARTS, FLOODS)))
    first = found[0]
    table = Table(
        f"Processor time of a request, {CHANGE_SETS} change sets (µs)",
        ["checkout", "process", "mean of starts", "least", "most", "to the first", "least", "most"],
        notes=["Of each start the median of its floods; the ratios are those of the same start."],
    )
    for checkout, starts in zip(checkouts, found, strict=True):
        for at, process in enumerate(PROCESSES):
            took = [each[at] for each in starts]
            ratios = [mine[at] / its[at] for mine, its in zip(starts, first, strict=True)]
            figures = [f(each) for each in (took, ratios) for f in (statistics.mean, min, max)]
            table.rows.append([checkout.name, process, *figures])
    print(table.text())


if __name__ == "__main__":
    main()
