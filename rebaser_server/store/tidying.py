"""Keep a change set's table small: few files, and no rows that nobody can ask for any more.

Each step is one Delta commit, refused if another one of ours came in between, and
changes no state that can be asked for. All calls block; run them in a thread.
"""

import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import APP_ID, Checkpoints, translated

MOST_FILES: Final = 40
"""Appending gets slow with live files, by about a millisecond each (measured: 70 at 1,000)."""

_MERGED: Final = 8 * 1024 * 1024
"""Octets up to which a file is merged with others: what is written anew stays little."""

_NEW_ROWS: Final = 1_000
"""More rows than the largest file has, and this many, are looked through for superseded ones."""

_ONE_FILE: Final = 2**40  # octets, more than there will be


def tidy(
    checkpoints: Checkpoints, change_set: ChangeSet, start: int, keep_replaced: float
) -> str | None:
    """Do what is worth its cost, if anything; what it was.

    Commits below `start` cannot be asked for any more. Files that were replaced stay for
    `keep_replaced` seconds, for whoever reads them. May be done by anyone at any time.

    Raises:
        OSError: the store failed. All states are in it as before.
    """
    with translated():
        delta = checkpoints.open(change_set)
        if delta is None:
            return None
        try:
            done = _tidied(delta, start)
        except CommitFailedError:  # a checkpoint came in between; the next one asks again
            return None
        if done:
            clean(delta, keep_replaced)
        return done


def _tidied(delta: DeltaTable, start: int) -> str | None:
    files = pa.table(delta.get_add_actions(flatten=True))
    old = files.filter(pc.less_equal(files["max.commit"], start))["num_records"].to_pylist()
    if old and sum(old) - max(old) > max(old) + _NEW_ROWS:
        drop_superseded(delta, start)
        return "superseded rows dropped"
    if len(files) > MOST_FILES:
        delta.optimize.compact(target_size=_MERGED)
        return "small files merged"
    return None


def drop_superseded(delta: DeltaTable, start: int) -> None:
    """Leave of the rows up to commit `start` those that count as of `start`, in one file.

    Raises:
        CommitFailedError: somebody else wrote at the same time.
    """
    rows = latest(delta.to_pyarrow_table(filters=[("commit", "<=", start)]))
    known = delta.transaction_version(APP_ID)
    write_deltalake(
        delta,
        rows.filter(pc.invert(rows["removed"])),
        mode="overwrite",
        predicate=f"commit <= {start}",
        target_file_size=_ONE_FILE,
        # The one there is: no checkpoint is claimed, but one that comes in between is noticed.
        commit_properties=CommitProperties(
            app_transactions=[Transaction(app_id=APP_ID, version=known or 0)]
        ),
    )


def latest(rows: pa.Table) -> pa.Table:
    """The row of the greatest commit for each kind and id, in the order they were in."""
    order = pc.sort_indices(rows["commit"]).to_numpy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    keyed = pa.table({"kind": rows["kind"], "id": rows["id"], "place": place})
    newest = keyed.group_by(["kind", "id"]).aggregate([("place", "max")])["place_max"]
    counts = np.zeros(len(order), dtype=bool)
    counts[order[newest.to_numpy()]] = True
    return rows.filter(pa.array(counts))


def clean(delta: DeltaTable, keep_replaced: float) -> list[str]:
    """Delete the files that no version refers to, once old enough; their names.

    Those of writers that were killed are among them.
    """
    hours = math.ceil(keep_replaced / 3600)
    gone = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    if gone:
        delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    delta.cleanup_metadata()
    return gone
