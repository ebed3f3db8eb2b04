"""Whole files under a root that Rebasers and Spark's workers share, on disk or an object store.

A local file or directory outlasts a power cut once it was synced, and not before. The file
system of a store's root is opened with the options that Delta takes. `StoreFiles` is what the core
needs of them, which `rebaser_server.nats_files` has, too.

Local files take nothing but Python. Object stores, and what values and tables read and write in
parts, take Arrow: `arrow_files` is imported where it is needed first.

The paths of everything in the store, relative to its root:

| path | content |
|---|---|
| `change_sets/<workspace>/<change set>` | the checkpoints of a change set, one Delta table |
| `deployment.json` | the id of the deployment that the store belongs to |
| `stream_ends.json` | the ends of NATS's streams when they were last looked at |
| `losses/<stream>-<end>-<end>.json` | messages that NATS lost, until a person has read of it |
| `impure/<workspace>/<digest>.json` | two results of one call of a function, see `compute/memo` |
| `memo/<workspace>/<ULID>` | results of functions, see `compute/memo` |
| `tables/<workspace>/<key>/` | a table that is a value, see `rebaser_server/tables` |
| `results/<key>.batch` | a batch of updates |
| `results/<run>/` | files of the runs of one dependent values update, see `RunStore` |
| `results/<run>/<key>.batch` | the batch that names the results beside it |

Batches, results and unfinished files may lose their owners: `OrphanFiles` finds these.
"""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname
from uuid import uuid4

from rebaser_core.errors import MalformedId, RebaserError
from rebaser_core.ids import ChangeSet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

    from rebaser_server.arrow_files import ArrowFiles

_REMEMBERED: Final = 10_000
"""Number of remembered directories; a forgotten one is synced anew, which costs a few
milliseconds."""


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def _sync_file(path: Path) -> None:
    """Return once the bytes of the file, from any process, are on the disk; not yet its name.

    The bytes of a directory are the names in it.

    Raises:
        OSError: the bytes may not be on the disk; `FileNotFoundError` if there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_names(paths: Iterable[Path]) -> None:
    """Return once the names of these files are on the disk, and of all directories above them.

    Any directory may have been made a moment ago, also by a process that has not synced it. So
    the name of each is synced once by each process, and again after
    `forget_directories`.

    Raises:
        OSError: a name may not be on the disk.
    """
    for directory in {path.parent for path in paths}:
        _sync_file(directory)
        _sync_name_of(directory)


def forget_directories() -> None:
    """Forget which directories are synced: some may be made anew."""
    _sync_name_of.cache_clear()


@lru_cache(_REMEMBERED)
def _sync_name_of(directory: Path) -> None:
    above = directory.parent
    if above != directory and os.access(above, os.R_OK):  # else this process cannot have made it
        _sync_file(above)
        _sync_name_of(above)


AWAY: Final = re.compile(
    r"generic \w+ error|\bos error \d|lacked (the necessary privileges|valid authentication)"
    r"|error joining spawned task|error sending request|operation timed out"
    r"|\b(aws|google|azure)\w* error|can't spawn|resources exhausted",
    re.IGNORECASE,
)
"""Texts of errors of the clients of stores: `object_store`, which Delta uses, and Arrow's. And
those of a machine that lacks threads or memory."""

IN_NATS: Final = "nats:"
"""Root of a store whose files are in NATS."""
_IS_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\[\\\]^|]")
"""Characters of a path that Delta's client for local files misreads."""


def local_path(root: str) -> Path | None:
    """The path of a root on this machine; None for an object store's URI."""
    if not _IS_URI.match(root):
        return Path(root).absolute()
    return Path(url2pathname(urlsplit(root).path)) if root.startswith("file://") else None


def delta_root(root: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the root for Delta, which takes it for a URI, and the options to open tables below it.

    A path that Delta misreads becomes an option of another of its clients. That client, too,
    creates an entry of a table's log once, but writes it in place: a process that dies meanwhile
    leaves an empty entry, as a power cut does.
    """
    local = local_path(root)
    if local is None:
        return root.rstrip("/"), dict(options)
    real = os.path.realpath(local)
    if _NOT_FOR_DELTA.search(real):
        return "fs://", {**options, "opendal.root": real}
    return str(local), dict(options)


def is_of_store(error: BaseException) -> bool:
    """Whether an error is of the store or of want of memory, and not of a file that is not sound.

    Arrow raises `OSError` for both: for a local file with the number of an error.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
        return True
    return AWAY.search(str(error)) is not None


class PackageMissing(RebaserError):
    """A package is not installed that the settings take; the message names its extra."""


class StoreInNats(RebaserError):
    """Values and tables were to be kept, or read, in a store that is in NATS."""


_NOT_IN_NATS: Final = (
    "values and tables cannot be kept in NATS, since Delta needs a folder or an object store: set "
    "REBASER_STORE__ROOT to one; `nats:` is for services"
)

TEMP_DIR: Final = "unfinished"
"""The directory of unfinished files, of live writers and of dead ones."""


class FileInfo(NamedTuple):
    path: str
    """Path relative to the root."""
    size: int | None
    """Bytes; None for a directory."""
    mtime_ns: int | None
    """Time of the last change, in nanoseconds since 1970; None where a store has none."""
    is_directory: bool = False

    @property
    def base_name(self) -> str:
        return self.path.rpartition("/")[2]


class StoreFiles(Protocol):
    """Whole files by path, relative to a root and with `/` between names. All calls block.

    Their errors are `OSError`s; `FileNotFoundError` stands for a missing file alone.
    """

    @property
    def root(self) -> str:
        """Location of the store."""

    def put(self, path: str, payload: bytes, *, durable: bool = True) -> None:
        """Store the bytes, whole or not at all; see `SharedFiles.put`."""

    def put_if_absent(self, path: str, payload: bytes) -> None:
        """Store the bytes unless the file exists: of several writers one wins."""

    def get(self, path: str) -> bytes:
        """Return the bytes. Raises `FileNotFoundError`."""

    def has(self, path: str) -> bool:
        """Whether there is a file or a directory."""

    def list_names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty for a missing directory."""

    def list_infos(self, directory: str) -> list[FileInfo]:
        """Files and directories in a directory; empty for a missing directory."""

    def delete(self, path: str) -> None:
        """Delete the file; a missing one is no error."""

    def delete_directory(self, directory: str) -> None:
        """Delete the directory with its content; a missing one is no error."""


class SharedFiles:
    """Bytes by path, relative to the root and with `/` between names. All calls block.

    A caller checks a path that it makes from a client's data. The object can be pickled for another
    process.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        """Open the root; `options` are the object store's, as Delta has them.

        Raises:
            ValueError: the root's kind has no file system.
            PackageMissing: it is an object store, and nothing here reaches one.
            StoreInNats: it is no file system.
        """
        if root == IN_NATS:
            raise StoreInNats(_NOT_IN_NATS)
        self._local = local_path(root)
        # Another process may have another working directory.
        self.root: Final = str(self._local or root)
        self._options = dict(options or {})
        if self._local is None:
            _ = self._arrow

    def __reduce__(self) -> tuple[type["SharedFiles"], tuple[str, dict[str, str]]]:
        return SharedFiles, (self.root, self._options)

    def put(
        self, path: str, payload: "bytes | Callable[[NativeFile], None]", *, durable: bool = True
    ) -> None:
        """Store the bytes, or those that `payload` writes, whole or not at all. Replaces a file.

        Afterwards the bytes outlast a power cut (S-7). Without `durable` they may not, and are
        stored faster: for files that nothing relies on.
        """
        # An object store shows an object only when it is complete, and renames by copying;
        # a file system needs the rename, from a file that no other writer has.
        if self._local is None:
            self._write(path, payload)
            return
        own = f"{TEMP_DIR}/{uuid4().hex}"
        target, temporary = self._local / path, self._local / own
        for directory in (target.parent, temporary.parent):
            directory.mkdir(parents=True, exist_ok=True)
        self._write(own, payload)
        if durable:
            _sync_file(temporary)
        temporary.replace(target)
        if durable:
            _sync_names([target])

    def put_if_absent(self, path: str, payload: bytes) -> None:
        """Store the bytes as `put` does, unless the file exists: of several writers one wins.

        On a file system without hard links, two that write at one moment may both succeed, and the
        later one wins.
        """
        if self._local is None:
            self._arrow.put_once(path, payload)
            return
        own, target = f"{TEMP_DIR}/{uuid4().hex}", self._local / path
        self.put(own, payload)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(self._local / own)
            _sync_names([target])
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not target.exists():
                self.put(path, payload)
        finally:
            self.delete(own)

    def sync(self, paths: Collection[str]) -> None:
        """Make files that another library wrote here outlast a power cut.

        An object store keeps what it has confirmed: there nothing is done.

        Raises:
            OSError: the files may not outlast it; `FileNotFoundError` if one is missing.
        """
        if self._local is None:
            return
        targets = [self._local / path for path in paths]
        for target in targets:
            _sync_file(target)
        _sync_names(targets)

    def sizes(self, directory: str, names: Collection[str]) -> dict[str, int]:
        """Sizes in bytes of the existing ones, by name; one request to an object store."""
        if self._local is None:
            infos = self.list_infos(directory)
        else:
            infos = [*filter(None, (self._info(f"{directory}/{name}") for name in names))]
        wanted = set(names)
        return {
            info.base_name: info.size or 0
            for info in infos
            if info.base_name in wanted and not info.is_directory
        }

    def get(self, path: str) -> bytes:
        """Return the bytes; one request to an object store. Raises `FileNotFoundError`."""
        if self._local is None:
            return self._arrow.get(path)
        return (self._local / path).read_bytes()

    def get_buffer(self, path: str) -> "pa.Buffer":
        """Return the bytes; a local file is mapped, not read. Raises `FileNotFoundError`."""
        return self._arrow.read(path)

    def open(self, path: str) -> "NativeFile":
        """Open the file for reading parts of it. Raises `FileNotFoundError`."""
        return self._arrow.open(path)

    def below(self, directory: str) -> "FileSystem":
        """Return the directory as a file system of Arrow."""
        return self._arrow.below(directory)

    def rename(self, path: str, new_path: str) -> None:
        """Give the file another name, which outlasts a power cut. Replaces a file.

        An object store copies it and then deletes it: for a moment there are both.
        """
        if self._local is None:
            self._arrow.copy(path, new_path)
            self.delete(path)
            return
        (self._local / new_path).parent.mkdir(parents=True, exist_ok=True)
        (self._local / path).replace(self._local / new_path)
        self.sync([new_path])

    def has(self, path: str) -> bool:
        """Whether there is a file or a directory; an object store has no empty ones."""
        return self._info(path) is not None

    def list_names(self, directory: str) -> list[str]:
        return sorted(info.base_name for info in self.list_infos(directory))

    def list_infos(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """Names, kinds and times of the files in a directory; empty for a missing directory."""
        if self._local is None:
            listed = self._arrow.infos(directory, recursive=recursive)
            return [_info_of(self._arrow.relative(info), info) for info in listed]
        try:
            names = [each.name for each in (self._local / directory).iterdir()]
        except FileNotFoundError:
            return []
        paths = [f"{directory}/{name}" if directory else name for name in names]
        infos = [*filter(None, map(self._info, paths))]  # but those that were removed meanwhile
        if recursive:
            for info in [info for info in infos if info.is_directory]:
                infos += self.list_infos(info.path, recursive=True)
        return infos

    def delete(self, path: str) -> None:
        if self._local is None:
            self._arrow.delete([path])
        else:
            (self._local / path).unlink(missing_ok=True)

    def delete_directory(self, directory: str) -> None:
        if self._local is None:
            infos = self.list_infos(directory, recursive=True)
            self._arrow.delete([info.path for info in infos if not info.is_directory])
            return
        while self.has(directory):
            with suppress(FileNotFoundError):  # another process deletes it, too
                shutil.rmtree(self._local / directory)
            forget_directories()

    def delete_empty(self, directory: str) -> None:
        """Delete the directory if nothing is in it; an object store has no empty ones."""
        if self._local is not None:
            with suppress(OSError):
                (self._local / directory).rmdir()
                forget_directories()

    @property
    def is_local(self) -> bool:
        """Whether the root lies on a disk, and not in an object store."""
        return self._local is not None

    @cached_property
    def _arrow(self) -> "ArrowFiles":
        try:
            from rebaser_server.arrow_files import ArrowFiles  # noqa: PLC0415 - see the module
        except ModuleNotFoundError as error:
            raise PackageMissing(
                f"{error.name} is not installed, without which files cannot be kept in an object "
                "store: pip install 'rebaser[server]', or keep them in a folder or in NATS"
            ) from error
        return ArrowFiles(self.root, self._local, self._options)

    def _info(self, path: str) -> FileInfo | None:
        if self._local is None:
            info = self._arrow.info(path)
            return None if info.type.name == "NotFound" else _info_of(path, info)
        try:
            status = (self._local / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_directory = stat.S_ISDIR(status.st_mode)
        size = None if is_directory else status.st_size
        return FileInfo(path, size, status.st_mtime_ns, is_directory)

    def _write(self, path: str, payload: "bytes | Callable[[NativeFile], None]") -> None:
        # Arrow writes what is written in parts, and all objects.
        if self._local is not None and not callable(payload):
            file: Any = (self._local / path).open("wb")
        else:
            file = self._arrow.writing(path)
        try:
            with file:
                if callable(payload):
                    payload(file)
                else:
                    file.write(payload)
        except BaseException as error:
            # Closed, an object is complete with what it has so far.
            if self._local is not None or not is_of_store(error):
                with suppress(OSError):
                    self.delete(path)
            if isinstance(error, OSError) and error.errno in _NO_ROOM:  # Arrow does not say where
                where = f"{self.root}/{path}"
                raise OSError(error.errno, os.strerror(error.errno or 0), where) from error
            raise


def _info_of(path: str, info: Any) -> FileInfo:
    return FileInfo(path, info.size, info.mtime_ns, is_directory=not info.is_file)


def shared_files(files: StoreFiles) -> SharedFiles:
    """Return files that libraries can open by themselves, as Delta and Arrow do.

    Raises:
        StoreInNats: these are no such files.
    """
    if not isinstance(files, SharedFiles):
        raise StoreInNats(_NOT_IN_NATS)
    return files


_RESULTS: Final = "results"
CHANGE_SETS: Final = "change_sets"
MEMO: Final = "memo"
IMPURE: Final = "impure"
TABLES: Final = "tables"
DEPLOYMENT: Final = "deployment.json"
SEAL_KEY: Final = "seal-key"
"""Bytes that workers share, and no client has."""
STREAM_ENDS: Final = "stream_ends.json"
LOSSES: Final = "losses"
_BATCH: Final = ".batch"


def change_set_directory(change_set: ChangeSet) -> str:
    return f"{CHANGE_SETS}/{change_set.workspace_id}/{change_set.change_set_id}"


def change_sets_in(files: StoreFiles, workspace: str) -> list[ChangeSet]:
    """The change sets of a workspace that have checkpoints, the oldest first."""
    found = []
    for name in files.list_names(f"{CHANGE_SETS}/{workspace}"):
        with suppress(MalformedId):  # of another program
            found.append(ChangeSet.of(workspace, name))
    return found


def memo_directory(workspace: str) -> str:
    return f"{MEMO}/{workspace}"


def table_directory(workspace: str, key: str) -> str:
    """The directory of a table; never outside of its workspace's.

    Raises:
        ValueError: not the key of a table.
    """
    if not is_table_key(key):
        raise ValueError(f"{key!r} is not the key of a table")
    return f"{tables_directory(workspace)}/{key}"


def is_table_key(name: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", name) is not None


def tables_directory(workspace: str) -> str:
    return f"{TABLES}/{workspace}"


def impure_directory(workspace: str) -> str:
    return f"{IMPURE}/{workspace}"


def loss_file(name: str) -> str:
    return f"{LOSSES}/{name}.json"


def run_directory(run: str) -> str:
    return f"{_RESULTS}/{run}"


def batch_file(key: str) -> str:
    """The path of a batch; never outside of `_RESULTS`: clients send keys, and `..` looks like one.

    Raises:
        ValueError: not the key of a batch.
    """
    if run_of_key(key):
        return f"{_RESULTS}/{key.replace('.', '/')}{_BATCH}"
    if "/" in key:
        raise ValueError(f"{key!r} is not a key")
    return f"{_RESULTS}/{key}{_BATCH}"


def run_of_key(key: str) -> str | None:
    """The key of the run store in which a batch lies; None for a batch that names no results."""
    match = re.fullmatch(r"([0-9a-f]{64})\.[0-9a-f]{64}", key)
    return match[1] if match else None


def is_batch(name: str) -> bool:
    return name.endswith(_BATCH)


def key_of(name: str) -> str:
    """The key of a batch, or of a run store, by the name of its file or directory."""
    return name.removesuffix(_BATCH)


class BatchFiles:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, files: StoreFiles) -> None:
        self.files = files

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; an existing key is replaced."""
        self.files.put(batch_file(key), payload)

    def get(self, key: str) -> bytes:
        """Return the bytes. Raises `FileNotFoundError`."""
        return self.files.get(batch_file(key))

    def delete_run(self, run: str) -> None:
        """Delete the directory of a run with its content."""
        self.files.delete_directory(run_directory(run))


class OrphanFile(NamedTuple):
    """A file or directory that may have no owner."""

    path: str
    """Path relative to the root."""
    key: str | None
    """Key by which it is referred to; None if nothing ever refers to it."""
    time: float
    """Time at which it was written, in seconds since 1970; for a directory, its newest file's."""
    is_directory: bool = False


class OrphanFiles:
    """Lists and removes orphans. All calls block; run them in a thread."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def older_than(self, before: float) -> list[OrphanFile]:
        """The files written before that time, in seconds since 1970."""
        orphans = [*self._files_in(TEMP_DIR), *self._files_in(_RESULTS)]
        return [leftover for leftover in orphans if leftover.time < before]

    def payloads(self) -> Iterator[bytes]:
        directories = [_RESULTS]
        for directory in directories:
            for info in self._files.list_infos(directory):
                path = f"{directory}/{info.base_name}"
                if info.is_directory:
                    directories.append(path)
                    continue
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield self._files.get(path)

    def _files_in(self, directory: str) -> Iterable[OrphanFile]:
        for info in self._files.list_infos(directory):
            path, name = f"{directory}/{info.base_name}", info.base_name
            key = None if directory == TEMP_DIR else key_of(name)
            if info.is_directory:
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
