"""Costs of a request, or of an update of dependents, in several checkouts that run side by side.

python -m benchmarks.versions OLD_CHECKOUT [CHECKOUT …] [--dvu] [--quick]

Each checkout has its own virtual environment, `.venv`. They are measured in turns, each with a
client, a daemon and a NATS server of its own. All are started several times, since the same code
differs by a tenth from one start of its process to the next.
"""

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Self, cast

from benchmarks.tables import Table

CHANGE_SETS: Final = 50
REQUESTS: Final = 10
"""For each change set in one flood."""


@dataclass(frozen=True)
class Measurement:
    """A script that is run in each checkout, and answers each line with a figure for each case."""

    title: str
    script: str
    arguments: tuple[int, ...]
    cases: tuple[str, ...]
    starts: int
    rounds: int
    """Figures of each start."""

    @property
    def command(self) -> list[str]:
        return [str(Path(__file__).with_name(self.script)), *map(str, self.arguments)]


FLOOD: Final = Measurement(
    f"Processor time of a request, {CHANGE_SETS} change sets (µs)",
    "flooded_version.py",
    (CHANGE_SETS, REQUESTS),
    ("client", "daemon", "nats-server"),
    starts=8,
    rounds=20,
)
DVU: Final = Measurement(
    "Plan and evaluation, processor time; ten values and a commit alone, by the clock (ms)",
    "dvu_version.py",
    (1_000_000,),
    (
        *("libssl3", "libc6", "98,186 of 98,186", "a chain of a million, five calls"),
        *("ten values, synced always", "a commit alone, synced always"),
    ),
    starts=3,
    rounds=5,
)


class Version:
    """One checkout, with its processes."""

    def __init__(self, checkout: Path, measurement: Measurement) -> None:
        self._checkout = checkout
        self._process = process = subprocess.Popen(
            [checkout / ".venv/bin/python", *measurement.command],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": f".{os.pathsep}examples/debian"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._questions = cast("IO[str]", process.stdin)
        self._answers = cast("IO[str]", process.stdout)
        self._rounds: list[list[float]] = []

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            sys.exit(f"{self._checkout} cannot be measured, see above")
        return line

    def measure(self) -> None:
        print(file=self._questions, flush=True)
        self._rounds.append([float(each) for each in self._answer().split()])

    def medians(self) -> list[float]:
        """The figure of each case."""
        return [statistics.median(each) for each in zip(*self._rounds, strict=True)]


def measure(checkouts: list[Path], measurement: Measurement) -> list[list[list[float]]]:
    """The medians of each start, for each checkout."""
    found: list[list[list[float]]] = [[] for _ in checkouts]
    for start in range(measurement.starts):
        print(f"versions: start {start + 1} of {measurement.starts}", file=sys.stderr)
        with ExitStack() as stack:
            versions = [stack.enter_context(Version(each, measurement)) for each in checkouts]
            for number in range(measurement.rounds):
                for version in versions[:: 1 if number % 2 else -1]:
                    version.measure()
            for version, medians in zip(versions, found, strict=True):
                medians.append(version.medians())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--dvu", action="store_true", help="updates of dependents, not requests")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    asked = parser.parse_args()
    measurement = DVU if asked.dvu else FLOOD
    if asked.quick:
        measurement = replace(measurement, starts=1, rounds=2)
    checkouts = [each.resolve() for each in asked.checkouts]
    found = measure(checkouts, measurement)
    first = found[0]
    table = Table(
        measurement.title,
        ["checkout", "case", "mean of starts", "least", "most", "to the first", "least", "most"],
        notes=["Of each start the median of its rounds; the ratios are those of the same start."],
    )
    for checkout, starts in zip(checkouts, found, strict=True):
        for at, case in enumerate(measurement.cases):
            took = [each[at] for each in starts]
            ratios = [mine[at] / its[at] for mine, its in zip(starts, first, strict=True)]
            figures = [f(each) for each in (took, ratios) for f in (statistics.mean, min, max)]
            table.rows.append([checkout.name, case, *figures])
    print(table.text())


if __name__ == "__main__":
    main()
