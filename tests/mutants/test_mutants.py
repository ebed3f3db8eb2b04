"""The table of statements about the JetStream layer cannot lie: each row is tried with a fault."""

import ast
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.paths import ROOT
from tests.mutants.laboratory import Fate, Laboratory
from tests.mutants.mutants import DOCUMENT, LAYER, Mutant, node_ids, read_mutants, read_rows

PAGE: Final = DOCUMENT.read_text()
ROWS: Final = {(row.adr, row.statement): row for row in read_rows(PAGE)}
MUTANTS: Final = read_mutants()
IN_TURN: Final = 4
"""Mutants that are tried in one run; each day others."""


def test_each_mutant_is_still_a_fault_of_the_layer() -> None:
    for mutant in MUTANTS:
        ast.parse(mutant.apply((ROOT / LAYER / mutant.file).read_text()), str(mutant))
        assert mutant.new != mutant.old, mutant


def test_each_mutant_breaks_a_row_whose_tests_are_there() -> None:
    for mutant in MUTANTS:
        row = ROWS[mutant.adr, mutant.statement]
        assert set(mutant.tests) <= set(row.tests), mutant
    assert node_ids(tuple(test for row in ROWS.values() for test in row.tests))


def test_what_is_there_no_more_or_twice_is_no_mutant() -> None:
    mutant = Mutant(13, "", "api.py", old="a", new="b")

    assert mutant.apply("cat") == "cbt"
    for source in ("dog", "banana"):
        with pytest.raises(ValueError, match=r"api\.py has it \d times"):
            mutant.apply(source)


def test_each_row_that_names_tests_has_a_mutant() -> None:
    tried = {(mutant.adr, mutant.statement) for mutant in MUTANTS}

    assert [key for key, row in ROWS.items() if row.tests and key not in tried] == []


def test_the_page_says_how_many_there_are() -> None:
    tested = sum(bool(row.tests) for row in ROWS.values())
    [said] = re.findall(r"(\d+) statements, (\d+) of them with tests; (\d+) mutants", PAGE)

    assert tuple(map(int, said)) == (len(ROWS), tested, len(MUTANTS))


def test_a_statement_is_said_once() -> None:
    assert len(read_rows(PAGE)) == len(ROWS)


@pytest.mark.long
def test_tests_of_a_row_fail_with_its_mutants(tmp_path: Path) -> None:
    """Some of them each day; `make mutants` tries all."""
    laboratory = Laboratory(tmp_path)
    first = datetime.now(UTC).toordinal() * IN_TURN
    chosen = [MUTANTS[(first + step) % len(MUTANTS)] for step in range(IN_TURN)]
    fates = {
        str(mutant): laboratory.judge(
            mutant, mutant.tests or ROWS[mutant.adr, mutant.statement].tests
        )
        for mutant in chosen
    }

    assert [name for name, fate in fates.items() if fate is Fate.SURVIVED] == []


@pytest.mark.long
def test_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """Otherwise each mutant would seem to be killed."""
    laboratory = Laboratory(tmp_path)

    assert laboratory.run(("test_version_1_is_read", "test_an_ack_settles_it")) is Fate.SURVIVED
