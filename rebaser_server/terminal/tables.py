"""Tables, trees and progress bars, with foreign text escaped: see `lines`.

Commands print a table for people, or JSON or CSV for programs, from one list of rows.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich import box, table, tree
from rich import progress as bars
from rich.console import Console
from rich.text import Text

from rebaser_server.terminal.lines import complain, say_csv, say_json, say_script, visible

_WIDTH: Final = 200
"""Columns of a line if stdout is not a terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console that interprets no text as markup or emoji, and colours none."""
    return Console(
        stderr=stderr,
        width=None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


def only_ascii() -> bool:
    """Whether stdout's encoding has only ASCII characters to draw a table with."""
    return console().options.ascii_only


def cell(value: object, style: str = "") -> Text:
    """The value as text of one line, for a table or a tree; nothing for None."""
    return Text("" if value is None else visible(str(value)), style, overflow="fold")


class Table:
    """Rows of cells under headings; a long cell goes on in the next line."""

    def __init__(
        self,
        *headings: str,
        numbers: Iterable[int] = (),
        edge: bool = True,
        ruled: bool = False,
    ) -> None:
        """Make a table; `numbers` are right-aligned columns, from 0; `edge` adds outer spaces.

        `ruled` draws a line below the headings.
        """
        self._table = table.Table(
            box=box.SIMPLE_HEAD if ruled else None,
            pad_edge=edge,
            show_header=any(headings),
        )
        right_aligned = set(numbers)
        for column, heading in enumerate(headings):
            self._table.add_column(
                cell(heading),
                justify="right" if column in right_aligned else "left",
                overflow="fold",
            )

    def add(self, *values: object) -> None:
        """Add a row; numbers get commas between their thousands."""
        self._table.add_row(*map(_number_or_cell, values))

    def add_section(self) -> None:
        self._table.add_section()

    def show(self) -> None:
        _print(self._table)


def _print(drawn: object) -> None:
    """Print through `lines`: Rich would end the process itself at a closed pipe."""
    on = console()
    with on.capture() as captured:
        on.print(drawn)
    say_script(captured.get().removesuffix("\n"))


def _number_or_cell(value: object) -> Text:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return cell(f"{value:,}" if is_number else value)


Part = str | tuple[str, str]
"""Text, or text with a style of Rich's."""


class Tree:
    def __init__(self, *label: Part, below: tree.Tree | None = None) -> None:
        """Begin a tree, or one below another tree."""
        text = _label(label)
        self._tree = tree.Tree(text) if below is None else below.add(text)

    def add(self, *label: Part) -> "Tree":
        return Tree(*label, below=self._tree)

    def show(self) -> None:
        _print(self._tree)


def _label(parts: Iterable[Part]) -> Text:
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*(cell(text, style) for text, style in pairs))


class ProgressBar:
    def __init__(self, progress: Any, bar: Any) -> None:
        self._progress = progress
        self._bar = bar

    @property
    def is_seen(self) -> bool:
        return not self._progress.disable

    def describe(self, what: str) -> None:
        self._progress.update(self._bar, description=visible(what))

    def draw(self, done: int, total: int) -> None:
        self._progress.update(self._bar, completed=done, total=total)


@contextmanager
def progress_bar(what: str) -> Iterator[ProgressBar]:
    """Show a bar of unknown length while the body runs."""
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
    )
    shown = bars.Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty())
    with shown:
        yield ProgressBar(shown, shown.add_task(visible(what), total=None))


Row = Mapping[str, Any]


def show(
    rows: Sequence[Row],
    headings: Mapping[str, str],
    arguments: argparse.Namespace | None = None,
    *,
    nothing: str,
) -> None:
    """Print `rows` as `show_cells` does: all keys as JSON, else those in `headings`."""
    cells = [[row[key] for key in headings] for row in rows]
    show_cells([*headings.values()], cells, arguments, plain=rows, nothing=nothing)


def show_cells(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    arguments: argparse.Namespace | None = None,
    *,
    plain: Sequence[Any] = (),
    numbers: Iterable[int] = (),
    nothing: str,
) -> None:
    """Print rows: `plain` as JSON, or the cells as CSV or a table, as the command's arguments say.

    A table has numbers on the right, and the columns in `numbers`. If there are no rows, it is
    `nothing`, on stderr.
    """
    if getattr(arguments, "json", False):
        say_json(list(plain))
    elif getattr(arguments, "csv", False):
        text = io.StringIO()
        cells = [[_plain(cell) for cell in row] for row in rows]
        csv.writer(text, lineterminator="\n").writerows([headings, *cells])
        say_csv(text.getvalue())
    elif not rows:
        complain(nothing)
    else:
        first = enumerate(rows[0])
        found = [place for place, value in first if isinstance(value, int | float)]
        table = Table(*headings, numbers=[*numbers, *found], edge=False)
        for row in rows:
            table.add(*row)
        table.show()


def _plain(value: object) -> object:
    """A cell of CSV: text as it is, and JSON for other data."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
