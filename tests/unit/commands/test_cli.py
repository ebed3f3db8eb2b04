"""Help and version of `rebaser`: complete, in plain words, and quick."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from rebaser_server.commands.cli import build_parser, main
from rebaser_server.commands.support.arguments import IN_USE, Exit
from tests.helpers.graph_builder import install

RIDDLES = re.compile(r"\b(whoever|nobody|somebody|need not|is told|be said|that is asked)\b|; all$")
"""Phrases that a stranger has to read twice."""


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from parsers(command)


def required_words(parser: argparse.ArgumentParser) -> list[str] | None:
    """A word for each argument that a command needs besides an address; None if it takes none."""
    words = [action for action in parser._actions if not action.option_strings]
    if not any(action.dest == "address" and IN_USE in (action.help or "") for action in words):
        return None
    return ["1" for action in words if action.required and action.nargs is None]


PARSERS = [*parsers(build_parser())]
ARGUMENTS = [
    pytest.param(action, id=f"{parser.prog} {action.dest}")
    for parser in PARSERS
    for action in parser._actions
    if not isinstance(action, argparse._SubParsersAction)
]


@pytest.mark.parametrize("action", ARGUMENTS)
def test_an_argument_says_what_it_is_for(action: argparse.Action) -> None:
    """Each argument of each command has a help text in plain words."""
    assert action.help
    assert not RIDDLES.search(action.help)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_each_command_prints_its_help(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """While options are read among arguments, argparse knows no defaults of the latter."""
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["--help"])

    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("action", ARGUMENTS)
def test_an_optional_argument_says_its_default(action: argparse.Action) -> None:
    """The help of each argument that takes a value and may be left out names the default."""
    if action.nargs == 0 or (action.required and action.nargs not in ("?", "*")):
        return
    text = (action.help or "") % vars(action)
    default = re.search(r"\(default: (.+)\)$", text)

    assert default, text
    if action.default not in (None, "", [], argparse.SUPPRESS):
        assert default[1] == f"{action.default:g}" if _is_number(action) else str(action.default)


def _is_number(action: argparse.Action) -> bool:
    return isinstance(action.default, int | float)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_a_command_says_what_it_does(parser: argparse.ArgumentParser) -> None:
    """Each command has a description in plain words."""
    assert parser.description
    assert not RIDDLES.search(parser.description)


@pytest.mark.parametrize("words", [[], ["workspaces"], ["dvu"]], ids=" ".join)
def test_a_group_alone_prints_its_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`rebaser` and a group of commands print their help if no command is named or the default."""
    code = main(words)

    text = capsys.readouterr().out
    assert code == 0
    assert text.startswith(" ".join(["usage: rebaser", *words]))
    assert "COMMAND" not in [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("parser", "words"),
    [
        pytest.param(parser, words, id=parser.prog)
        for parser in PARSERS
        if (words := required_words(parser)) is not None
    ],
)
def test_a_command_that_takes_the_address_in_use_needs_no_other(
    parser: argparse.ArgumentParser, words: list[str]
) -> None:
    """It runs without an address, and what it takes besides is not taken for one."""
    arguments = build_parser().parse_args([*parser.prog.split()[1:], *words])

    assert arguments.handler is not None
    assert not arguments.address


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_the_function_that_runs_a_command_exists(parser: argparse.ArgumentParser) -> None:
    """A function has a name, and is imported when its command runs."""
    named = parser.get_default("handler")
    if isinstance(named, str):
        module, _, name = named.partition(":")
        assert callable(getattr(import_module(f"rebaser_server.commands.{module}"), name))


def test_the_default_command_of_a_group_needs_no_address() -> None:
    """`rebaser values` shows the values of the change set in use."""
    alone, named = (
        build_parser().parse_args(["values"]),
        build_parser().parse_args(["values", "get"]),
    )

    assert (alone.handler, alone.address) == (named.handler, None)


def test_the_version_names_package_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    """`rebaser --version` prints the name, the version and the version of Python."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    python = ".".join(map(str, sys.version_info[:3]))
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rebaser {version('rebaser')} (Python {python})\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["completion", "bash"]])
def test_help_version_and_completion_import_no_large_library(words: list[str]) -> None:
    """Help, version and completion import neither NATS nor pydantic nor the settings."""
    code = (
        "import atexit, sys; from rebaser_server.commands.cli import main\n"
        "slow = {'asyncio', 'nats', 'pydantic', 'structlog', 'rich', 'ulid'}\n"
        "atexit.register(lambda: print(slow & {*sys.modules}, file=sys.stderr))\n"
        f"main({words})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "set()\n"


def test_a_file_for_the_data_of_up_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory or a new name is wanted; nothing starts."""
    (tmp_path / "data").write_text("")

    with pytest.raises(SystemExit) as ended:
        main(["up", "--data", str(tmp_path / "data")])

    assert ended.value.code == 2
    assert "data is a file: give a directory" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "-2"])
def test_a_port_that_does_not_exist_is_refused(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before NATS's own server refuses it in its words."""
    with pytest.raises(SystemExit) as ended:
        main(["up", "--data", str(tmp_path / "data"), "--port", port])

    assert ended.value.code == 2
    assert f"--port {port}: give 1 to 65535, or -1 for any free" in capsys.readouterr().err


def test_each_command_has_one_line_in_one_section_of_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """None of them falls into the section for commands that other distributions bring."""
    main([])

    shown = capsys.readouterr().out
    commands = next(a for a in build_parser()._actions if a.choices).choices or {}
    lines = [line for line in shown.splitlines() if re.match(r"  \S", line)]
    assert sorted(line.split()[0] for line in lines if "rebaser " not in line[:10]) == sorted(
        commands
    )
    assert "more commands" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_installed_command_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A distribution with an entry point in `rebaser.commands` adds a command, as the demo does."""
    source = "def add(commands): commands.add_parser('greet', help='greet the world')"
    install(tmp_path, "greeting", source, {"greet": "greeting:add"}, group="rebaser.commands")
    monkeypatch.syspath_prepend(tmp_path)

    main([])

    assert re.search(r"greet +greet the world", capsys.readouterr().out)


@pytest.mark.parametrize("home", ["sound", "none"])
def test_a_fault_of_our_own_is_one_line_and_a_file(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a traceback; where the user has no directory, among the temporary files."""
    source = (
        "def add(commands):\n"
        "    parser = commands.add_parser('greet', help='greet')\n"
        "    parser.set_defaults(handler=1, validate=greet)\n"
        "def greet(arguments): raise LookupError('no\\nworld')\n"
    )
    install(tmp_path, "faulty", source, {"greet": "faulty:add"}, group="rebaser.commands")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("state" if home == "sound" else "file")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    code = main(["greet"])

    [line] = capsys.readouterr().err.splitlines()
    assert code == 1
    assert r"a fault of Rebaser's own: LookupError: no\nworld (at faulty.py:4 in greet)" in line
    [file] = re.findall(r"The details are in (\S+);", line)
    assert "Traceback" in Path(file).read_text()
    assert Path(file).parent == (tmp_path / "state" / "rebaser" if home == "sound" else tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--url x", "there is no option '--url'; options stand behind the command, and REBASER_NA"),
        ("value get", "there is no command 'value'; there is 'values'"),
        ("apply shop/b", "there is no command 'apply'; there is `rebaser change-sets apply`"),
        ("log shop --last -3", "--last: expected a whole number above 0, got '-3'"),
        ("log shop --last 0", "--last: expected a whole number above 0, got '0'"),
        ("values shop --at x", "--at: expected the number of a commit, as in `rebaser log`, got"),
        (
            "revert shop",
            "expected the number of a commit, as in `rebaser log`, or 'last', got 'shop'",
        ),
        ("values shop --depth 0", "--depth: expected a whole number above 0, got '0'"),
        ("workspaces create ''", "expected a name of 1 to 200 characters on one line, got ''"),
        ("change-sets describe shop/b --rename 'a\tb'", r"characters on one line, got 'a\tb'"),
        ("diff shop/b --csv --json", "--json: not allowed with argument --csv"),
        ("change-sets apply shop/b --reviewed abc", "takes the digest that `rebaser diff` prints"),
        ("change-sets apply shop/b --json", "give --yes or --reviewed DIGEST"),
    ],
)
def test_a_mistake_is_answered_with_what_is_expected(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything connects to NATS; the exit code is that of bad arguments."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))

    assert ended.value.code == Exit.BAD_SETTINGS
    assert said in capsys.readouterr().err
