"""The sound versions of a damaged table, and its repair by turning back to the last of them.

What is lost by that lies in the commit log, which is purged only behind the checkpoint before
the last.
"""

from collections.abc import Callable, Iterator
from typing import Final

from deltalake import DeltaTable

from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import DataFile, TableFiles, data_files

OpenVersion = Callable[[int], DeltaTable]

_MAX_VERSIONS: Final = 200
"""Versions to try, from the latest back."""

_MAX_TRIES: Final = 3
"""Attempts at a repair; each gives way to another process that writes to the table."""


def is_damage(error: StoreFailed, files: TableFiles, delta: DeltaTable | None) -> bool:
    """Whether what was raised when a table was opened, or then read, will be raised again.

    Of a damaged page, Arrow says what its decoder says. So the files are looked through.

    Raises:
        OSError: the store cannot be read now.
    """
    if isinstance(error, StoreDamaged):
        return True
    if delta is not None:
        try:
            files.require_files(delta)
        except StoreDamaged:
            return True
    return False


def sound_versions(files: TableFiles, open_version: OpenVersion) -> Iterator[DeltaTable]:
    """The versions that can be read whole, the latest first. Reads each data file once.

    Raises:
        OSError: the store cannot be read now.
    """
    table_log = files.log()
    sound: dict[DataFile, bool] = {}

    def is_sound(file: DataFile) -> bool:
        if file not in sound:
            try:
                files.require_file(file)
            except StoreDamaged:
                sound[file] = False
            else:
                sound[file] = True
        return sound[file]

    for version in sorted(table_log.entries, reverse=True)[:_MAX_VERSIONS]:
        if not table_log.is_whole(version):
            continue
        try:
            with translate_store_errors():
                delta = open_version(version)
                added = data_files(delta)
        except StoreDamaged:
            continue
        if all(map(is_sound, added)):
            yield delta


def repair(files: TableFiles, open_version: OpenVersion) -> int | None:
    """Turn the table back to its last sound version; return that, or None if there is none.

    Nothing is deleted: entries of the log get another name. Without a sound version, that is
    all of them, and there is no table any more. A writer that stops for long in the middle,
    while another one repairs and writes, may turn that back, too; a checkpoint that is missing
    then is noticed by the next one.

    Raises:
        OSError: the store failed.
    """
    for _ in range(_MAX_TRIES):
        files.set_aside_sums()
        before = files.log()
        sound = next(sound_versions(files, open_version), None)
        version = None if sound is None else sound.version()
        if files.log() == before:
            files.set_aside_entries(-1 if version is None else version)
            return version
    raise StoreDamaged("another process writes to the table while it is repaired")
