"""The document on this package says of each statement how it is shown; here it is seen to."""

import re
from pathlib import Path

import pytest

from benchmarks.jetstream.conformance import POINTS
from tests.helpers.nats_process import NatsServer
from tests.helpers.paths import ROOT
from tests.jetstream.steps import run_example

PAGE = (ROOT / "docs" / "jetstream.md").read_text()
DOCUMENT = Path(__file__).with_name("statements.md").read_text()
TESTS = {
    name
    for file in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
}
STATEMENTS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for table in re.findall(r"\| Shown by, or why not \|\n\|[-|]+\n((?:\|.*\n)+)", DOCUMENT)
    for line in table.splitlines()
]


def test_every_statement_has_a_test_or_a_reason() -> None:
    for statement, *_, shown in STATEMENTS:
        named = re.findall(r"`(test_\w+)`", shown)
        assert named or shown.startswith("does not apply: "), statement
        assert set(named) <= TESTS, statement


def test_all_five_documents_are_there() -> None:
    assert len(STATEMENTS) > 100
    for number in (13, 15, 19, 37, 42):
        assert f"\n### ADR-{number}, " in DOCUMENT


def test_each_point_of_the_comparison_has_a_test_of_ours() -> None:
    [table] = re.findall(r"\| the test of ours \|\n\|[-|]+\n((?:\|.*\n)+)", DOCUMENT)
    rows = [line.strip("|").split(" | ") for line in table.splitlines()]

    assert [row[0].strip() for row in rows] == [title for title, _ in POINTS]
    assert {row[-1].strip(" `") for row in rows} <= TESTS


async def test_the_example_runs(server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    await run_example(example, server.url)

    assert "b'...'" in capsys.readouterr().out
