"""Whole files under a root that Rebasers and Spark's workers share, on disk or an object store."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import NativeFile
from pyarrow.fs import FileInfo, FileSelector, FileType, LocalFileSystem

from rebaser_server.files.durability import forget_directories, sync_file, sync_names
from rebaser_server.files.filesystems import local_path, open_filesystem

TEMP_DIR: Final = "unfinished"
"""The directory of unfinished files, of live writers and of dead ones."""


class SharedFiles:
    """Bytes by path, relative to the root and with `/` between names. All calls block.

    The caller checks a path that it makes of a client's data. Can be pickled for another
    process.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        """`options` are the object store's, as Delta has them."""
        # Another process may have another working directory.
        self.root: Final = str(local_path(root) or root)
        self._options = dict(options or {})
        self._files, self._root = open_filesystem(self.root, self._options)

    def __reduce__(self) -> tuple[type["SharedFiles"], tuple[str, dict[str, str]]]:
        return SharedFiles, (self.root, self._options)

    def put(
        self, path: str, payload: bytes | Callable[[NativeFile], None], *, durable: bool = True
    ) -> None:
        """Store the bytes, or those that `payload` writes, whole or not at all. Replaces a file.

        Afterwards they outlast a power cut (S-7). Not `durable`: they may not, and are stored
        faster; for what nothing relies on.
        """
        target = self._root / path
        # An object store shows an object only when it is complete, and renames by copying;
        # a file system needs the rename, from a file that no other writer has.
        if not isinstance(self._files, LocalFileSystem):
            self._write(target, payload)
            return
        temporary = self._root / TEMP_DIR / uuid4().hex
        for directory in (target.parent, temporary.parent):
            self._files.create_dir(str(directory), recursive=True)
        self._write(temporary, payload)
        if durable:
            sync_file(Path(temporary))
        self._files.move(str(temporary), str(target))
        if durable:
            sync_names([Path(target)])

    def put_if_absent(self, path: str, payload: bytes) -> None:
        """Store the bytes as `put` does, unless the file is there: of several writers one wins.

        On an object store, and a file system without hard links, two that write at the same
        moment may both, and the later one wins.
        """
        target = self._root / path
        if not isinstance(self._files, LocalFileSystem):
            if self._files.get_file_info(str(target)).type is FileType.NotFound:
                self._write(target, payload)
            return
        own = f"{TEMP_DIR}/{uuid4().hex}"
        self.put(own, payload)
        self._files.create_dir(str(target.parent), recursive=True)
        try:
            Path(target).hardlink_to(Path(self._root / own))
            sync_names([Path(target)])
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not Path(target).exists():
                self.put(path, payload)
        finally:
            self.delete(own)

    def sync(self, paths: Collection[str]) -> None:
        """Have files outlast a power cut that another library wrote here.

        An object store keeps what it has confirmed: there nothing is done.

        Raises:
            OSError: they may not outlast it; `FileNotFoundError` if one is missing.
        """
        if not isinstance(self._files, LocalFileSystem):
            return
        targets = [Path(self._root / path) for path in paths]
        for target in targets:
            sync_file(target)
        sync_names(targets)

    def sizes(self, directory: str, names: Collection[str]) -> dict[str, int]:
        """Octets of those files that are there, by name; with an object store one request."""
        if isinstance(self._files, LocalFileSystem):
            paths = [str(self._root / directory / name) for name in names]
            infos = self._files.get_file_info(paths)
        else:
            infos = self.list_infos(directory)
        wanted = set(names)
        return {
            info.base_name: info.size
            for info in infos
            if info.base_name in wanted and info.type is FileType.File
        }

    def get(self, path: str) -> pa.Buffer:
        """The bytes; of a local file, mapped and not read. Raises `FileNotFoundError`."""
        target = str(self._root / path)
        if isinstance(self._files, LocalFileSystem):
            with pa.memory_map(target) as mapped:
                return mapped.read_buffer()
        with self._files.open_input_file(target) as file:
            return file.read_buffer()

    def open(self, path: str) -> NativeFile:
        """Open the file, to read some of it. Raises `FileNotFoundError`."""
        return self._files.open_input_file(str(self._root / path))

    def rename(self, path: str, new_path: str) -> None:
        """Give the file another name, which outlasts a power cut. Replaces a file."""
        self._files.move(str(self._root / path), str(self._root / new_path))
        self.sync([new_path])

    def has(self, path: str) -> bool:
        """Whether there is a file or a directory; an object store has no empty ones."""
        info = self._files.get_file_info(str(self._root / path))
        return info.type is not FileType.NotFound

    def list_names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty for a missing directory."""
        selector = FileSelector(str(self._root / directory), allow_not_found=True)
        return sorted(info.base_name for info in self._files.get_file_info(selector))

    def list_infos(self, directory: str) -> list[FileInfo]:
        """Names, kinds and times of the files in a directory; empty for a missing directory."""
        selector = FileSelector(str(self._root / directory), allow_not_found=True)
        return list(self._files.get_file_info(selector))

    def delete(self, path: str) -> None:
        """Delete the file; a missing one is no error."""
        if self.has(path):
            self._files.delete_file(str(self._root / path))

    def delete_directory(self, directory: str) -> None:
        """Delete the directory with all that is in it; a missing one is no error."""
        if self.has(directory):
            self._files.delete_dir(str(self._root / directory))
            forget_directories()

    def _write(self, target: PurePosixPath, payload: bytes | Callable[[NativeFile], None]) -> None:
        with self._files.open_output_stream(str(target)) as file:
            if callable(payload):
                payload(file)
            else:
                file.write(payload)
