"""Vacuum of a change set's table: the removal of files that no version uses."""

import math
from typing import Final

from deltalake import DeltaTable, PostCommitHookProperties

KEEP_ENTRIES: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""Delta deletes no entry of its log when it sums them up in a file that is not on the disk yet."""


def vacuum(delta: DeltaTable, replaced_retention: float) -> list[str]:
    """Delete files that no version refers to and that are old enough; return their names.

    Those of writers that were killed are among them.
    """
    hours = math.ceil(replaced_retention / 3600)
    deleted = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    if deleted:
        delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    delta.cleanup_metadata()
    return deleted
