"""Of a table's rows those count that the plainest look at all of them finds."""

import random

import pyarrow as pa
import pytest

from rebaser_server.store.compaction import find_live_rows
from rebaser_server.store.table_schema import KEY_COLUMNS
from tests.helpers.checkpoint_writer import ulid

KINDS = ["value", "func", "head"]


def batch_of(rows: list[tuple[str, str, int, bool]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    types = [pa.string(), pa.string(), pa.int64(), pa.bool_()]
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], KEY_COLUMNS
    )


@pytest.mark.parametrize("seed", range(10))
def test_of_each_kind_and_id_the_row_of_the_greatest_commit_is_live(seed: int) -> None:
    """Unless it is a removal; in whatever order and however many batches the rows come."""
    rng = random.Random(seed)
    ids = [*map(ulid, range(rng.choice([1, 5, 300]))), "head", ""]
    rows, last = [], dict[tuple[str, str], int]()
    for commit in rng.sample(range(1, 10**6), 1_000):
        kind, value_id = rng.choice(KINDS), rng.choice(ids)
        rows.append((kind, value_id, commit, rng.random() < 0.2))
        last[kind, value_id] = max(commit, last.get((kind, value_id), 0))
    cut = rng.randrange(1, len(rows))

    is_live = find_live_rows(map(batch_of, (rows[:cut], rows[cut:])), len(rows) + rng.randrange(9))

    assert is_live.tolist() == [
        commit == last[kind, value_id] and not removed for kind, value_id, commit, removed in rows
    ]


def test_a_table_without_rows_has_no_live_ones() -> None:
    assert find_live_rows([], 7).tolist() == []
