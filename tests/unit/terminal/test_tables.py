"""Tables and trees show hostile text as it is, and the whole of it."""

import argparse
import csv
import io
import sys

import pytest

from rebaser_server.terminal.tables import Table, Tree, progress_bar, show_cells

HOSTILE = {
    "price[eur]": "price[eur]",
    "list[/a]": "list[/a]",
    "[bold]hi[/bold] x": "[bold]hi[/bold] x",
    ":warning:": ":warning:",
    "esc\x1b[31m": r"esc\x1b[31m",
    "line\nbreak": r"line\nbreak",
    "back\u202e": r"back\u202e",
    "lone\ud800": r"lone\ud800",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_a_cell_is_one_line_of_text(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("name", text)
    table.add(text, 1)

    table.show()

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split(None, 1)[1].rstrip() == shown
    assert row.strip() == f"{shown}  1"


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_a_label_of_a_tree_is_one_line_of_text(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = Tree((text, "bold"), " = ", text)
    tree.add(text)

    tree.show()

    assert capsys.readouterr().out == f"{shown} = {shown}\n└── {shown}\n"


def test_a_long_cell_is_folded_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "value")
    table.add("x" * 500, "y" * 500)

    table.show()

    out = capsys.readouterr().out
    assert (out.count("x"), out.count("y"), "…" in out) == (500, 500, False)


def test_numbers_have_commas_and_what_is_not_there_is_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("a", "b", "c", edge=False)
    table.add(1234567, None, True)

    table.show()

    assert capsys.readouterr().out.splitlines()[1].split() == ["1,234,567", "True"]


def test_an_encoding_without_lines_draws_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    tree = Tree("é")
    tree.add("b")

    tree.show()
    stdout.flush()

    assert raw.getvalue() == b"\\xe9\n`-- b\n"


def test_a_bar_takes_any_description(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("[/a]") as bar:
        bar.describe("[/b]\x1b")
        bar.draw(1, 2)

    assert capsys.readouterr().out == ""


def test_rows_are_printed_as_the_arguments_ask(capsys: pytest.CaptureFixture[str]) -> None:
    """Without rows a table says so on stderr; CSV has its headings, and JSON is an empty list."""
    rows, plain = [("a, b", 1, None), ("c", 2, [True])], [{"name": "a, b"}, {"name": "c"}]
    printed = []
    for form in ({}, {"csv": True}, {"json": True}):
        for some in (rows, []):
            asked = argparse.Namespace(**form)
            show_cells(("name", "n", "x"), some, asked, plain=plain[: len(some)], nothing="none")
            printed.append("".join(capsys.readouterr()))

    assert [line.split() for line in printed[0].splitlines()[1:]] == [
        ["a,", "b", "1"],
        ["c", "2", "[True]"],
    ]
    assert printed[1:] == [
        "none\n",
        'name,n,x\n"a, b",1,\nc,2,[true]\n',
        "name,n,x\n",
        '[{"name": "a, b"}, {"name": "c"}]\n',
        "[]\n",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_cells_of_csv_are_as_they_are_except_on_a_terminal(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of them is read back; a terminal is controlled by none."""
    rows = [("a\tb\r\nc", "esc\x1b[31m"), ("back\u202e", None)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)

    show_cells(("x", "y"), rows, argparse.Namespace(csv=True), nothing="none")

    out = capsys.readouterr().out
    if is_terminal:
        assert out == 'x,y\n"a\\tb\nc",esc\\x1b[31m\nback\\u202e,\n'
    else:
        read = list(csv.reader(io.StringIO(out, newline="")))
        assert read == [["x", "y"], *([cell or "" for cell in row] for row in rows)]
