"""The sound versions of a damaged table, and its repair by turning back to the last of them.

What is lost by that lies in the commit log, which is purged only behind the checkpoint before
the last.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from deltalake import DeltaTable

from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.row_digest import NO_ROWS
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import (
    DataFile,
    FileContent,
    TableFiles,
    TableLog,
    data_files,
    require_content,
    require_last,
)

OpenVersion = Callable[[int], DeltaTable]

_MAX_VERSIONS: Final = 200
"""Versions to try, from the latest back."""

_MAX_TRIES: Final = 3
"""Attempts at a repair; each gives way to another process that writes to the table."""


def require_sound(files: TableFiles, delta: DeltaTable) -> None:
    """Require that a version of a table has the rows that were written. Reads all of it.

    Raises:
        StoreDamaged: it has not.
        OSError: the store cannot be read now.
    """
    _require_sound(delta, [files.read(file) for file in data_files(delta)])


def _require_sound(delta: DeltaTable, contents: Sequence[FileContent]) -> None:
    digest, heads = NO_ROWS, []
    for content in contents:
        digest = digest.plus(content.digest)
        heads += content.heads
    require_last(delta, heads)
    require_content(delta, digest, heads)


def sound_versions(files: TableFiles, open_version: OpenVersion) -> Iterator[DeltaTable]:
    """The versions that can be read whole, and have the rows that were written, the latest first.

    Reads each data file once. A sum of the log of which no later version is sound may be what is
    damaged: if the entries are there that it sums up, it is set aside. So is a hint at a sum
    that is gone.

    Raises:
        OSError: the store cannot be read now.
    """
    inspection = _Inspection(files, open_version)
    table_log, is_any_sound = files.log(), False
    files.set_aside_hint(table_log)
    versions = deque(sorted(table_log.entries, reverse=True)[:_MAX_VERSIONS])
    while versions:
        version = versions.popleft()
        suspect = max((each for each in table_log.sums if each > version), default=None)
        if suspect is not None and not is_any_sound and table_log.repeats(suspect):
            files.set_aside_sum(suspect)
            table_log = files.log()
            versions = deque(sorted(table_log.entries, reverse=True)[:_MAX_VERSIONS])
        elif (delta := inspection.sound(version, table_log)) is not None:
            is_any_sound = True
            yield delta


class _Inspection:
    """Looks at versions of one table, and reads no file twice."""

    def __init__(self, files: TableFiles, open_version: OpenVersion) -> None:
        self._files = files
        self._open_version = open_version
        self._contents: dict[DataFile, FileContent | None] = {}
        self._ours: dict[int, bool] = {}

    def sound(self, version: int, table_log: TableLog) -> DeltaTable | None:
        """The version of the table, if it is sound."""
        if not table_log.is_whole(version):
            return None
        try:
            with translate_store_errors():
                entries = range(table_log.summed_up(version) + 1, version + 1)
                if not all(map(self._is_ours, entries)):
                    return None
                delta = self._open_version(version)
                _require_sound(delta, [self._content(file) for file in data_files(delta)])
        except StoreDamaged:
            return None
        return delta

    def _is_ours(self, version: int) -> bool:
        if version not in self._ours:
            self._ours[version] = not self._files.foreign_change(version, version)
        return self._ours[version]

    def _content(self, file: DataFile) -> FileContent:
        if file not in self._contents:
            self._contents[file] = None
            self._contents[file] = self._files.read(file)
        content = self._contents[file]
        if content is None:
            raise StoreDamaged(file.name)
        return content


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
