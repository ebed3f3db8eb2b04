"""Files in the store beside the tables that may be orphans: batches, results, unfinished files."""

from collections.abc import Iterable
from typing import NamedTuple

from pyarrow.fs import FileType

from rebaser_server.files.paths import RESULTS, key_of
from rebaser_server.files.shared_files import TEMP_DIR, SharedFiles


class OrphanFile(NamedTuple):
    """A file or directory that may have no owner."""

    path: str
    """Relative to the root."""
    key: str | None
    """The key that references to it have; None if nothing ever refers to it."""
    time: float
    """When it was written, in seconds since 1970; of a directory, its newest file."""
    is_directory: bool = False


class OrphanFiles:
    """Lists and removes orphans. All calls block; run them in a thread."""

    def __init__(self, files: SharedFiles) -> None:
        self._files = files

    def older_than(self, before: float) -> list[OrphanFile]:
        """The files written before that time, in seconds since 1970."""
        orphans = [*self._files_in(TEMP_DIR), *self._files_in(RESULTS)]
        return [leftover for leftover in orphans if leftover.time < before]

    def _files_in(self, directory: str) -> Iterable[OrphanFile]:
        for info in self._files.list_infos(directory):
            path, name = f"{directory}/{info.base_name}", info.base_name
            key = None if directory == TEMP_DIR else key_of(name)
            if info.type is FileType.Directory:
                inside = [inner.mtime_ns for inner in self._files.list_infos(path)]
                newest = max((time for time in inside if time), default=info.mtime_ns or 0)
                yield OrphanFile(path, key, newest / 1e9, is_directory=True)
            else:
                yield OrphanFile(path, key, (info.mtime_ns or 0) / 1e9)

    def remove(self, orphans: Iterable[OrphanFile]) -> None:
        """Delete them; a missing one is no error."""
        for leftover in orphans:
            if leftover.is_directory:
                self._files.delete_directory(leftover.path)
            else:
                self._files.delete(leftover.path)
