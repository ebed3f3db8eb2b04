"""What a command reads is checked before the command connects: here nothing listens for it."""

import argparse
import io
from pathlib import Path

import pytest

from rebaser_server.commands.cli import build_parser
from rebaser_server.commands.support.arguments import Parser
from tests.helpers.command_line import Done, run_command

NOWHERE = {"REBASER_NATS__URL": "nats://127.0.0.1:1", "REBASER_NATS__CONNECT_TIMEOUT": "PT0.1S"}


def file_commands(parser: Parser) -> list[list[str]]:
    """The words of each command below the parser that takes a file."""
    found = [
        parser.prog.split()[1:]
        for action in parser._actions
        if action.type is Path and action.dest not in ("data", "directory")
    ]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += file_commands(command)
    return found


COMMANDS = file_commands(build_parser())


def give(*words: object) -> Done:
    return run_command([str(word) for word in words], NOWHERE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        (b"{", "JSON"),
        (b'{"net": 100}', ""),
        (b'["caf\xe9"]', "not UTF-8"),
    ],
    ids=["none", "cut", "foreign", "latin-1"],
)
def test_a_wrong_file_is_complained_of_without_nats(
    command: list[str], content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    """The complaint names the file, and has neither a traceback nor a hint about servers."""
    file = tmp_path / "wrong.json"
    if content is not None:
        file.write_bytes(content)

    done = give(*command, "shop", file)

    assert done.code == 1
    assert "wrong.json" in done.err
    assert complaint in done.err
    assert "NATS" not in done.err
    assert "REBASER_" not in done.err


def test_the_commands_that_take_files_are_found() -> None:
    """The test above looks at these, at least."""
    assert COMMANDS == [["load"], ["enqueue"]]


def test_a_missing_table_of_a_graph_file_is_named_without_nats(tmp_path: Path) -> None:
    """The complaint names the table, which is the file that the reader has to look at."""
    file = tmp_path / "graph.json"
    file.write_text('{"tables": [{"file": "rates.csv"}]}')

    done = give("load", "shop", file)

    assert done.code == 1
    assert "tables: there is no file 'rates.csv'" in done.err


@pytest.mark.parametrize("update", ['{"put": 1}', '{"setValue": {"valueId": "x", "value": 1}}'])
def test_a_wrong_update_is_named_without_nats(update: str, tmp_path: Path) -> None:
    """Also one that is valid JSON."""
    file = tmp_path / "updates.json"
    file.write_text(f"[{update}]")

    done = give("enqueue", "shop", file)

    assert done.code == 1
    assert f"{file}: updates: 0" in done.err


@pytest.mark.parametrize("value", ["ten", "{", "-"])
def test_a_wrong_value_is_complained_of_without_nats(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the arguments or from stdin, with the way to send it as text."""
    monkeypatch.setattr("sys.stdin", io.StringIO("eleven"))

    done = give("values", "set", "shop", "net", value)

    assert done.code == 1
    assert "not JSON: Expecting" in done.err
    assert "--text takes it as text" in done.err


def test_what_is_right_is_followed_by_the_connection(tmp_path: Path) -> None:
    """The files above are refused for what is in them: a right one comes as far as NATS."""
    file = tmp_path / "right.json"
    file.write_text("{}")

    assert give("load", "--dry-run", "shop", file).code == 69


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'[{"a": 1, "a": 2}]', "the key 'a' stands here twice"),
        (b"[" * 5000, "nested deeper than 80"),
        (b"[NaN]", "NaN is no number of JSON"),
        (b"[" + b"9" * 5000 + b"]", "an integer beyond 64 bits"),
    ],
)
def test_json_is_read_strictly_from_files_and_arguments(
    text: bytes, fault: str, tmp_path: Path
) -> None:
    """By `enqueue` and `values set`, with a line and a column."""
    (tmp_path / "updates.json").write_bytes(b"\xef\xbb\xbf" + text)

    done = [
        give("enqueue", "shop", tmp_path / "updates.json"),
        give("values", "set", "shop", "net", text.decode()),
    ]

    assert [each.code for each in done] == [1, 1]
    assert all("line 1, column " in each.err and fault in each.err for each in done)


@pytest.mark.parametrize("number", ["-1e5", "-1", "-.5", "-1.5E-3"])
def test_a_negative_number_is_a_value(number: str) -> None:
    """And no option: the command comes as far as NATS. What is neither is told of `--`."""
    text = "--text" if number == "-.5" else "--wait"

    assert give("values", "set", "shop", "tax", number, text).code == 69
    assert "Behind -- no word is an option" in give("values", "set", "shop", "tax", "-x").err


@pytest.mark.parametrize(
    ("words", "variables", "complaint"),
    [
        (["values", "sh\udcffop"], {}, r"'sh\udcffop' is not UTF-8"),
        (["load", "shop", "--", "--"], {}, "the following arguments are required: file"),
        (["values", "shop"], {"REBASER_AUTHOR": "\udcff"}, "REBASER_AUTHOR': not UTF-8"),
        (["values", "shop"], {"REBASER_SPARK__CONF": "{"}, "bad settings"),
        (["values", "shop"], {"REBASER_SPARK": "{"}, "bad settings"),
        (["values", "shop"], {"REBASER_ACK_WAIT": "1e999"}, "REBASER_ACK_WAIT: not a duration"),
        (["values", "shop"], {"REBASER_ACK_WAIT": "9" * 5000}, "REBASER_ACK_WAIT: not a duration"),
    ],
)
def test_nonsense_in_arguments_and_settings_is_refused(
    words: list[str], variables: dict[str, str], complaint: str
) -> None:
    """As what it is, with the exit code of bad arguments."""
    done = run_command(words, NOWHERE | variables)

    assert (done.code, complaint in done.err) == (2, True), done.err
