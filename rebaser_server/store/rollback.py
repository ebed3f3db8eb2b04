"""Rollback of a damaged table to a sound version from which the log continues."""

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import APP_ID


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
    ends at `last`, continues. Nothing is deleted: later versions are set aside. A table with a
    checkpoint behind the log's end is not emptied: that log may be of a NATS made anew.

    Raises:
        OSError: the store failed.
    """
    ahead = False
    with translate_store_errors():
        for delta in checkpoints.sound_versions(change_set):
            commit = delta.transaction_version(APP_ID) or 0
            ahead |= commit > last
            if max(earliest, ahead) <= commit <= last:
                if not dry_run:
                    checkpoints.set_aside(change_set, delta.version())
                return delta.version()
    return None
