"""The rows of files: CSV as RFC 4180 has it, lines of JSON, and Parquet; each fault has its place.

Cells are plain data, except in Parquet, which has more types than JSON.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final, TypeAlias

from rebaser_client.display import package
from rebaser_client.documents import MAX_SIZE, parse_json, read_text, size_of, too_large
from rebaser_client.errors import InvalidDraft
from rebaser_core.codecs import INT_MAX, INT_MIN

Rows: TypeAlias = list[dict[str, Any]]


def read_rows(path: str | Path, *, text: Iterable[str] = ()) -> Rows:
    """The rows of a file: Parquet, or lines of JSON, by its suffix; any other is CSV.

    `text`: columns of CSV that stay text.

    Raises:
        InvalidDraft: it is not such a file, or larger than `documents.MAX_SIZE`.
        MissingPackage: pyarrow is not installed, and this is Parquet.
        OSError: the file cannot be read.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".parquet":
            read = _read_parquet
        case ".jsonl":
            read = _read_json_lines
        case _:
            return read_csv(path, text=text)
    try:
        return read(path)
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def read_csv(path: str | Path, *, text: Iterable[str] = ()) -> Rows:
    """The rows of a CSV file in UTF-8 whose first line names the columns; empty cells are None.

    A column not in `text` is numbers if each of its cells is a number as JSON writes it and fits 64
    bits; so 007 stays text. It is integers if all cells are, else floats. Integers that no float
    equals stay integers.

    Raises:
        InvalidDraft: it is not UTF-8, not CSV, names a column twice, or has a line with more or
            fewer cells than columns.
        OSError: the file cannot be read.

    Example:
        products = read_csv("products.csv", text=["sku"])
        draft.sources("net/{sku}", products, "net")
    """
    try:
        return _csv_rows(read_text(Path(path)), set(text))
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def row_size(row: Mapping[str, Any]) -> int:
    """Size of a row, see `documents.MAX_SIZE`; cells that are not text count as empty text."""
    return sum(size_of(cell if isinstance(cell, str) else "") for cell in row.values())


def _csv_rows(text: str, kept: set[str]) -> Rows:
    lines = _csv_lines(text)
    _, columns = next(lines, (0, None))
    if columns is None:
        raise InvalidDraft("it is empty; a table without rows has a line with its columns")
    _require_once(columns)
    rows, width = [], len(columns)
    for line, cells in lines:
        if len(cells) != width:
            raise InvalidDraft(
                f"line {line}: {'more' if len(cells) > width else 'fewer'} cells than columns: "
                f"{len(cells)}, and the first line has {width}"
            )
        rows.append({column: cell or None for column, cell in zip(columns, cells, strict=True)})
    for column in columns:
        if column not in kept:
            _make_numbers(column, rows)
    return rows


def _require_once(columns: list[str]) -> None:
    for number, column in enumerate(columns, 1):
        first = columns.index(column) + 1
        if first < number:
            raise InvalidDraft(f"columns {first} and {number} are both called {column!r:.80}")


_BREAK: Final = re.compile(r"\r\n|\n|\r")
_QUOTED: Final = re.compile(r'"([^"]*(?:""[^"]*)*)"')
_BARE_END: Final = re.compile(r'[",\r\n]|$')


def _csv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that has any, and the number of the line in which they begin."""
    position, line, columns = 0, 1, list[str]()
    while position < len(text):
        found = _BREAK.search(text, position)
        end, after = (len(text), len(text)) if found is None else found.span()
        if text.find('"', position, end) < 0:  # as in most lines
            cells, lines = text[position:end].split(","), 1
        else:
            cells, end = _quoted_line(text, position, line, columns)
            lines = 1 + len(_BREAK.findall(text, position, end))
            found = _BREAK.match(text, end)
            after = len(text) if found is None else found.end()
        if end > position:
            columns = columns or cells
            yield line, cells
        position, line = after, line + lines


def _quoted_line(text: str, position: int, line: int, columns: list[str]) -> tuple[list[str], int]:
    """The cells of a line that has quotes, and the position of its end."""
    cells: list[str] = []

    def fault(what: str) -> InvalidDraft:
        lines = line + len(_BREAK.findall(text, start, position))
        where = f", column {columns[len(cells)]!r:.80}" if len(cells) < len(columns) else ""
        return InvalidDraft(f"line {lines}{where}: {what}")

    start = position
    while True:
        if text.startswith('"', position):
            found = _QUOTED.match(text, position)
            if found is None:
                raise fault("the quote that opens here is never closed")
            cell, behind = found[1].replace('""', '"'), "text behind the quote that closes the cell"
            position = found.end()
        else:
            found = _BARE_END.search(text, position)
            end = len(text) if found is None else found.start()
            cell, behind = text[position:end], "a quote in a cell that does not begin with one"
            position = end
        if position == len(text) or text[position] in "\r\n":
            return [*cells, cell], position
        if text[position] != ",":
            raise fault(f"{behind}; a quote in a cell is written twice, in quotes")
        cells.append(cell)
        position += 1


NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
"""A cell of CSV that is a number, as JSON writes it."""
_DIGITS: Final = 19
"""Digits of the largest integer of 64 bits."""


def _make_numbers(column: str, rows: Rows) -> None:
    cells = [row[column] for row in rows if row[column] is not None]
    if not cells or not all(map(_is_number, cells)):
        return
    whole = all(map(_is_whole, cells))
    for row in rows:
        if (cell := row[column]) is not None:
            row[column] = int(cell) if whole else _exact(cell)


def _is_number(cell: str) -> bool:
    if NUMBER.fullmatch(cell) is None:
        return False
    if not _is_whole(cell):
        return isfinite(float(cell))
    return len(cell) <= _DIGITS + 1 and INT_MIN <= int(cell) <= INT_MAX


def _is_whole(cell: str) -> bool:
    return cell.lstrip("-").isdigit()


def _exact(cell: str) -> int | float:
    number = float(cell)
    return int(cell) if _is_whole(cell) and int(number) != int(cell) else number


def _read_json_lines(path: Path) -> Rows:
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        row = parse_json(line, number)
        if not isinstance(row, dict):
            raise InvalidDraft(f"line {number}: a row is an object, {{column: cell}}")
        rows.append(row)
    if not rows:
        raise InvalidDraft("it is empty; a line of JSON is expected for each row")
    return rows


_BATCH: Final = 1024
"""Number of rows of Parquet in memory before they are made plain."""

INDEX: Final = re.compile(r"__index_level_\d+__")
"""The column in which pandas keeps the numbers of rows."""


def _read_parquet(path: Path) -> Rows:
    parquet = package("pyarrow.parquet", extra="arrow")
    rows: Rows = []
    with path.open("rb") as file:
        try:
            opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
            columns = list(opened.schema_arrow.names)
            _require_once(columns)
            cells = opened.metadata.num_rows * max(1, len(columns))
            if cells * size_of("") > MAX_SIZE:
                raise too_large()
            size = 0
            for batch in opened.iter_batches(batch_size=_BATCH):
                size += batch.nbytes + batch.num_rows * batch.num_columns * size_of("")
                if size > MAX_SIZE:
                    raise too_large()
                rows += _plain_rows(batch)
        except InvalidDraft:
            raise
        # ArrowException is not the base of all that pyarrow raises: it has errors of Python's own.
        except Exception as error:
            raise InvalidDraft(f"not Parquet, or damaged: {_words(error)}") from error
    return rows


def _plain_rows(batch: Any) -> Rows:
    """The rows of a part of a table."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if INDEX.fullmatch(name) and b"pandas" in (batch.schema.metadata or {}):
            continue
        try:
            columns[name] = column.to_pylist()
        except Exception as error:  # Python has no such date, text is no UTF-8, …
            raise InvalidDraft(
                f"column {name!r:.80} of type {column.type!s:.80}: {_words(error)}; cast it to "
                "text, or leave it out"
            ) from error
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
