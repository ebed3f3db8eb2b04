"""Commands that messages of the product name exist, with the options that they are given."""

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from rebaser_server.commands.cli import build_parser
from tests.helpers.paths import ROOT

_NAMED = re.compile(r"`rebaser( [^`]*)?`")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")
_STAND_INS = ("1", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
"""What a placeholder may be: a number, a name, an id."""
_A_COMMAND = "log"
_PARSER = build_parser()


def texts(node: ast.AST) -> Iterator[str]:
    """Strings below the node; the values in f-strings are placeholders."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    if isinstance(node, ast.JoinedStr):
        parts = [str(p.value) if isinstance(p, ast.Constant) else "TEXT" for p in node.values]
        yield "".join(parts)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from texts(child)


def named_commands() -> dict[str, str]:
    """Each command in backquotes, with a file that names it."""
    return {
        " ".join(found[0].strip("`").split()): str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob("rebaser_*/**/*.py"))
        if "`rebaser" in (source := path.read_text())  # each process that collects tests parses it
        for text in texts(ast.parse(source))
        for found in _NAMED.finditer(text)
    }


NAMED = named_commands()


def is_understood(line: str) -> bool:
    """Whether the line names a command alone, or one whose options and arguments fit."""
    _, *words = shlex.split(line)
    if words and _PLACEHOLDER.fullmatch(words[0]):
        words[0] = _A_COMMAND
    command = _PARSER.command_of(words)[0]
    if not words or command.prog == f"rebaser {' '.join(words)}":
        return True
    for stand_in in _STAND_INS:
        filled = [_PLACEHOLDER.sub(stand_in, word) for word in words]
        value = [stand_in] if words[-1].startswith("-") else []  # the option alone is named
        for given in (filled, filled + value):
            try:
                _, unknown = _PARSER.parse_known_args(given)
            except SystemExit as ended:
                if not ended.code:  # --help
                    return True
            else:
                return not unknown
    return False


@pytest.mark.parametrize("line", sorted(NAMED))
def test_a_command_that_a_message_names_can_be_given(line: str) -> None:
    assert is_understood(line), NAMED[line]


@pytest.mark.parametrize("line", ["rebaser undo", "rebaser log --alls", "rebaser dvu stat X"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert not is_understood(line)
