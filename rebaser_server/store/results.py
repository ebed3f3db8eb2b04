"""Large results that Rebasers leave for one another: files under the store's root."""

from pathlib import PurePosixPath

from pyarrow.fs import FileSystem, FileType, LocalFileSystem


class Results:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            self._files, path = FileSystem.from_uri(root)
        else:
            self._files, path = LocalFileSystem(), root
        self._root = PurePosixPath(path) / "results"

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; the same key again replaces them."""
        self._files.create_dir(str(self._root), recursive=True)
        # An object store shows an object only when it is complete, and renames by copying;
        # a file system needs the rename.
        path = str(self._root / key)
        unfinished = f"{path}.unfinished" if isinstance(self._files, LocalFileSystem) else path
        with self._files.open_output_stream(unfinished) as file:
            file.write(payload)
        if unfinished != path:
            self._files.move(unfinished, path)

    def get(self, key: str) -> bytes:
        """Raises `FileNotFoundError`."""
        with self._files.open_input_stream(str(self._root / key)) as file:
            return bytes(file.read())

    def delete(self, key: str) -> None:
        """Have it gone; that it is gone already is success."""
        path = str(self._root / key)
        if self._files.get_file_info(path).type is not FileType.NotFound:
            self._files.delete_file(path)
