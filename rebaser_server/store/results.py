"""Large results that Rebasers leave for one another: files under the store's root."""

from pathlib import PurePosixPath
from uuid import uuid4

from pyarrow.fs import FileSystem, FileType, LocalFileSystem


class Results:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            self._files, path = FileSystem.from_uri(root)
        else:
            self._files, path = LocalFileSystem(), root
        self._results = PurePosixPath(path) / "results"
        self._unfinished = PurePosixPath(path) / "unfinished"

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; the same key again replaces them."""
        path = self._path(key)
        self._files.create_dir(str(self._results), recursive=True)
        # An object store shows an object only when it is complete, and renames by copying;
        # a file system needs the rename, from a file that nobody else writes at the same time.
        if not isinstance(self._files, LocalFileSystem):
            self._write(path, payload)
            return
        self._files.create_dir(str(self._unfinished))
        unfinished = str(self._unfinished / uuid4().hex)
        self._write(unfinished, payload)
        self._files.move(unfinished, path)

    def get(self, key: str) -> bytes:
        """Raises `FileNotFoundError`."""
        with self._files.open_input_stream(self._path(key)) as file:
            return bytes(file.read())

    def delete(self, key: str) -> None:
        """Have it gone; that it is gone already is success."""
        path = self._path(key)
        if self._files.get_file_info(path).type is not FileType.NotFound:
            self._files.delete_file(path)

    def _path(self, key: str) -> str:
        """Never outside of the directory: keys come from clients, and `..` looks like one."""
        if "/" in key:
            raise ValueError(f"{key!r} is no key")
        return str(self._results / f"{key}.batch")

    def _write(self, path: str, payload: bytes) -> None:
        with self._files.open_output_stream(path) as file:
            file.write(payload)
