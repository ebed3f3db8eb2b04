"""The files of a Delta table: made to outlast a power cut, and read back.

Delta syncs none of them, and takes an empty entry of its log for one that changes nothing.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.parquet import read_metadata

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
            names += [f"{summed_up:020d}.checkpoint.parquet", _HINT]
        present = self._files.sizes(f"{self._directory}/{_LOG}", names)
        paths = [f"{_LOG}/{name}" for name in present] + [file.name for file in added]
        self._files.sync([f"{self._directory}/{path}" for path in paths])
        self._require_files(added)

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
        with self._files.open(path) as file:
            try:
                return int(read_metadata(file).num_rows)
            except (pa.ArrowInvalid, OSError) as error:
                raise StoreDamaged(f"{path}: {error}") from error

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
