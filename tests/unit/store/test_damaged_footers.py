"""A Parquet file with a damaged footer is an error, and ends no process."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import scan
from rebaser_server.store.compaction import _batches
from rebaser_server.store.table_files import CheckpointTable, translate_store_errors

COLUMNS = ["kind", "commit", "value"]
KINDS = ["function"] * 4 + ["value"] * 5  # "head" lies between: by the log alone there may be one
ROWS = pa.table({"kind": KINDS, "commit": range(9), "value": ["v"] * 9})
_LENGTH = 4  # octets of a footer's length, and of the mark behind it


@pytest.fixture
def table(tmp_path: Path) -> CheckpointTable:
    write_deltalake(str(tmp_path), ROWS)
    return CheckpointTable(
        str(tmp_path), SubTreeFileSystem(str(tmp_path), LocalFileSystem()), None, {}
    )


def test_no_bit_of_a_footer_ends_the_process_of_who_reads(
    table: CheckpointTable, tmp_path: Path
) -> None:
    """Arrow aborts a process that looks at statistics which fit no column, as for a filter."""
    [path] = tmp_path.glob("*.parquet")
    whole = path.read_bytes()
    length = int.from_bytes(whole[-2 * _LENGTH : -_LENGTH], "little")
    bits = random.Random(1).sample(range(8 * length), 8 * length // 4)
    seen = {"read": 0, "damaged": 0}
    for bit in bits:
        octets = bytearray(whole)
        octets[len(whole) - 2 * _LENGTH - length + bit // 8] ^= 1 << bit % 8
        path.write_bytes(octets)
        for read in (
            table.heads,
            lambda: scan(table, COLUMNS, 4),
            lambda: [*_batches(table.to_pyarrow_dataset(), 4)],
        ):
            try:
                with translate_store_errors():
                    read()
            except StoreDamaged:
                seen["damaged"] += 1
            else:
                seen["read"] += 1

    assert min(seen.values()) > len(bits) // 10
