"""Whole files under a root that Rebasers and Spark's workers share, on disk or an object store.

A local file or directory outlasts a power cut once it was synced, and not before. The file
system of a store's root is opened with the options that Delta takes.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname
from uuid import uuid4

import pyarrow as pa
from pyarrow import NativeFile
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    LocalFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)

from rebaser_core.errors import MalformedId
from rebaser_core.ids import ChangeSet

_LISTINGS: Final = 9
"""Attempts to list a directory that is made or removed meanwhile."""
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


_S3: Final = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "aws_default_region": "region",
    "aws_endpoint_url": "endpoint_override",
    "aws_endpoint": "endpoint_override",
}
"""Option of Delta's client for S3, in lower case and with its prefix → parameter of Arrow's."""


_HTTP: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
)
"""Options of Delta's client that are not the store's."""
AWAY: Final = re.compile(
    r"generic \w+ error|\bos error \d|lacked (the necessary privileges|valid authentication)"
    r"|error joining spawned task|error sending request|operation timed out"
    r"|\b(aws|google|azure)\w* error|can't spawn|resources exhausted",
    re.IGNORECASE,
)
"""Texts of errors of the clients of stores: `object_store`, which Delta uses, and Arrow's. And
those of a machine that lacks threads or memory."""

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


def _open_filesystem(root: str, options: Mapping[str, str]) -> tuple[FileSystem, PurePosixPath]:
    """The file system, and the root's path on it.

    The client of a store that is neither local nor S3, such as Google's and Azure's, reads the
    environment.

    Raises:
        ValueError: the root's kind has no file system.
    """
    local = local_path(root)
    if local is not None:
        return LocalFileSystem(), PurePosixPath(local)
    scheme, _, path = root.partition("://")
    if scheme not in ("s3", "s3a"):
        filesystem, place = FileSystem.from_uri(root)
        return filesystem, PurePosixPath(place)
    parameters = {_S3[name]: value for name, value in _named_for_s3(options).items()}
    # What is small is one request, and not three.
    return S3FileSystem(**parameters, allow_delayed_open=True), PurePosixPath(path)


def _named_for_s3(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that both clients of S3 know, by the names in `_S3`."""
    named = {}
    for name, value in options.items():
        lower = name.lower()
        named[lower if lower.startswith("aws_") else f"aws_{lower}"] = value
    return {name: value for name, value in named.items() if name in _S3}


def _open_objects(root: str, options: Mapping[str, str]) -> Any:
    """Open the object store by another client, that of Delta.

    Arrow's client puts no object once only, and leaves an empty object in place of a directory
    whose last file it deletes.
    """
    from obstore import store  # noqa: PLC0415 - for object stores alone

    client = {name: options[name] for name in options if name.lower().removeprefix("aws_") in _HTTP}
    if root.startswith(("s3://", "s3a://")):
        config = _named_for_s3(options)
        if config.get("aws_endpoint_url", config.get("aws_endpoint", "")).startswith("http://"):
            client["allow_http"] = "true"  # as for Arrow's
    else:
        config = {name: value for name, value in options.items() if name not in client}
    client = {name.lower().removeprefix("aws_"): value for name, value in client.items()}
    open_store: Any = store.from_url  # typed for options that are known
    return open_store(root, config=config, client_options=client)


@contextmanager
def _reaching_store() -> Iterator[None]:
    """Raise `OSError` in place of the errors of `_open_objects`' client."""
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415 - as above

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(error)) from error
    except BaseError as error:
        raise OSError(errno.EIO, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def is_of_store(error: BaseException) -> bool:
    """Whether an error is of the store or of want of memory, and not of a file that is not sound.

    Arrow raises `OSError` for both: for a local file with the number of an error.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
        return True
    return AWAY.search(str(error)) is not None


TEMP_DIR: Final = "unfinished"
"""The directory of unfinished files, of live writers and of dead ones."""


class SharedFiles:
    """Bytes by path, relative to the root and with `/` between names. All calls block.

    A caller checks a path that it makes from a client's data. The object can be pickled for another
    process.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        """Open the root; `options` are the object store's, as Delta has them."""
        # Another process may have another working directory.
        self.root: Final = str(local_path(root) or root)
        self._options = dict(options or {})
        self._files, self._root = _open_filesystem(self.root, self._options)

    def __reduce__(self) -> tuple[type["SharedFiles"], tuple[str, dict[str, str]]]:
        return SharedFiles, (self.root, self._options)

    def put(
        self, path: str, payload: bytes | Callable[[NativeFile], None], *, durable: bool = True
    ) -> None:
        """Store the bytes, or those that `payload` writes, whole or not at all. Replaces a file.

        Afterwards the bytes outlast a power cut (S-7). Without `durable` they may not, and are
        stored faster: for files that nothing relies on.
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
            _sync_file(Path(temporary))
        self._files.move(str(temporary), str(target))
        if durable:
            _sync_names([Path(target)])

    def put_if_absent(self, path: str, payload: bytes) -> None:
        """Store the bytes as `put` does, unless the file exists: of several writers one wins.

        On a file system without hard links, two that write at one moment may both succeed, and the
        later one wins.
        """
        target = self._root / path
        if not isinstance(self._files, LocalFileSystem):
            import obstore  # noqa: PLC0415 - for object stores alone

            with _reaching_store(), suppress(obstore.exceptions.AlreadyExistsError):
                obstore.put(self._objects, path, payload, mode="create")
            return
        own = f"{TEMP_DIR}/{uuid4().hex}"
        self.put(own, payload)
        self._files.create_dir(str(target.parent), recursive=True)
        try:
            Path(target).hardlink_to(Path(self._root / own))
            _sync_names([Path(target)])
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not Path(target).exists():
                self.put(path, payload)
        finally:
            self.delete(own)

    def sync(self, paths: Collection[str]) -> None:
        """Make files that another library wrote here outlast a power cut.

        An object store keeps what it has confirmed: there nothing is done.

        Raises:
            OSError: the files may not outlast it; `FileNotFoundError` if one is missing.
        """
        if not isinstance(self._files, LocalFileSystem):
            return
        targets = [Path(self._root / path) for path in paths]
        for target in targets:
            _sync_file(target)
        _sync_names(targets)

    def sizes(self, directory: str, names: Collection[str]) -> dict[str, int]:
        """Sizes in bytes of the existing ones, by name; one request to an object store."""
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
        """Return the bytes; a local file is mapped, not read. Raises `FileNotFoundError`."""
        target = str(self._root / path)
        if isinstance(self._files, LocalFileSystem):
            with pa.memory_map(target) as mapped:
                return mapped.read_buffer()
        with self._files.open_input_file(target) as file:
            return file.read_buffer()

    def open(self, path: str) -> NativeFile:
        """Open the file for reading parts of it. Raises `FileNotFoundError`."""
        return self._files.open_input_file(str(self._root / path))

    def below(self, directory: str) -> FileSystem:
        """Return the directory as a file system of Arrow."""
        return SubTreeFileSystem(str(self._root / directory), self._files)

    def rename(self, path: str, new_path: str) -> None:
        """Give the file another name, which outlasts a power cut. Replaces a file.

        An object store copies it and then deletes it: for a moment there are both.
        """
        if not isinstance(self._files, LocalFileSystem):
            import obstore  # noqa: PLC0415 - for object stores alone

            with _reaching_store():
                obstore.copy(self._objects, path, new_path)
            self.delete(path)
            return
        self._files.create_dir(str((self._root / new_path).parent), recursive=True)
        self._files.move(str(self._root / path), str(self._root / new_path))
        self.sync([new_path])

    def has(self, path: str) -> bool:
        """Whether there is a file or a directory; an object store has no empty ones."""
        info = self._files.get_file_info(str(self._root / path))
        return info.type is not FileType.NotFound

    def list_names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty for a missing directory."""
        return sorted(info.base_name for info in self.list_infos(directory))

    def list_infos(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """Names, kinds and times of the files in a directory; empty for a missing directory."""
        path = str(self._root / directory)
        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        for _ in range(_LISTINGS):
            # Arrow lists a directory, and looks whether there is one only if that failed: one that
            # is made in between counts as lost, as one does that is removed while it is listed.
            with suppress(FileNotFoundError):
                return list(self._files.get_file_info(selector))
        return list(self._files.get_file_info(selector))

    def delete(self, path: str) -> None:
        """Delete the file; a missing one is no error."""
        if not isinstance(self._files, LocalFileSystem):
            self._delete_objects([path])
        elif self.has(path):
            self._files.delete_file(str(self._root / path))

    def delete_directory(self, directory: str) -> None:
        """Delete the directory with its content; a missing one is no error."""
        if not isinstance(self._files, LocalFileSystem):
            infos = self.list_infos(directory, recursive=True)
            inside = [PurePosixPath(info.path) for info in infos if info.is_file]
            self._delete_objects([str(path.relative_to(self._root)) for path in inside])
        elif self.has(directory):
            self._files.delete_dir(str(self._root / directory))
            forget_directories()

    def delete_empty(self, directory: str) -> None:
        """Delete the directory if nothing is in it; an object store has no empty ones."""
        if isinstance(self._files, LocalFileSystem):
            with suppress(OSError):
                Path(self._root / directory).rmdir()
                forget_directories()

    @property
    def is_local(self) -> bool:
        """Whether the root lies on a disk, and not in an object store."""
        return isinstance(self._files, LocalFileSystem)

    @cached_property
    def _objects(self) -> Any:
        return _open_objects(self.root, self._options)

    def _delete_objects(self, paths: Sequence[str]) -> None:
        import obstore  # noqa: PLC0415 - for object stores alone

        if paths:
            with _reaching_store(), suppress(FileNotFoundError):
                obstore.delete(self._objects, paths)

    def _write(self, target: PurePosixPath, payload: bytes | Callable[[NativeFile], None]) -> None:
        file = self._files.open_output_stream(str(target))
        try:
            with file:
                if callable(payload):
                    payload(file)
                else:
                    file.write(payload)
        except BaseException as error:
            # Closed, an object is complete with what it has so far.
            if isinstance(self._files, LocalFileSystem) or not is_of_store(error):
                with suppress(OSError):
                    self.delete(str(target.relative_to(self._root)))
            if isinstance(error, OSError) and error.errno in _NO_ROOM:  # Arrow does not say where
                raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
            raise


_RESULTS: Final = "results"
CHANGE_SETS: Final = "change_sets"
MEMO: Final = "memo"
IMPURE: Final = "impure"
TABLES: Final = "tables"
DEPLOYMENT: Final = "deployment.json"
STREAM_ENDS: Final = "stream_ends.json"
LOSSES: Final = "losses"
_BATCH: Final = ".batch"


def change_set_directory(change_set: ChangeSet) -> str:
    return f"{CHANGE_SETS}/{change_set.workspace_id}/{change_set.change_set_id}"


def change_sets_in(files: "SharedFiles", workspace: str) -> list[ChangeSet]:
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
    """The directory of a run store, by its key."""
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
    """Whether a file of this name is a batch."""
    return name.endswith(_BATCH)


def key_of(name: str) -> str:
    """The key of a batch, or of a run store, by the name of its file or directory."""
    return name.removesuffix(_BATCH)


class BatchFiles:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, files: SharedFiles) -> None:
        self.files = files

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; an existing key is replaced."""
        self.files.put(batch_file(key), payload)

    def get(self, key: str) -> bytes:
        """Return the bytes. Raises `FileNotFoundError`."""
        return bytes(self.files.get(batch_file(key)))

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

    def __init__(self, files: SharedFiles) -> None:
        self._files = files

    def older_than(self, before: float) -> list[OrphanFile]:
        """The files written before that time, in seconds since 1970."""
        orphans = [*self._files_in(TEMP_DIR), *self._files_in(_RESULTS)]
        return [leftover for leftover in orphans if leftover.time < before]

    def payloads(self) -> Iterator[bytes]:
        """The bytes of each batch and of each file of a run."""
        directories = [_RESULTS]
        for directory in directories:
            for info in self._files.list_infos(directory):
                path = f"{directory}/{info.base_name}"
                if info.type is FileType.Directory:
                    directories.append(path)
                    continue
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield bytes(self._files.get(path))

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
