"""The files of a Delta table: made to outlast a power cut, read back, and set aside if damaged.

Delta syncs none of them, and takes an empty entry of its log for one that changes nothing.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.parquet import ParquetFile, read_metadata

from rebaser_server.files.shared_files import SharedFiles
from rebaser_server.runtime.failures import StoreDamaged

_LOG: Final = "_delta_log"
_HINT: Final = "_last_checkpoint"
"""Delta's note of the last entry up to which its log is summed up in a Parquet file."""


class DataFile(NamedTuple):
    """A Parquet file, as the table's log describes it."""

    name: str
    size: int
    """Octets."""
    rows: int


@dataclass(frozen=True, slots=True)
class TableLog:
    """The files of a table's log: version → octets."""

    entries: dict[int, int]
    sums: dict[int, int]
    """Of the Parquet files in which Delta sums up all entries up to a version."""

    @property
    def last(self) -> int:
        """The last version that has an entry; -1 for none."""
        return max(self.entries, default=-1)

    def is_whole(self, version: int) -> bool:
        """Whether no entry is empty or missing of those that say what the version is."""
        summed_up = max((each for each in self.sums if each <= version), default=-1)
        return all(self.entries.get(each) for each in range(summed_up + 1, version + 1))


class TableFiles:
    """The files of one table. All calls block, and raise `OSError` if the store fails."""

    def __init__(self, files: SharedFiles, directory: str) -> None:
        """`directory`: the table's, relative to the root."""
        self._files = files
        self._directory = directory

    def require_entries(self, version: int) -> None:
        """Raise `StoreDamaged` if an entry of the table's log, which ends there, is empty."""
        names = [_entry(each) for each in range(self._summed_up() + 1, version + 1)]
        sizes = self._files.sizes(f"{self._directory}/{_LOG}", names)
        for name in names:
            if sizes.get(name) == 0:
                raise StoreDamaged(f"{self._directory}/{_LOG}/{name} is empty")

    def last_entry(self, version: int) -> bytes | None:
        """The entry of this version; None if the log does not end with it (any more)."""
        if self._files.sizes(f"{self._directory}/{_LOG}", [_entry(version + 1)]):
            return None
        with suppress(FileNotFoundError):
            return bytes(self._files.get(f"{self._directory}/{_LOG}/{_entry(version)}"))
        return None

    def secure(self, delta: DeltaTable, since: int | None) -> None:
        """Return once all that this version of the table is made of outlasts a power cut.

        And once what came after version `since`, which this process has secured before, was
        read back: the entries of the log, and of each file its size and its footer. None: it
        has secured none; then all of the table is synced, and all of it read back.

        Raises:
            StoreDamaged: a file is not what was written.
        """
        version, summed_up = delta.version(), self._summed_up()
        if since is None or since > version:
            first, added = summed_up + 1, data_files(delta)
        else:
            first, added = since + 1, self._added(range(since + 1, version + 1))
        names = [_entry(each) for each in range(first, version + 1)]
        if since is None or summed_up >= since:
            names += [_sum(summed_up), _HINT]
        present = self._files.sizes(f"{self._directory}/{_LOG}", names)
        paths = [f"{_LOG}/{name}" for name in present] + [file.name for file in added]
        self._files.sync([f"{self._directory}/{path}" for path in paths])
        self._require_files(added)

    def log(self) -> TableLog:
        """The files of the log as they are now."""
        table_log = TableLog({}, {})
        for info in self._files.list_infos(f"{self._directory}/{_LOG}"):
            version, _, kind = info.base_name.partition(".")
            if kind == "json" and version.isdigit():
                table_log.entries[int(version)] = info.size
            elif kind == "checkpoint.parquet" and version.isdigit():
                table_log.sums[int(version)] = info.size
        return table_log

    def require_file(self, file: DataFile) -> None:
        """Raise `StoreDamaged` if the file is not as it was written. Reads all of it."""
        self._require_files([file])
        path = f"{self._directory}/{file.name}"
        with _damage_of(path), self._files.open(path) as opened:
            for _ in ParquetFile(opened).iter_batches():
                pass

    def require_files(self, delta: DeltaTable) -> None:
        """Raise `StoreDamaged` if a file of the table is not as it was written. Reads all of it."""
        for file in data_files(delta):
            self.require_file(file)

    def set_aside_sums(self) -> None:
        """Rename those sums of the log that cannot be read, and the hint at the last sum.

        It is safe at any time: the entries say the same, and without a hint Delta looks.
        """
        self._set_aside([_HINT])
        for version in self.log().sums:
            path = f"{self._directory}/{_LOG}/{_sum(version)}"
            try:
                self._rows_of(path)
            except StoreDamaged:
                self._set_aside([_sum(version)])

    def set_aside_entries(self, after: int) -> None:
        """Rename all that the log has after a version, the last one first.

        So the log has no gap if the process dies meanwhile.
        """
        table_log = self.log()
        for version in sorted(table_log.entries | table_log.sums, reverse=True):
            if version > after:
                self._set_aside([_sum(version), _entry(version)])

    def _set_aside(self, names: Iterable[str]) -> None:
        present = self._files.sizes(f"{self._directory}/{_LOG}", list(names))
        for name in present:
            path = f"{self._directory}/{_LOG}/{name}"
            self._files.rename(path, f"{path}.set-aside")

    def _require_files(self, files: Sequence[DataFile]) -> None:
        sizes = self._files.sizes(self._directory, [file.name for file in files])
        for file in files:
            path = f"{self._directory}/{file.name}"
            if sizes.get(file.name) != file.size:
                found = sizes.get(file.name, "none")
                raise StoreDamaged(f"{path} has {found} of its {file.size} octets")
            if self._rows_of(path) != file.rows:
                raise StoreDamaged(f"{path} has not the {file.rows} rows that were written")

    def _rows_of(self, path: str) -> int:
        """Count the rows by the file's footer."""
        with _damage_of(path), self._files.open(path) as file:
            return int(read_metadata(file).num_rows)

    def _added(self, versions: Iterable[int]) -> list[DataFile]:
        """List the Parquet files that these entries of the log add, and no later one removes."""
        added: dict[str, DataFile] = {}
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
        try:
            lines = bytes(self._files.get(path)).splitlines()
            actions = [json.loads(line) for line in lines if line]
        except ValueError as error:
            raise StoreDamaged(f"{path}: {error}") from error
        if not actions:
            raise StoreDamaged(f"{path} is empty")
        return actions

    def _summed_up(self) -> int:
        """Return the version up to which Delta has summed up its log; -1 for none."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            hint = json.loads(bytes(self._files.get(f"{self._directory}/{_LOG}/{_HINT}")))
            return int(hint["version"])
        return -1


def data_files(delta: DeltaTable) -> list[DataFile]:
    """The Parquet files that the table consists of."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", "num_records")
    rows = zip(*(actions[name].to_pylist() for name in columns), strict=True)
    return [DataFile(unquote(path), size, count) for path, size, count in rows]


def _data_file(add: dict[str, Any]) -> DataFile:
    return DataFile(unquote(add["path"]), add["size"], json.loads(add["stats"])["numRecords"])


def _entry(version: int) -> str:
    return f"{version:020d}.json"


def _sum(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


@contextmanager
def _damage_of(path: str) -> Iterator[None]:
    """Raise `StoreDamaged` for what Arrow says of a file's content: errors without a number."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise StoreDamaged(f"{path}: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise StoreDamaged(f"{path}: {error}") from error
