"""Whole files under a root that Rebasers and Spark's workers share, on disk or an object store."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import NativeFile
from pyarrow.fs import FileInfo, FileSelector, FileType, LocalFileSystem

from rebaser_server.files.filesystems import open_filesystem

TEMP_DIR: Final = "unfinished"
"""Where files are that somebody is writing, or was when it died."""


class SharedFiles:
    """Bytes by path, relative to the root and with `/` between names. All calls block.

    Paths are our own: whoever makes one of what others sent checks it first. May be
    pickled, to be used in another process.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        """`options` are the object store's, as Delta has them."""
        # Whoever is given it may have been started elsewhere.
        self.root: Final = root if "://" in root else str(Path(root).absolute())
        self._options = dict(options or {})
        self._files, self._root = open_filesystem(self.root, self._options)

    def __reduce__(self) -> tuple[type["SharedFiles"], tuple[str, dict[str, str]]]:
        return SharedFiles, (self.root, self._options)

    def put(self, path: str, payload: bytes | Callable[[NativeFile], None]) -> None:
        """Store the bytes, or those that it writes, whole or not at all; again replaces them."""
        target = self._root / path
        # An object store shows an object only when it is complete, and renames by copying;
        # a file system needs the rename, from a file that nobody else writes at the same time.
        if not isinstance(self._files, LocalFileSystem):
            self._write(target, payload)
            return
        temporary = self._root / TEMP_DIR / uuid4().hex
        for directory in (target.parent, temporary.parent):
            self._files.create_dir(str(directory), recursive=True)
        self._write(temporary, payload)
        self._files.move(str(temporary), str(target))

    def get(self, path: str) -> pa.Buffer:
        """The bytes; of a local file, mapped and not read. Raises `FileNotFoundError`."""
        target = str(self._root / path)
        if isinstance(self._files, LocalFileSystem):
            with pa.memory_map(target) as mapped:
                return mapped.read_buffer()
        with self._files.open_input_file(target) as file:
            return file.read_buffer()

    def list_names(self, directory: str) -> list[str]:
        """What lies in a directory, sorted; nothing if there is no such directory."""
        selector = FileSelector(str(self._root / directory), allow_not_found=True)
        return sorted(info.base_name for info in self._files.get_file_info(selector))

    def list_infos(self, directory: str) -> list[FileInfo]:
        """What lies in a directory: names, kinds and times; nothing if there is none."""
        selector = FileSelector(str(self._root / directory), allow_not_found=True)
        return list(self._files.get_file_info(selector))

    def delete(self, path: str) -> None:
        """Have the file gone; that it is gone already is success."""
        target = str(self._root / path)
        if self._files.get_file_info(target).type is not FileType.NotFound:
            self._files.delete_file(target)

    def delete_directory(self, directory: str) -> None:
        """Have the directory gone with all that is in it; that it is gone already is success."""
        target = str(self._root / directory)
        if self._files.get_file_info(target).type is not FileType.NotFound:
            self._files.delete_dir(target)

    def _write(self, target: PurePosixPath, payload: bytes | Callable[[NativeFile], None]) -> None:
        with self._files.open_output_stream(str(target)) as file:
            if callable(payload):
                payload(file)
            else:
                file.write(payload)
