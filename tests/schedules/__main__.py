"""Runs many schedules: `python -m tests.schedules [first] [count] [jobs]`; figures at the end."""

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.schedules.simulation import run

CHUNK = 20
"""Schedules that a worker process takes at a time."""
REAL_STORE_EVERY = 50
"""Every so many schedules one writes real Delta tables."""


@dataclass
class Figures:
    """What a series of schedules came to."""

    schedules: int = 0
    requests: int = 0
    ownerships: int = 0
    steps: int = 0
    virtual_seconds: float = 0.0
    real_stores: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, other: "Figures") -> None:
        self.schedules += other.schedules
        self.requests += other.requests
        self.ownerships += other.ownerships
        self.steps += other.steps
        self.virtual_seconds += other.virtual_seconds
        self.real_stores += other.real_stores
        self.faults += other.faults
        self.troubles += other.troubles
        self.failed |= other.failed

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules ({self.real_stores} with real Delta tables), "
            f"{self.requests} requests, {self.ownerships} ownerships, "
            f"{sum(self.faults.values())} faults {dict(sorted(self.faults.items()))}, "
            f"{dict(sorted(self.troubles.items()))}, {self.steps} callbacks, "
            f"{self.virtual_seconds:.0f} virtual seconds, {len(self.failed)} failed"
        )


def series(seeds: Iterable[int], reports: Path | None = None, *, bank: bool = False) -> Figures:
    """Run these schedules; the trace of each that fails goes to `reports`."""
    figures = Figures()
    gc.collect()
    gc.freeze()  # what is there now need not be looked at after each schedule
    try:
        for seed in seeds:
            _add(figures, seed, reports, bank=bank)
    finally:
        gc.unfreeze()
    return figures


def _add(figures: Figures, seed: int, reports: Path | None, *, bank: bool) -> None:
    delta = seed % REAL_STORE_EVERY == REAL_STORE_EVERY - 1 and not bank
    verdict = run(seed, delta=delta, bank=bank)
    figures.real_stores += delta
    figures.schedules += 1
    figures.requests += verdict.requests
    figures.ownerships += verdict.ownerships
    figures.steps += verdict.steps
    figures.virtual_seconds += verdict.seconds
    figures.faults.update(verdict.faults)
    figures.troubles[verdict.plan.trouble] += 1
    if verdict.violations:
        figures.failed[seed] = verdict.violations
        if reports is not None:
            (reports / f"seed-{seed}.txt").write_text(verdict.report() + "\n")


def main(first: int = 0, count: int = 10_000, jobs: int = 2, *, bank: bool = False) -> int:
    began = time.monotonic()
    reports = Path(tempfile.mkdtemp(prefix="schedules-"))
    chunks = [
        range(start, min(start + CHUNK, first + count))
        for start in range(first, first + count, CHUNK)
    ]
    figures = Figures()
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(partial(series, reports=reports, bank=bank), chunks):
            figures.add(part)
            for seed, violations in part.failed.items():
                sys.stdout.write(f"seed {seed}: {violations[0][:300]}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{figures}, {time.monotonic() - began:.0f} s; reports in {reports}\n")
    return bool(figures.failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.schedules",
        description="Run schedules: each is a world of Rebasers and faults that follows from a "
        "seed. Prints the schedules that failed and totals at the end.",
    )
    number = {"type": int, "nargs": "?"}
    parser.add_argument("first", **number, default=0, help="first seed (default: %(default)s)")
    parser.add_argument(
        "count", **number, default=10_000, help="number of schedules (default: %(default)s)"
    )
    parser.add_argument("jobs", **number, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--bank", action="store_true", help="accounts instead of graphs of values")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(**vars(_arguments())))
