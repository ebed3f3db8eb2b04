"""Values of two change sets that differ, for instance of a branch and its head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from rebaser_client.display.frames import Columns, arrow_table, pandas_frame, polars_frame
from rebaser_client.display.html import html_table
from rebaser_client.value_reader import ValueSet
from rebaser_core.codecs import json_equal
from rebaser_core.queries import ValueSnapshot


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value that differs; a side is None where there is no such value."""

    id: str
    name: str | None
    head: Any
    branch: Any
    head_status: str | None
    branch_status: str | None


class ValueDifferences(Sequence[ValueDifference]):
    """All values that differ, sorted by name."""

    def __init__(self, head: ValueSet, branch: ValueSet) -> None:
        differences = _differences(head, branch)
        self._rows = sorted(differences, key=lambda row: (row.name or "", row.id))

    @overload
    def __getitem__(self, index: int) -> ValueDifference: ...
    @overload
    def __getitem__(self, index: slice) -> list[ValueDifference]: ...
    def __getitem__(self, index: int | slice) -> ValueDifference | list[ValueDifference]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`. Raises `MissingPackage` without pandas."""
        return pandas_frame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`. Raises `MissingPackage` without pyarrow."""
        return arrow_table(self._columns())

    def to_polars(self) -> Any:
        """A `polars.DataFrame`. Raises `MissingPackage` without Polars or pyarrow."""
        return polars_frame(self._columns())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for programs that take Arrow. Raises `MissingPackage` without pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _columns(self) -> Columns:
        names = ("name", "head", "branch", "head_status", "branch_status", "id")
        return {name: [getattr(row, name) for row in self._rows] for name in names}

    def _repr_html_(self) -> str:
        rows = [(row.name or row.id, row.head, row.branch, row.branch_status) for row in self._rows]
        return html_table(("value", "head", "branch", "status"), rows, f"{len(rows):,} differ")


def _differences(head: ValueSet, branch: ValueSet) -> Iterator[ValueDifference]:
    for value_id in {**dict.fromkeys(head), **dict.fromkeys(branch)}:
        one, other = head.get(value_id), branch.get(value_id)
        if _same(one, other):
            continue
        known = other or one
        yield ValueDifference(
            value_id,
            None if known is None else known.name,
            *(None if side is None else side.value for side in (one, other)),
            *(None if side is None else side.status for side in (one, other)),
        )


def _same(one: ValueSnapshot | None, other: ValueSnapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.status == other.status and json_equal(one.value, other.value)
