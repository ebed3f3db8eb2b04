"""Runs mutants against the tests of their rows: make mutants [ONLY=part of a name or statement]."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants.laboratory import Fate, Laboratory
from tests.mutants.mutants import DOCUMENT, Mutant, read_mutants, read_rows


def main() -> int:
    """Print the fate of each mutant; return 1 if one survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="part of a file's name or of a statement")
    only = parser.parse_args().only
    chosen = [each for each in read_mutants() if only in f"{each} {each.file}"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        survivors = _judge(Laboratory(Path(directory)), chosen)
    print(f"{len(chosen)} mutants, {len(survivors)} survived")
    return bool(survivors)


def _judge(laboratory: Laboratory, mutants: list[Mutant]) -> list[Mutant]:
    rows = {(row.adr, row.statement): row for row in read_rows(DOCUMENT.read_text())}
    survivors = []
    for mutant in mutants:
        tests = mutant.tests or rows[mutant.adr, mutant.statement].tests
        fate = laboratory.judge(mutant, tests)
        print(f"{fate.value}: {mutant}", flush=True)
        if fate is Fate.SURVIVED:
            survivors.append(mutant)
    return survivors


sys.exit(main())
