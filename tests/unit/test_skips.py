"""A test is skipped only for what the machine lacks, said in one way; in CI it fails instead."""

import re
from pathlib import Path

import pytest

from tests.helpers import machine_requirements
from tests.helpers.paths import ROOT

TESTS = ROOT / "tests"
ALLOWED = (TESTS / "helpers/machine_requirements.py", Path(__file__).resolve())
SKIPS = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|importorskip)\b")
NAME = "no-such-program"


def test_all_skips_go_through_one_place() -> None:
    files = [path for path in sorted(TESTS.rglob("*.py")) if path not in ALLOWED]

    assert [str(path) for path in files if SKIPS.search(path.read_text())] == []


def test_a_program_that_is_there_is_found() -> None:
    assert machine_requirements.program(NAME, "sh", package="dash").endswith("/sh")


def test_a_test_that_needs_another_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(machine_requirements.NOTHING_SKIPPED, raising=False)

    with pytest.raises(pytest.skip.Exception, match=f"{NAME}: apt-get install it"):
        machine_requirements.program(NAME, package="it")


def test_where_nothing_may_be_skipped_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine_requirements.NOTHING_SKIPPED, "1")

    with pytest.raises(pytest.fail.Exception, match=NAME):
        machine_requirements.program(NAME, package="it")


def test_missing_requirements_are_listed_with_their_number_of_tests() -> None:
    class Report:
        longrepr = ("file.py", 1, f"Skipped: this machine lacks {NAME}: apt-get install it")

    class Another:
        longrepr = ("file.py", 1, "Skipped: for another reason")

    found = machine_requirements.lacked([Report(), Another(), Report()])

    assert found == {f"{NAME}: apt-get install it": 2}
