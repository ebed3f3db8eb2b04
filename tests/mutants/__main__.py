"""Runs mutants against the tests of their rows: make mutants [ONLY=part of a name or statement]."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.laboratory import Laboratory
from tests.mutants.mutants import Mutant, read_mutants, read_rows


def main() -> int:
    """Print the fate of each mutant; return 1 if one was not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="part of a table's name, a statement or a file")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="mutants that are tried at a time (default: %(default)s)",
    )
    arguments = parser.parse_args()
    rows = {(row.table, row.statement): row for row in read_rows()}
    chosen = {
        mutant: mutant.tests or rows[mutant.table, mutant.statement].tests
        for mutant in read_mutants()
        if arguments.only in f"{mutant} {mutant.file}"
    }
    if not chosen:
        parser.error(f"no mutant has {arguments.only!r} in its table, statement, name or file")
    with _laboratories(arguments.processes) as (first, *others):
        if failing := first.failing(tuple({test for each in chosen.values() for test in each})):
            print(f"there are tests that fail without a mutant:\n{failing}")
            return 1
        left = _judge([first, *others], chosen)
    print(f"{len(chosen)} mutants, {len(left)} survived")
    return bool(left)


@contextmanager
def _laboratories(number: int) -> Iterator[list[Laboratory]]:
    """Make copies of the tree, each for one mutant at a time."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        places = [Path(directory) / str(each) for each in range(number)]
        for place in places:
            place.mkdir()
        yield [Laboratory(place) for place in places]


def _judge(laboratories: list[Laboratory], chosen: dict[Mutant, tuple[str, ...]]) -> list[Mutant]:
    """Return the mutants that were not killed."""
    free: SimpleQueue[Laboratory] = SimpleQueue()
    for each in laboratories:
        free.put(each)

    def survives(mutant: Mutant) -> bool:
        laboratory = free.get()
        try:
            fate = laboratory.judge(mutant, chosen[mutant])
        finally:
            free.put(laboratory)
        print(f"{fate.value}: {mutant}", flush=True)
        return not fate.is_death

    with ThreadPoolExecutor(len(laboratories)) as pool:
        return [
            mutant for mutant, left in zip(chosen, pool.map(survives, chosen), strict=True) if left
        ]


sys.exit(main())
