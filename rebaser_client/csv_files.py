"""CSV files as RFC 4180 has them, read strictly and in parts: rows, tables and seeds of dbt.

A file is text in UTF-8 whose first line names the columns. An empty cell is no value, in quotes or
not; any other cell is what it says, so NA and null are text. Lines end in LF, CRLF or CR; in quotes
a break is a part of the cell. A line without any cell is left out.
"""

import codecs
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, TypeAlias

from rebaser_client.display import package
from rebaser_client.documents import MAX_SIZE, too_large
from rebaser_client.errors import InvalidDraft
from rebaser_core.codecs import INT_MAX, INT_MIN

Rows: TypeAlias = list[dict[str, Any]]

_Part: TypeAlias = tuple[int, list[Sequence[str]]]
"""Cells of some rows, column by column, and the line in which the first row begins."""


def read_csv(path: str | Path, *, text: Iterable[str] = ()) -> Rows:
    """The rows of a CSV file in UTF-8 whose first line names the columns; empty cells are None.

    A column not in `text` is numbers if each of its cells is a number as JSON writes it and fits 64
    bits; so 007 and +49 stay text. It is integers if all cells are, else floats. Integers that no
    float equals stay integers.

    Raises:
        InvalidDraft: it is not UTF-8, not CSV, names a column twice, has a line with more or fewer
            cells than columns, or is larger than `documents.MAX_SIZE`.
        OSError: the file cannot be read.

    Example:
        products = read_csv("products.csv", text=["sku"])
        draft.sources("net/{sku}", products, "net")
    """
    kept, (names, parts) = set(text), _open(Path(path), most=MAX_SIZE)
    columns: dict[str, list[str]] = {name: [] for name in names}
    for _, part in parts:
        for name, cells in zip(columns, part, strict=True):
            columns[name] += cells
    plain = [_plain(cells, is_text=name in kept) for name, cells in columns.items()]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*plain, strict=True)]


_BLOCK: Final = 1 << 20
"""Bytes that are read at a time, unless a row has more."""
_OTHERS: Final = ";\t|"
"""Characters that other programs write between cells."""
_QUOTED: Final = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')


def _open(path: Path, delimiter: str = ",", most: float = inf) -> tuple[list[str], Iterator[_Part]]:
    """Return the names of the columns, and the rows, which take `most` bytes at most."""
    parts = _parts(path, delimiter, most)
    _, header = next(parts, (0, None))
    if header is None:
        raise InvalidDraft(f"{path}: it is empty; a table without rows has a line with its columns")
    names = [name for [name] in header]
    require_once(names, f"{path}: ")
    if len(names) == 1 and {*names[0]} & {*_OTHERS}:
        raise InvalidDraft(
            f"{path}: its one column is called {names[0]!r:.80}; cells have {delimiter!r} between "
            "them: save it so"
        )
    return names, parts


def _parts(path: Path, delimiter: str, most: float) -> Iterator[_Part]:
    """Yield the rows; the first part is the names of the columns."""
    mark = re.escape(delimiter)
    # The last group takes all from a cell on that has no end, so that the search ends there.
    token = re.compile(rf'({_QUOTED.pattern}|[^"{mark}\r\n]*)({mark}|\r\n?|\n)|((?s:.)+)')
    text, more, line, names = "", "", 1, list[str]()
    for piece, at_end in _texts(path, most):
        more += piece
        if len(more) < len(text) and not at_end:
            continue  # a long row, which is searched again when there is as much more of it
        text, more = text + more, ""
        if at_end and text and text[-1] not in "\r\n":
            text += "\n"
        tokens, left = token.findall(text), list[tuple[str, str, str]]()
        while tokens and tokens[-1][1] in ("", delimiter):
            left.append(tokens.pop())
        for first, columns in _columns(path, tokens, delimiter, line, len(names)):
            if '"' in text:
                columns[:] = [list(map(_unquoted, cells)) for cells in columns]
            names = names or [cells[0] for cells in columns]
            yield first, columns
        done = len(text) - sum(map(len, chain.from_iterable(left)))
        line += _breaks(text[:done])
        rest = left[0][2] if left else ""
        if (found := _mistake(rest, at_end=at_end)) is not None:
            before = _breaks(text[done : len(text) - len(rest) + found[0]])
            column = f", column {names[len(left) - 1]!r:.80}" if len(left) <= len(names) else ""
            raise InvalidDraft(f"{path}: line {line + before}{column}: {found[1]}")
        text = text[done:]
        if len(text) > MAX_SIZE:
            raise InvalidDraft(f"{path}: line {line}: {too_large('the row that begins here')}")


def _texts(path: Path, most: float) -> Iterator[tuple[str, bool]]:
    """Yield the text in pieces, of which none ends within a CRLF, and whether it is the last."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held, size, line, octets = "", 0, 1, b"-"
    with path.open("rb") as file:
        while octets:
            octets = file.read(_BLOCK)
            size += len(octets)
            if size > most:
                raise InvalidDraft(f"{path}: {too_large()}")
            try:
                text = held + decoder.decode(octets, final=not octets)
            except UnicodeDecodeError as error:
                line += _breaks(held + error.object[: error.start].decode())
                byte = size - len(error.object) + error.start
                raise InvalidDraft(f"{path}: line {line}: not UTF-8 (byte {byte})") from error
            if (place := text.find("\0")) >= 0:
                line += _breaks(text[:place])
                raise InvalidDraft(f"{path}: line {line}: the character NUL; save it as UTF-8")
            held = "\r" if octets and text.endswith("\r") else ""
            text = text[: len(text) - len(held)]
            line += _breaks(text)
            yield text, not octets


def _breaks(text: str) -> int:
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def _mistake(rest: str, *, at_end: bool) -> tuple[int, str] | None:
    """Return place and text of what is wrong with a cell that has no end, if more would not do."""
    twice = "; a quote in a cell is written twice, in quotes"
    closed, quote = _QUOTED.match(rest), rest.find('"')
    if closed is not None and closed.end() < len(rest):
        return closed.end(), f"text behind the quote that closes the cell{twice}"
    if closed is None and quote > 0:
        return quote, f"a quote in a cell that does not begin with one{twice}"
    if closed is None and quote == 0 and at_end:
        return 0, "the quote that opens here is never closed"
    return None


def require_once(columns: Sequence[str], where: str = "") -> None:
    """Raise `InvalidDraft` if a name is there twice."""
    places: dict[str, int] = {}
    for number, column in enumerate(columns, 1):
        first = places.setdefault(column, number)
        if first < number:
            raise InvalidDraft(
                f"{where}columns {first} and {number} are both called {column!r:.80}"
            )


def _columns(
    path: Path, tokens: list[tuple[str, str, str]], delimiter: str, line: int, width: int
) -> Iterator[_Part]:
    """Yield the cells of whole rows, as they are written; a width of 0 is that of the first row."""
    cells, ends = [cell for cell, _, _ in tokens], [end for _, end, _ in tokens]
    if width and len(ends) % width == 0 and (width > 1 or "" not in cells):
        last = ends[width - 1 :: width]
        if delimiter not in last and ends.count(delimiter) == len(ends) - len(last):
            yield line, [cells[place::width] for place in range(width)]
            return
    first, rows, start = line, list[list[str]](), 0
    for place, end in enumerate(ends, 1):
        if end == delimiter:
            continue
        row, is_header = cells[start:place], False
        if row != [""]:
            is_header, width = not width, width or len(row)
            if len(row) != width:
                more = "more" if len(row) > width else "fewer"
                what = f"{more} cells than columns: {len(row)}, and the first line has {width}"
                raise InvalidDraft(f"{path}: line {line}: {what}")
            rows.append(row)
        start, line = place, line + 1 + sum(map(_breaks, row))
        if rows and (is_header or row == [""]):
            yield first, list(zip(*rows, strict=True))
            rows = []
        first = first if rows else line
    if rows:
        yield first, list(zip(*rows, strict=True))


_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
"""A cell that is a number, as JSON writes it."""
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_DIGITS: Final = 19
"""Digits of the largest integer of 64 bits."""
_EXACT: Final = 15
"""Characters up to which a float equals each whole number."""


def _plain(cells: list[str], *, is_text: bool) -> list[Any]:
    found = [cell for cell in cells if cell]
    if is_text or not all(map(_is_number, found)):
        return [cell or None for cell in cells]
    convert = int if all(map(_WHOLE.fullmatch, found)) else _exact
    return [convert(cell) if cell else None for cell in cells]


def _is_number(cell: str) -> bool:
    if _NUMBER.fullmatch(cell) is None:
        return False
    if not _WHOLE.fullmatch(cell):
        return isfinite(float(cell))
    return len(cell) <= _DIGITS + 1 and INT_MIN <= int(cell) <= INT_MAX


def _exact(cell: str) -> int | float:
    number = float(cell)
    return int(cell) if _WHOLE.fullmatch(cell) and int(number) != int(cell) else number


def read_csv_table(
    path: str | Path,
    kind_of: Callable[[str], Any],
    more: Mapping[Any, str] | None = None,
    delimiter: str = ",",
) -> Any:
    """A `pyarrow.RecordBatchReader` of the rows of a CSV file, of any size.

    A column has the type that `kind_of` returns for its name, or if that is None, the first of
    int64, float64 and those in `more` that holds each cell exactly, else text. Numbers are those of
    `read_csv`; `more` has patterns of cells.

    Raises:
        InvalidDraft: as `read_csv` does, or a table has no such columns, or a cell is not of its
            column's type.
        MissingPackage: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    pa: Any = package("pyarrow", extra="arrow")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidDraft(f"{path}: {delimiter!r:.20} separates no cells; give one character")
    names, parts = _open(Path(path), delimiter)
    schemas: Any = package("rebaser_core.table_schemas", extra="arrow")
    try:
        schemas.kept_schema(pa.schema([(name, pa.string()) for name in names]))
    except schemas.NotATable as error:
        raise InvalidDraft(f"{path}: {error}") from error
    columns = [_Column(pa, name, kind_of(name), more or {}) for name in names]
    batches = _typed(pa, path, columns, parts)
    return pa.RecordBatchReader.from_batches(next(batches), batches)


def _typed(pa: Any, path: str | Path, columns: list["_Column"], parts: Iterator[_Part]) -> Any:
    """Yield the schema, then batches.

    Types are known at the end alone; a file that is read again then may have changed.
    """
    texts = pa.schema([(column.name, pa.string()) for column in columns])
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with tempfile.TemporaryFile() as spool:
        with pa.ipc.new_stream(spool, texts, options=options) as kept:
            for line, part in parts:
                arrays = [column.take(cells) for column, cells in zip(columns, part, strict=True)]
                for column, cells in zip(columns, part, strict=True):
                    if (row := column.wrong) is not None:
                        at = line + row + sum(_breaks(cell) for each in part for cell in each[:row])
                        what = f"column {column.name!r:.80}: {cells[row]!r:.80} is no {column.kind}"
                        raise InvalidDraft(f"{path}: line {at}, {what}")
                kept.write_batch(pa.record_batch(arrays, schema=texts))
        schema = pa.schema([(column.name, column.kind) for column in columns])
        yield schema
        spool.seek(0)
        for batch in pa.ipc.open_stream(spool):
            made = [each.cast(kind) for each, kind in zip(batch.columns, schema.types, strict=True)]
            yield pa.record_batch(made, schema=schema)


class _Column:
    """The type of a column of texts, as far as it was read."""

    def __init__(self, pa: Any, name: str, kind: Any, more: Mapping[Any, str]) -> None:
        self.name = name
        self.wrong: int | None = None
        """Row of the last cells that is not of the type that was given."""
        self._pa, self._pc = pa, package("pyarrow.compute", extra="arrow")
        self._is_given, self._is_empty = kind is not None, True
        numbers = {pa.int64(): _WHOLE.pattern, pa.float64(): _NUMBER.pattern}
        self._kinds = {kind: ""} if self._is_given else {**numbers, **more}
        """Types that hold all cells so far, with patterns of cells."""

    @property
    def kind(self) -> Any:
        """The first of them; a column without a cell is text."""
        is_open = self._is_empty and not self._is_given
        return next(iter({} if is_open else self._kinds), self._pa.string())

    def take(self, cells: Sequence[str]) -> Any:
        """Return the next cells as texts of Arrow, null where one is empty."""
        made = self._pa.array(cells, self._pa.string())
        made = self._pc.replace_with_mask(
            made, self._pc.equal(made, ""), self._pa.scalar(None, made.type)
        )
        some = made.drop_null()
        self._is_empty = self._is_empty and not len(some)
        held = {kind: each for kind, each in self._kinds.items() if self._holds(kind, some, each)}
        if self._is_given and not held:
            rows = range(len(made))
            self.wrong = next(n for n in rows if not self._holds(self.kind, made.slice(n, 1)))
        else:
            self._kinds = held
        return made

    def _holds(self, kind: Any, cells: Any, pattern: str = "") -> bool:
        pc = self._pc
        if pattern and not pc.all(pc.match_substring_regex(cells, f"^(?:{pattern})$")).as_py():
            return not len(cells)
        try:
            made = cells.cast(kind)
        except self._pa.ArrowInvalid:
            return False
        if pattern != _NUMBER.pattern:
            return True
        long = cells.filter(pc.greater(pc.utf8_length(cells), _EXACT)).to_pylist()
        is_finite = pc.all(pc.is_finite(made), min_count=0).as_py()
        return is_finite and all(_is_number(cell) and type(_exact(cell)) is float for cell in long)
