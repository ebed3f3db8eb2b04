"""The rows of files: CSV, lines of JSON, and Parquet; each fault has its place.

Cells are plain data, except in Parquet, which has more types than JSON.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rebaser_client.csv_files import Rows, read_csv, require_once
from rebaser_client.display import package
from rebaser_client.documents import MAX_SIZE, parse_json, read_text, size_of, too_large
from rebaser_client.errors import InvalidDraft


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


def row_size(row: Mapping[str, Any]) -> int:
    """Size of a row, see `documents.MAX_SIZE`; cells that are not text count as empty text."""
    return sum(size_of(cell if isinstance(cell, str) else "") for cell in row.values())


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


def _read_parquet(path: Path) -> Rows:
    batches = package("rebaser_client.arrow_batches", extra="arrow")
    rows: Rows = []
    try:
        reader = batches.read_parquet(path, _BATCH)
        size = 0
        for batch in reader:
            size += batch.nbytes + batch.num_rows * batch.num_columns * size_of("")
            if size > MAX_SIZE:
                raise too_large()
            rows += plain_rows(batch)
    except batches.NotATable as error:
        raise InvalidDraft(str(error)) from error
    return rows


def plain_rows(batch: Any) -> Rows:
    """Return rows of a batch or table of Arrow, cells as Python has them. Raises `InvalidDraft`."""
    require_once(batch.schema.names)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
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
