"""Rollback of a damaged table to its last sound version, from which the log continues."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import APP_ID, KEEP_ENTRIES, Checkpoints
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_schema import checkpoint_record

_MAX_VERSIONS: Final = 200
"""Versions to try, from the latest back."""


def roll_back_to_sound(
    checkpoints: Checkpoints,
    change_set: ChangeSet,
    earliest: int,
    last: int,
    *,
    dry_run: bool = False,
) -> int | None:
    """Roll the table back; return the version, or None if none is sound.

    Sound is one that can be read and is of a commit that the log, which `begins` there and
    ends at `last`, continues. Turning back is a new version: nothing is deleted. A table with a
    checkpoint behind the log's end is not emptied: that log may be of a NATS made anew.

    Raises:
        OSError: the store failed.
    """
    ahead = False
    with translate_store_errors():
        for version in _versions(checkpoints, change_set):
            commit = _commit_of(checkpoints, change_set, version)
            ahead |= commit is not None and commit > last
            if commit is not None and max(earliest, ahead) <= commit <= last:
                if not dry_run:
                    # Or what was written for later commits of another past would go on to count.
                    commit_properties = CommitProperties(
                        app_transactions=[Transaction(APP_ID, commit)]
                    )
                    checkpoints.table(change_set).restore(
                        version,
                        commit_properties=commit_properties,
                        post_commithook_properties=KEEP_ENTRIES,
                    )
                    checkpoints.secure(change_set, checkpoints.table(change_set))
                return version
    return None


def _versions(checkpoints: Checkpoints, change_set: ChangeSet) -> range:
    table = checkpoints.open(change_set)
    last = -1 if table is None else table.version()
    return range(last, max(-1, last - _MAX_VERSIONS), -1)


def _commit_of(checkpoints: Checkpoints, change_set: ChangeSet, version: int) -> int | None:
    """The commit of the version's last checkpoint, 0 without one; None if it is damaged."""
    try:
        rows = checkpoints.table(change_set, version).to_pyarrow_table()
    except (OSError, DeltaError, pa.ArrowInvalid):
        return None
    if not pc.any(pc.equal(rows["kind"], "head")).as_py():
        return 0
    return checkpoint_record(rows)[0]
