"""Every command is shown with what it prints, prints JSON if asked, and ends with a known code."""

import argparse
import re
from collections.abc import Iterator

import pytest

from rebaser_server.commands import cli
from rebaser_server.commands.support.arguments import Exit
from tests.docs.console import shown
from tests.docs.test_console import PAGES, ROOT

NO_RESULT = {"serve"}
"""Its output is a log."""


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, list[str]]]:
    """Each that can be given, with its options."""
    verbs = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for verb in verbs:
        for word, its in verb.choices.items():
            yield from commands(its, *words, word)
    if not verbs:
        yield " ".join(words), list(parser._option_string_actions)


COMMANDS = dict(commands(cli.build_parser()))
TYPED = [typed for page in PAGES for typed in shown(page.read_text())]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_documented_with_its_output(command: str) -> None:
    name = command.removesuffix(" get")  # which need not be said

    assert any(f"{typed} ".startswith(f"rebaser {name} ") for typed in TYPED)


def test_results_can_be_had_as_json() -> None:
    assert {c for c, options in COMMANDS.items() if "--json" not in options} == NO_RESULT


def test_exit_codes_are_those_documented() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    table = page.partition("### Exit codes")[2].partition("###")[0]

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {*Exit}
