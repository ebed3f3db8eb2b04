"""The files of a Delta table: made to outlast a power cut, read back, and set aside if damaged.

Delta syncs no file, and takes an empty entry of its log for one that changes nothing.

Errors of Delta, Arrow and the operating system are sorted here. A file that was read completely and
cannot be decoded is damaged, whichever error its decoder raises. Only the transport tells that the
store is away: an operating system by the number of an error, an object store's client by its text.
"""

import errno
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import FileSystem
from pyarrow.parquet import ParquetFile, read_metadata

from rebaser_server.files import AWAY, SharedFiles
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed, is_panic
from rebaser_server.store.row_digest import NO_ROWS, Head, RowDigest, SealedDigest, heads_in

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_GONE: Final = re.compile(
    "not found|no such file|requested range was invalid|file name too long", re.IGNORECASE
)
"""Texts of errors about a file that is missing or shorter than it was, or about an impossible
name."""

_DECODING: Final = (ValueError, LookupError, TypeError, ArithmeticError, pa.ArrowException)
_BAD_NAME: Final = (errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)


@contextmanager
def translate_store_errors(path: str = "") -> Iterator[None]:
    """Raise `StoreDamaged` or `StoreFailed` in place of the libraries' own errors.

    The error names `path`, the file that is read.
    """
    try:
        yield
    except StoreFailed:
        raise
    except (*_DECODING, DeltaError, OSError) as error:
        raise _translated(error, path) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _translated(error, path) from error


def _translated(error: BaseException, path: str) -> StoreFailed:
    text = str(error).partition("\n")[0]  # without the stack trace that Delta adds
    text = f"{path}: {text}" if path else text or type(error).__name__
    return StoreDamaged(text) if _is_damage(error) else StoreFailed(text)


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, FileNotFoundError):
        return True
    if isinstance(error, CommitFailedError | TimeoutError | ConnectionError | MemoryError):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _BAD_NAME
    text = str(error)
    return _GONE.search(text) is not None or AWAY.search(text) is None


APP_ID: Final = "rebaser"
"""Application of the transaction that each of our commits to a table names: its version is the last
checkpoint's commit."""

_DROPPED: Final = ("rebaser-dropped-rows", "rebaser-dropped-inputs")
"""Applications of transactions whose versions are the digest of the rows that compaction
dropped."""

_READERS: Final = 8
"""Number of entries of a log that are read at once."""

_LOG: Final = "_delta_log"
_HINT: Final = "_last_checkpoint"
"""Name of Delta's note of the last entry up to which its log is summed up in a Parquet file."""


class FileContent(NamedTuple):
    digest: RowDigest
    heads: list[Head]


class DeltaFile(NamedTuple):
    """A Parquet file, as the table's log describes it."""

    name: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableLog:
    """The files of a table's log: version → size in bytes."""

    entries: dict[int, int]
    sums: dict[int, int]
    """Parquet files in which Delta sums up all entries up to a version."""

    @property
    def last(self) -> int:
        return max(self.entries, default=-1)

    def summed_up(self, version: int) -> int:
        return max((each for each in self.sums if each <= version), default=-1)

    def repeats(self, summed_up: int) -> bool:
        return self.is_whole(summed_up, since=self.summed_up(summed_up - 1))

    def is_whole(self, version: int, since: int | None = None) -> bool:
        """Whether all entries that make the version exist and have content.

        `since`: the version that the entries follow (default: the last that has a sum).
        """
        first = (self.summed_up(version) if since is None else since) + 1
        return all(self.entries.get(each) for each in range(first, version + 1))


class CheckpointTable(DeltaTable):
    """A version of a table, which Arrow reads with a file system of its own.

    Delta's would call Python from Arrow's threads, and such a call aborts a process that is about
    to end. The column of a damaged Parquet file aborts it, too, if Arrow looks at the column's
    statistics: nothing here is read with a filter.
    """

    def __init__(
        self, uri: str, files: FileSystem, version: int | None, options: dict[str, str]
    ) -> None:
        """Open the table, the latest version by default. `files`: those in its directory."""
        super().__init__(uri, version, storage_options=options)
        self._own_files = files

    def to_pyarrow_dataset(self, *args: Any, **how: Any) -> "Dataset":
        return super().to_pyarrow_dataset(*args, **how | {"filesystem": self._own_files})

    def heads(self) -> list[Head]:
        found = []
        for fragment in self.to_pyarrow_dataset().get_fragments():
            with fragment.open() as opened:
                file = ParquetFile(opened)
                for group in range(file.num_row_groups):
                    kinds = file.read_row_group(group, columns=["kind"])["kind"]
                    if pc.any(pc.equal(kinds, "head")).as_py():  # few have one: the rest stays
                        found += heads_in(file.read_row_group(group, columns=_OF_HEADS))
        return found


_OF_HEADS: Final = ["kind", "commit", "value"]


def rows_up_to(batches: Iterable[pa.RecordBatch], commit: int | None) -> Iterator[pa.RecordBatch]:
    """The rows up to this commit, or all."""
    for batch in batches:
        yield batch if commit is None else batch.filter(pc.less_equal(batch["commit"], commit))


class DeltaFiles:
    """The files of one table. All calls block, and raise `OSError` if the store fails."""

    def __init__(self, files: SharedFiles, directory: str) -> None:
        """Read the files of the table in `directory`, which is relative to the root."""
        self._files = files
        self._directory = directory

    def require_entries(self, version: int, known: int = -1) -> None:
        """Require that the entries of the table's log, which ends there, are whole, and ours.

        Entries up to version `known` are known to be ours. Entries that Delta has summed up are not
        looked at; the digest of the rows is compared in any case.

        Raises:
            StoreDamaged: an entry is empty, or another program changed the table with it.
        """
        first = self._summed_up() + 1
        names = [_entry(each) for each in range(first, version + 1)]
        sizes = self._files.sizes(f"{self._directory}/{_LOG}", names)
        for name in names:
            if sizes.get(name) == 0:
                raise StoreDamaged(f"{self._directory}/{_LOG}/{name} is empty")
        if foreign := self.foreign_change(max(first, known + 1), version):
            raise StoreDamaged(foreign)

    def foreign_change(self, first: int, last: int) -> str:
        """Changes of another program to the table with these entries of its log, if any.

        Changes without effect on rows, such as OPTIMIZE and VACUUM, are allowed to any program.

        Raises:
            StoreDamaged: an entry cannot be read.
        """
        names = [_entry(each) for each in range(first, last + 1)]
        if len(names) <= 1:
            return "".join(map(self._foreign_change, names))
        try:
            with ThreadPoolExecutor(_READERS) as readers:
                return next(filter(None, readers.map(self._foreign_change, names)), "")
        except RuntimeError:  # a limit of processes: no thread may be started
            return next(filter(None, map(self._foreign_change, names)), "")

    def _foreign_change(self, name: str) -> str:
        path = f"{self._directory}/{_LOG}/{name}"
        try:
            payload = bytes(self._files.get(path))
        except FileNotFoundError:  # summed up, and removed as too old
            return ""
        actions = _actions_in(payload, path)
        changes = [action.get("add") or action.get("remove") for action in actions]
        if not any(change and change.get("dataChange", True) for change in changes):
            return ""
        if any((action.get("txn") or {}).get("appId") == APP_ID for action in actions):
            return ""
        info: dict[str, Any] = {}
        for action in actions:
            info |= action.get("commitInfo") or {}
        operation = info.get("operation", "a change")
        engine = info.get("engineInfo", "a program that does not say its name")
        return f"{path}: {operation} by {engine}, not by a Rebaser"

    def last_entry(self, version: int) -> bytes | None:
        """The entry of this version; None if the log does not end with it (any more)."""
        if self._files.sizes(f"{self._directory}/{_LOG}", [_entry(version + 1)]):
            return None
        with suppress(FileNotFoundError):
            return bytes(self._files.get(f"{self._directory}/{_LOG}/{_entry(version)}"))
        return None

    def secure(self, delta: DeltaTable, since: int | None) -> None:
        """Return once all files of this version outlast a power cut, and were read back.

        Files after version `since`, which this process has secured before, are read back: the
        entries of the log, and of each file its size and its footer. If `since` is None, all of the
        table is synced and read back.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        version, summed_up = delta.version(), self._summed_up()
        if since is None or since > version:
            first, added = summed_up + 1, data_files(delta)
        else:
            first, added = since + 1, self._added(range(since + 1, version + 1))
        names = [_entry(each) for each in range(first, version + 1)]
        # S-7: readers take a new sum in place of the entries, so it must be on the disk as well.
        if since is None or summed_up >= since:
            names += [_sum(summed_up), _HINT]
        present = self._files.sizes(f"{self._directory}/{_LOG}", names)
        paths = [f"{_LOG}/{name}" for name in present] + [file.name for file in added]
        self._files.sync([f"{self._directory}/{path}" for path in paths])
        self._require_files(added)

    def log(self) -> TableLog:
        table_log = TableLog({}, {})
        for info in self._files.list_infos(f"{self._directory}/{_LOG}"):
            version, _, kind = info.base_name.partition(".")
            if kind == "json" and version.isdigit():
                table_log.entries[int(version)] = info.size or 0
            elif kind == "checkpoint.parquet" and version.isdigit():
                table_log.sums[int(version)] = info.size or 0
        return table_log

    def read(self, file: DeltaFile) -> FileContent:
        """Read all of the file.

        Raises:
            StoreDamaged: it cannot be read, or has fewer or more bytes or rows than were written.
        """
        self._require_files([file])
        path, digests = f"{self._directory}/{file.name}", SealedDigest()
        with translate_store_errors(path), self._files.open(path) as opened:
            for batch in ParquetFile(opened).iter_batches():
                digests.add(batch)
            return FileContent(*digests.result())

    def set_aside_sums(self) -> None:
        """Rename sums of the log that cannot be read, and the hint at the last sum.

        Safe at any time: without a hint Delta looks.
        """
        self._set_aside([_HINT])
        for version in self.log().sums:
            path = f"{self._directory}/{_LOG}/{_sum(version)}"
            try:
                self._rows_of(path)
            except StoreDamaged:
                self._set_aside([_sum(version)])

    def set_aside_hint(self, table_log: TableLog) -> None:
        """Rename the hint at the last sum of the log, if that sum is missing."""
        if self._summed_up() not in (-1, *table_log.sums):
            self._set_aside([_HINT])

    def set_aside_sum(self, version: int) -> None:
        """Rename a sum of the log that the entries repeat, and the hint at the last."""
        self._set_aside([_HINT, _sum(version)])

    def set_aside_entries(self, after: int) -> None:
        """Rename all entries and sums of the log after a version, the last one first.

        So the log has no gap if the process dies meanwhile.
        """
        table_log = self.log()
        for version in sorted(table_log.entries | table_log.sums, reverse=True):
            if version > after:
                # A sum says a whole version by itself, so it goes before the entry.
                self._set_aside([_sum(version), _entry(version)])

    def _set_aside(self, names: Iterable[str]) -> None:
        present = self._files.sizes(f"{self._directory}/{_LOG}", list(names))
        for name in present:
            path = f"{self._directory}/{_LOG}/{name}"
            self._files.rename(path, f"{path}.set-aside")

    def _require_files(self, files: Sequence[DeltaFile]) -> None:
        sizes = self._files.sizes(self._directory, [file.name for file in files])
        for file in files:
            path = f"{self._directory}/{file.name}"
            if sizes.get(file.name) != file.size:
                found = sizes.get(file.name, "none")
                raise StoreDamaged(f"{path} has {found} of its {file.size} bytes")
            if self._rows_of(path) != file.rows:
                raise StoreDamaged(f"{path} does not have the {file.rows} rows that were written")

    def _rows_of(self, path: str) -> int:
        with translate_store_errors(path), self._files.open(path) as file:
            return int(read_metadata(file).num_rows)

    def _added(self, versions: Iterable[int]) -> list[DeltaFile]:
        """List the Parquet files that these entries of the log add, and no later one removes."""
        added: dict[str, DeltaFile] = {}
        for version in versions:
            for action in self._actions(_entry(version)):
                if "remove" in action:
                    added.pop(unquote(action["remove"]["path"]), None)
                if "add" in action:
                    file = _data_file(action["add"])
                    added[file.name] = file
        return list(added.values())

    def _actions(self, entry: str) -> list[dict[str, Any]]:
        path = f"{self._directory}/{_LOG}/{entry}"
        return _actions_in(bytes(self._files.get(path)), path)

    def _summed_up(self) -> int:
        """Return the version up to which Delta has summed up its log; -1 for none."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
            hint = json.loads(bytes(self._files.get(f"{self._directory}/{_LOG}/{_HINT}")))
            return max(int(hint["version"]), -1)
        return -1


def data_files(delta: DeltaTable) -> list[DeltaFile]:
    actions = pa.table(delta.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", "num_records")
    rows = zip(*(actions[name].to_pylist() for name in columns), strict=True)
    return [DeltaFile(unquote(path), size, count) for path, size, count in rows]


def _data_file(add: dict[str, Any]) -> DeltaFile:
    return DeltaFile(unquote(add["path"]), add["size"], json.loads(add["stats"])["numRecords"])


def _entry(version: int) -> str:
    return f"{version:020d}.json"


def _sum(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _actions_in(payload: bytes, path: str) -> list[dict[str, Any]]:
    with translate_store_errors(path):
        actions = [json.loads(line) for line in payload.splitlines() if line]
    if not actions:
        raise StoreDamaged(f"{path} is empty")
    if not all(isinstance(part, dict) for action in actions for part in (action, *action.values())):
        raise StoreDamaged(f"{path} has an entry that is no action")
    return actions


def dropped_rows(delta: DeltaTable) -> RowDigest:
    """The digest of all rows that compaction dropped from the table."""
    rows, inputs = (delta.transaction_version(app_id) or 0 for app_id in _DROPPED)
    return NO_ROWS.plus(RowDigest(rows, inputs))


def transactions(commit: int, dropped: RowDigest | None = None) -> list[Transaction]:
    """Transactions for our commit: the last checkpoint's commit, and the digest of dropped rows."""
    said = [Transaction(APP_ID, commit)]
    if dropped is not None:
        for app_id, digest in zip(_DROPPED, dropped, strict=True):
            signed = int.from_bytes((digest or 0).to_bytes(8), signed=True)
            said.append(Transaction(app_id, signed))
    return said


def require_last(delta: DeltaTable, heads: Sequence[Head]) -> None:
    """Require that the last checkpoint among those of a table is the one that its log names.

    Raises:
        StoreDamaged: rows of the last checkpoint are missing, as after a RESTORE.
    """
    commit, last = delta.transaction_version(APP_ID), max(heads, default=None)
    if commit != (None if last is None else last.commit):
        found = "none" if last is None else f"that of commit {last.commit}"
        raise StoreDamaged(
            f"the table lacks the checkpoint of commit {commit}; its last is {found}"
        )


def require_content(delta: DeltaTable, digest: RowDigest, heads: Sequence[Head]) -> None:
    """Require that rows with this digest and these heads are those that were written.

    The rows are all of the table's, or all up to some commit.

    Raises:
        StoreDamaged: the rows are others.
    """
    last = max(heads, default=None)
    written = NO_ROWS if last is None else last.digest
    # A look for dropped rows takes a pass over the log, and mostly there are none.
    if not digest.fits(written) and not digest.fits(written.minus(dropped_rows(delta))):
        raise StoreDamaged("the table's rows are not those that were written: their digest differs")
