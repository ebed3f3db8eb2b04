"""Runs mutants against the tests of their rows: make mutants [ONLY=part of a name or statement]."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants.laboratory import Laboratory
from tests.mutants.mutants import Mutant, read_mutants, read_rows


def main() -> int:
    """Print the fate of each mutant; return 1 if one was not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="part of a table's name, a statement or a file")
    only = parser.parse_args().only
    rows = {(row.table, row.statement): row for row in read_rows()}
    chosen = {
        mutant: mutant.tests or rows[mutant.table, mutant.statement].tests
        for mutant in read_mutants()
        if only in f"{mutant} {mutant.file}"
    }
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        laboratory = Laboratory(Path(directory))
        if failing := laboratory.failing(
            tuple({test for each in chosen.values() for test in each})
        ):
            print(f"there are tests that fail without a mutant:\n{failing}")
            return 1
        left = _judge(laboratory, chosen)
    print(f"{len(chosen)} mutants, {len(left)} survived")
    return bool(left)


def _judge(laboratory: Laboratory, chosen: dict[Mutant, tuple[str, ...]]) -> list[Mutant]:
    """Return the mutants that were not killed."""
    left = []
    for mutant, tests in chosen.items():
        fate = laboratory.judge(mutant, tests)
        print(f"{fate.value}: {mutant}", flush=True)
        if not fate.is_death:
            left.append(mutant)
    return left


sys.exit(main())
