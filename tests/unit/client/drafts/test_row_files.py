"""Rows of files are all that the file says, or the file is refused with the place of the fault."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client import InvalidDraft
from rebaser_client.row_files import read_rows


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([2**62], pa.timestamp("us")), "column 'value' of type timestamp.*; cast it to"),
        (pa.array([b"\xff"]).view(pa.string()), "column 'value' of type string: .*utf-8"),
    ],
)
def test_cells_of_parquet_that_python_has_not_are_named(
    column: pa.Array, message: str, tmp_path: Path
) -> None:
    """A date beyond the year 9999, text that is no UTF-8."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": column}), path)

    with pytest.raises(InvalidDraft, match=f"rows.parquet: {message}"):
        read_rows(path)


def test_damaged_parquet_is_named_with_its_fault(tmp_path: Path) -> None:
    """Wherever octets are gone."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"name": ["a", "b"], "value": [1, 2]}), path)
    sound = path.read_bytes()

    for cut in (0, 8, 40, len(sound) // 2, len(sound) - 9):
        path.write_bytes(sound[:cut] + sound[cut + 7 :])
        try:
            rows = read_rows(path)
        except InvalidDraft as error:
            assert str(error).startswith(f"{path}: not a whole file in Parquet: "), cut  # noqa: PT017
        else:
            assert len(rows) == 2
