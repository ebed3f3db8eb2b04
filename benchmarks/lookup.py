"""Single values of a large table looked up, and the change set loaded, in turns.

A value is looked up with the table not opened before, and with the table kept open.

`python -m benchmarks.lookup [values]`; ten million by default, which takes 4 GB for the table
that is written. Ids are those of values defined one after the other, as a client makes them.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
from ulid import ULID

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.store.checkpoints import CheckpointChanges, Checkpoints
from rebaser_server.store.stored_values import OpenTables, find_values
from rebaser_server.store.table_schema import SCHEMA

ROUNDS: Final = 3
_COMMIT: Final = 1
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
"""Of ULIDs."""


def table_of(count: int) -> pa.Table:
    """So many sources with names, and the row of the checkpoint."""
    texts = np.empty((count, 26), np.uint8)
    texts[:] = np.frombuffer(str(ULID()).encode(), np.uint8)
    for place in range(6):
        texts[:, 25 - place] = _DIGITS[(np.arange(count) >> (5 * place)) & 31]
    values = {
        "kind": pa.repeat("value", count),
        "id": pa.array(texts.view("S26").ravel().astype(str).tolist(), pa.string()),
        "name": pa.array([f"price-{number:08}" for number in range(count)]),
        "value": pa.array(np.arange(count)).cast(pa.string()),
        "status": pa.repeat("ok", count),
    }
    head = {"kind": pa.array(["head"]), "id": pa.array([""]), "value": pa.array([json.dumps({})])}
    return pa.Table.from_batches([_batch(values), _batch(head)], SCHEMA)


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    count = len(columns["kind"])
    columns |= {"commit": pa.repeat(pa.scalar(_COMMIT, pa.int64()), count)}
    columns |= {"removed": pa.repeat(pa.scalar(value=False), count)}
    return pa.record_batch(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA], SCHEMA
    )


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - worked


def main(count: int = 10_000_000) -> None:
    with tempfile.TemporaryDirectory() as root:
        checkpoints, change_set = Checkpoints(root), ChangeSet(WorkspaceId(), ChangeSetId())
        table = [table_of(count)]
        value_id = table[0]["id"][count // 2].as_py()
        checkpoints.save(
            change_set, CheckpointChanges(_COMMIT, table.pop, b"{}", count, whole=True)
        )

        def find(which: str, tables: OpenTables) -> None:
            found = find_values(tables, checkpoints, change_set, [which], min_rows=0)
            if found is None or which not in found.values:
                raise LookupError(which)

        name, kept = f"price-{count // 3:08}", OpenTables()
        clock, processor = timed(lambda: find(value_id, kept))
        print(f"the process's first question: {clock:.3f} s, {processor:.3f} s of the processor")
        ways: dict[str, Callable[[], Any]] = {
            "a value by its id, the table not open": lambda: find(value_id, OpenTables()),
            "a value by its name, the table not open": lambda: find(name, OpenTables()),
            "a value by its id": lambda: find(value_id, kept),
            "a value by its name": lambda: find(name, kept),
            "the change set": lambda: checkpoints.load(change_set),
        }
        times: dict[str, list[tuple[float, float]]] = {what: [] for what in ways}
        for _ in range(ROUNDS):
            for what, way in ways.items():
                times[what].append(timed(way))
        for what, each in times.items():
            clock, processor = (median(column) for column in zip(*each, strict=True))
            print(f"{what}: {clock:.3f} s, {processor:.3f} s of the processor")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
