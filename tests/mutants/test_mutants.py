"""The tables of what the JetStream layer and the protocol keep: each row is tried with a fault."""

import ast
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.paths import ROOT
from tests.mutants.laboratory import Fate, Laboratory
from tests.mutants.mutants import (
    DOCUMENT,
    FAULTS_TABLE,
    MENDED,
    RULES_PAGE,
    RULES_TABLE,
    Mutant,
    Row,
    node_ids,
    read_mutants,
    read_named,
    read_rows,
    read_statements,
)
from tests.schedules.mutations import MUTATIONS, OF_CALLS

STATEMENTS: Final = read_statements(DOCUMENT.read_text())
RULES: Final = read_named(RULES_PAGE.read_text(), RULES_TABLE)
FAULTS: Final = read_named(MENDED.read_text(), FAULTS_TABLE)
ROWS: Final = {(row.table, row.statement): row for row in read_rows()}
MUTANTS: Final = read_mutants()
SCHEDULED: Final = {each.__name__: each.__doc__ or "" for each in (*MUTATIONS, *OF_CALLS)}
IN_TURN: Final = 8
"""Mutants that are tried in one run; each day others."""


def test_each_mutant_is_still_a_fault_of_the_layer() -> None:
    for mutant in MUTANTS:
        ast.parse(mutant.apply((ROOT / mutant.file).read_text()), str(mutant))
        assert mutant.new != mutant.old, mutant


def test_each_mutant_breaks_a_row_whose_tests_are_there() -> None:
    for mutant in MUTANTS:
        row = ROWS[mutant.table, mutant.statement]
        assert set(mutant.tests) <= set(row.tests), mutant
    assert node_ids(tuple(test for row in ROWS.values() for test in row.tests))


def test_processes_that_a_test_of_a_row_starts_have_the_mutant() -> None:
    """They find it by the path that a `Laboratory` gives pytest, to which tests may add."""
    nodes = node_ids(tuple(test for row in ROWS.values() for test in row.tests))
    for path in {ROOT / node.partition("::")[0] for node in nodes}:
        for line in path.read_text().splitlines():
            assert 'setenv("PYTHONPATH"' not in line or "prepend=" in line, path


def test_what_is_there_no_more_or_twice_is_no_mutant() -> None:
    mutant = Mutant("ADR-13", "", "api.py", old="a", new="b")

    assert mutant.apply("cat") == "cbt"
    for source in ("dog", "banana"):
        with pytest.raises(ValueError, match=r"api\.py has it \d times"):
            mutant.apply(source)


def test_each_row_that_names_tests_has_a_mutant() -> None:
    tried = {(mutant.table, mutant.statement) for mutant in MUTANTS}

    assert [key for key, row in ROWS.items() if row.tests and key not in tried] == []


def test_each_rule_is_shown_once() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    there = re.findall(
        r"^\| ((?:S-|[CWDLXFPBO])\d[^|]*?) \|[^|]*\| `[^|]*\.py`", page, re.MULTILINE
    )

    assert sorted(row.statement for row in RULES) == sorted(there)


def test_each_rule_has_the_mutants_that_it_names() -> None:
    """And each mutant is in the row of its rule."""
    patches = {each.name: each.statement for each in MUTANTS if each.table == RULES_TABLE}

    for row in RULES:
        assert row.mutants, row
        for name in row.mutants:
            rule = patches.get(name) or SCHEDULED[name]
            assert any(each in rule for each in row.statement.split(", ")), name
    named = {name for row in RULES for name in row.mutants}
    of_rules = {name for name, doc in SCHEDULED.items() if re.match(r"(S-|[CWDLXFPBO])\d", doc)}
    assert patches.keys() | of_rules == named


def test_each_fault_has_the_mutants_that_it_names() -> None:
    """And each mutant is in the row of its fault."""
    patches = {(each.statement, each.name) for each in MUTANTS if each.table == FAULTS_TABLE}
    named = {(row.statement, name) for row in FAULTS for name in row.mutants}

    assert all(row.tests and row.mutants for row in FAULTS)
    assert {name for _, name in named - patches} <= SCHEDULED.keys()
    assert patches <= named


@pytest.mark.parametrize(
    ("page", "rows"), [(DOCUMENT, STATEMENTS), (RULES_PAGE, RULES), (MENDED, FAULTS)]
)
def test_the_page_says_how_many_there_are(page: Path, rows: list[Row]) -> None:
    tables = {row.table for row in rows}
    tested = sum(bool(row.tests) for row in rows)
    mutants = sum(mutant.table in tables for mutant in MUTANTS)
    [said] = re.findall(r"(\d+) [a-z]+, (\d+) of them with tests; (\d+) mutants", page.read_text())

    assert tuple(map(int, said)) == (len(rows), tested, mutants)


def test_a_statement_is_said_once() -> None:
    assert len(read_rows()) == len(ROWS)


@pytest.mark.long
def test_tests_of_a_row_fail_with_its_mutants(tmp_path: Path) -> None:
    """Some of them each day; `make mutants` tries all."""
    laboratory = Laboratory(tmp_path)
    first = datetime.now(UTC).toordinal() * IN_TURN
    chosen = [MUTANTS[(first + step) % len(MUTANTS)] for step in range(IN_TURN)]
    fates = {
        str(mutant): laboratory.judge(
            mutant, mutant.tests or ROWS[mutant.table, mutant.statement].tests
        )
        for mutant in chosen
    }

    assert [name for name, fate in fates.items() if not fate.is_death] == []


@pytest.mark.long
def test_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """Otherwise each mutant would seem to be killed."""
    laboratory = Laboratory(tmp_path)

    assert laboratory.run(("test_version_1_is_read", "test_an_ack_settles_it")) is Fate.SURVIVED
