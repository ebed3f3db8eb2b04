"""Copies, on this machine's disk, of files in an object store, for a program that reads no other.

Spark in the daemon reads and writes a folder which has the store's paths. What it reads is fetched
before; what it has written is uploaded after, and is then a copy like those that were fetched.
Files of the store that are copied never change. Copies that are not in use are kept for the next
reader, up to a limit.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final

from pyarrow import NativeFile

from rebaser_server.files import SharedFiles

_KEPT_BYTES: Final = 1 << 30
"""Bytes of copies that are kept although nothing uses them."""
_AT_ONCE: Final = 8
"""Files that are fetched, or uploaded, at a time."""
_CHUNK: Final = 4 << 20
"""Bytes that are moved at a time."""


class Abandoned(OSError):
    """End of the moving of a file that is not wanted any more."""


class _Copy:
    """A copy of one file, or the place for it."""

    def __init__(self) -> None:
        self.fetching = Lock()
        """Held by the reader that fetches it."""
        self.users = 0
        self.size: int | None = None
        """Size in bytes; None: it is not there."""


class Held:
    """Files that a reader needs; until `release`, their copies stay once they are there."""

    def __init__(self, copies: "LocalCopies", paths: Collection[str]) -> None:
        self._copies = copies
        self._paths = paths
        self.is_stopped = False

    def fetch(self) -> None:
        """Fetch what is not there. Blocks; raises `OSError`, and `Abandoned` after `stop`.

        `FileNotFoundError`: the store does not have a file.
        """
        _for_each(partial(self._copies.fetch, self), self._paths)

    def stop(self) -> None:
        self.is_stopped = True

    def release(self) -> None:
        self._copies.release(self._paths)


class LocalCopies:
    """A folder of copies, of this process alone. Its methods may be called from any thread."""

    def __init__(self, store: SharedFiles, folder: Path, keep: int = _KEPT_BYTES) -> None:
        """Keep copies of files of `store` in `folder`; of those without a user, `keep` bytes."""
        self.files: Final = SharedFiles(str(folder))
        """Files in the folder, by the paths that they have in the store."""
        self.moved = 0
        """Bytes moved so far."""
        self._store = store
        self._keep = keep
        self._lock = Lock()
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        """Copies by path, the one used last behind all others."""
        self._abandoned: dict[str, bool] = {}
        """Directory that is being uploaded → whether it was removed meanwhile."""

    def hold(self, paths: Collection[str]) -> Held:
        """Return a hold of these files, for which a caller calls `release` in any case."""
        with self._lock:
            for path in paths:
                self._copies.setdefault(path, _Copy()).users += 1
                self._copies.move_to_end(path)
        return Held(self, paths)

    def fetch(self, held: Held, path: str) -> None:
        copy = self._copies[path]
        with copy.fetching:
            if copy.size is not None:
                return
            self._move(self._store, path, self.files, path, lambda: held.is_stopped)
            copy.size = self._size(path)

    def release(self, paths: Collection[str]) -> None:
        with self._lock:
            for path in paths:
                if (copy := self._copies.get(path)) is not None:
                    copy.users -= 1
                    if not copy.users and copy.size is None:
                        del self._copies[path]
        self._shrink()

    def upload(self, directory: str, target: str, names: Collection[str]) -> None:
        """Bring files from a directory of the folder to one of the store; they are copies then.

        Those that are copies already stay, and other files of the directory are removed. Blocks.
        Raises `OSError`, and `Abandoned` once the directory is removed; what was brought until then
        stays.
        """
        new = [name for name in names if f"{directory}/{name}" not in self._copies]
        self._abandoned[directory] = False
        try:
            _for_each(partial(self._upload, directory, target), new)
        finally:
            del self._abandoned[directory]
        for info in self.files.list_infos(directory):
            if info.is_file and info.base_name not in names:
                self.files.delete(f"{directory}/{info.base_name}")
        self._shrink()

    def _upload(self, directory: str, target: str, name: str) -> None:
        source, path = f"{directory}/{name}", f"{target}/{name}"
        self._move(self.files, source, self._store, path, lambda: self._abandoned[directory])
        if source != path:
            self.files.rename(source, path)
        copy = _Copy()
        copy.size = self._size(path)
        with self._lock:
            self._copies[path] = copy

    def _size(self, path: str) -> int:
        directory, _, name = path.rpartition("/")
        return self.files.sizes(directory, [name])[name]

    def remove(self, directory: str) -> None:
        """Remove what is in a directory of the folder; what is uploaded from it ends."""
        for each in [each for each in list(self._abandoned) if _is_within(each, directory)]:
            self._abandoned[each] = True
        with self._lock:
            for path in [path for path in self._copies if _is_within(path, directory)]:
                del self._copies[path]
        self.files.delete_directory(directory)

    def _shrink(self) -> None:
        """Remove the copies that were used longest ago, until the others are within the limit."""
        with self._lock:
            unused = [
                (path, copy)
                for path, copy in self._copies.items()
                if not copy.users and copy.size is not None
            ]
            excess = sum(copy.size or 0 for _, copy in unused) - self._keep
            gone = []
            for path, copy in unused:
                if excess <= 0:
                    break
                excess -= copy.size or 0
                gone.append(path)
                del self._copies[path]
            for path in gone:  # under the lock: no reader fetches it before it is gone
                self.files.delete(path)
                for directory in list(PurePosixPath(path).parents)[:-1]:
                    self.files.delete_empty(str(directory))

    def _move(
        self,
        of: SharedFiles,
        path: str,
        to: SharedFiles,
        new_path: str,
        is_abandoned: Callable[[], bool],
    ) -> None:
        def write(sink: NativeFile) -> None:
            with of.open(path) as source:
                while chunk := source.read(_CHUNK):
                    if is_abandoned():
                        raise Abandoned(f"{path} is not wanted any more")
                    sink.write(chunk)
                    self.moved += len(chunk)

        to.put(new_path, write, durable=False)


def _for_each(work: Callable[[str], None], items: Collection[str]) -> None:
    """Do the work for each, some at a time; raise the first error once no work goes on."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        pending = [threads.submit(work, each) for each in items]
        try:
            for each in pending:
                each.result()
        finally:
            threads.shutdown(cancel_futures=True)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
