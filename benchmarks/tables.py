"""Figures as tables that people read and as JSON that programs compare."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Cell = str | int | float | None
"""None: not known on this machine."""

MILLI = 1e3


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures under a title; a unit stands in the column's name."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Give it as Markdown, so that it can be pasted into a page."""
        cells = [list(self.columns), *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        # What the first row has as text is text in all.
        left = [isinstance(cell, str) for cell in self.rows[0]]
        rules = [
            "-" * w if is_left else "-" * (w - 1) + ":"
            for w, is_left in zip(widths, left, strict=True)
        ]
        lines = [_line(row, widths, left) for row in (cells[0], rules, *cells[1:])]
        return "\n".join([f"### {self.title}", "", *lines, "", *self.notes])

    def as_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def _line(cells: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    padded = [
        cell.ljust(width) if is_left else cell.rjust(width)
        for cell, width, is_left in zip(cells, widths, left, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else cell
    digits = 0 if abs(cell) >= 100 else 1 if abs(cell) >= 10 else 2
    return f"{cell:,.{digits}f}"


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
