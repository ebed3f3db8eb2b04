"""Text from outside reaches a terminal as text, and no module prints around that."""

import ast
import errno
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rebaser_server
from rebaser_server.terminal import lines
from rebaser_server.terminal.lines import OutputRefused, visible
from rebaser_server.terminal.tables import Table

SERVER = Path(rebaser_server.__file__).parent
PRINTERS = {"terminal/lines.py", "terminal/tables.py"}
OUTSIDE = {
    "telemetry/logs.py": "events go to stderr through its own processor",
    "__main__.py": "the modules that print may be missing there",
    "compute/isolation.py": "sees whether an import replaced the streams of its process",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("price[eur] :smile: [bold]x[/bold]", "price[eur] :smile: [bold]x[/bold]"),
        ("naïve 価格 — ✓", "naïve 価格 — ✓"),
        ("a\x1b[31mred", r"a\x1b[31mred"),
        ("two\nlines\r\tand more", r"two\nlines\r\tand more"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u202eback\u202c\u2066x\u2069", r"\u202eback\u202c\u2066x\u2069"),
        ("zero\u200bwidth\ufeff\u2028", r"zero\u200bwidth\ufeff\u2028"),
        ("\ud800 alone", r"\ud800 alone"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_cannot_be_seen_is_written_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines.say("a\nb", 7)
    lines.complain("c\x1bd")

    assert capsys.readouterr() == ("a\\nb\n7\n", "c\\x1bd\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_that_lacks_a_character_is_no_error(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))

    lines.prepare()
    lines.say("√2")

    assert raw.getvalue() == b"\\u221a2\n"


def test_json_is_read_as_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    lines.say_json({"name": "\x1b\u202e[bold]"})

    assert capsys.readouterr().out == '{"name": "\\u001b\\u202e[bold]"}\n'


def prints(tree: ast.AST) -> list[str]:
    """What in a module goes to a terminal by itself."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(n.name.split(".")[0] == "rich" for n in names):
                found.append(f"line {node.lineno}: import rich")
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "rich":
                found.append(f"line {node.lineno}: from rich")
            case ast.Call(func=ast.Name(id="print" | "input")):
                found.append(f"line {node.lineno}: {node.func.id}()")
            case ast.Attribute(
                value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"
            ):
                found.append(f"line {node.lineno}: sys.{node.attr}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "from rich.console import Console",
        "import rich.table",
        "print('x')",
        "import sys; sys.stdout.write('x')",
        "import sys; sys.stderr.flush()",
    ],
)
def test_the_rule_below_sees_every_way_to_print(source: str) -> None:
    assert prints(ast.parse(source))


def test_no_other_module_of_the_server_prints() -> None:
    """A command cannot forget to escape what it prints: it has no other way to print."""
    others = {
        name: found
        for path in SERVER.rglob("*.py")
        if (name := str(path.relative_to(SERVER))) not in PRINTERS | OUTSIDE.keys()
        and (found := prints(ast.parse(path.read_text())))
    }

    assert others == {}


class Refusing(io.RawIOBase):
    def __init__(self, error: int) -> None:
        self.error: int | None = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.error is not None:
            raise OSError(self.error, "it takes nothing")
        return len(data)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Let stdout refuse what is written with this error."""
    streams = []

    def refuse(error: int) -> None:
        raw = Refusing(error)
        streams.append((raw, io.TextIOWrapper(io.BufferedWriter(raw))))
        monkeypatch.setattr(sys, "stdout", streams[-1][1])

    yield refuse
    for raw, _ in streams:
        raw.error = None  # Python 3.13 warns of a stream that is freed and cannot be flushed


def test_a_full_disk_below_stdout_is_named_and_ends_nothing_else(
    refuse: Callable[[int], None],
) -> None:
    """It is not the store's; and what is left in the buffer fails no end of the process."""
    refuse(errno.ENOSPC)

    with pytest.raises(OutputRefused, match="stdout takes nothing more: it takes nothing"):
        lines.say("a result")

    lines.say("a second result, which goes nowhere")


def test_a_closed_pipe_is_one_error_for_lines_and_tables(refuse: Callable[[int], None]) -> None:
    """Rich would end the process by itself, with exit code 1."""
    for show in (lambda: lines.say("line"), Table("a").show):
        refuse(errno.EPIPE)
        with pytest.raises(BrokenPipeError):
            show()
