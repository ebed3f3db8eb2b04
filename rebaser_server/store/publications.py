"""The tables of heads, published: one Delta table for each value, which any engine opens by path.

Below the folder that the operator names lies `<workspace>/<value>/` for each value of the head that
is a table; see `folder_of` for the name. A version of such a table has the rows as of one commit,
and names it: its application transaction has the head's id, and the commit as its version. So a
publisher that comes later, or did not know that another was faster, adds no version twice and no
older rows over newer ones. Delta's log takes an entry of each number once.

The data files are copies of those of the immutable table in the store, whose digests are compared
meanwhile: who writes to a published file harms no value, and the collector of garbage need not know
of them. A version keeps the files of the one before
that it has, too, such as those of equal partitions. `published.json` beside the tables says what
was published last, so that nothing is opened that has not changed. If it is lost, each table's log
says the same. Files that a version does not need any more are kept for a time, for those who
read an older one.
"""

import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from blake3 import blake3
from deltalake import DeltaTable, Schema
from pyarrow.parquet import read_metadata

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_server.files import OrphanFiles, SharedFiles, delta_root
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.store.table_files import translate_store_errors
from rebaser_server.tables import DataFile, TableFiles

_NOTE: Final = "published.json"
_LOG: Final = "_delta_log"
_ESCAPE: Final = "~"
_PLAIN_CHARACTERS: Final = frozenset(f"{ascii_letters}{digits}-_.")
_MAX_FOLDER: Final = 200
"""Bytes of a folder's name; file systems take 255."""
_DIGEST: Final = 32
"""Hexadecimal digits of a digest in a name."""
_SUM_EVERY: Final = 10
"""Versions after which Delta sums up a log."""
_TRIES: Final = 10
"""Number of times that others may be faster to add a version."""
_NTZ: Final = "timestampNtz"
"""Delta's feature for timestamps without a time zone."""
_PLAIN: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
_WITH_NTZ: Final = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": [_NTZ],
    "writerFeatures": [_NTZ],
}


def folder_of(name: str) -> str:
    """Return the name of the folder in which the value of that name is published.

    Letters and digits of ASCII, `-`, `_` and `.` stay; each byte of another character, and of a `.`
    or `_` that comes first, becomes `~` and two hexadecimal digits: Polars finds no file behind a
    name of other characters. A long name is cut, and ends with `~~` and a digest of all of it.
    """
    hidden = name[:1] in {".", "_"}
    escaped = [
        char if char in _PLAIN_CHARACTERS and not (hidden and place == 0) else _escape(char)
        for place, char in enumerate(name)
    ]
    folder = "".join(escaped)
    if len(folder.encode()) <= _MAX_FOLDER:
        return folder
    digest = blake3(name.encode()).hexdigest()[:_DIGEST]
    kept = ""
    while len(kept.encode()) + len(escaped[0].encode()) <= _MAX_FOLDER - _DIGEST - 2:
        kept += escaped.pop(0)
    return f"{kept}{_ESCAPE}{_ESCAPE}{digest}"


def _escape(char: str) -> str:
    return "".join(f"{_ESCAPE}{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


class HeadTables(NamedTuple):
    """The tables of a head, as of one commit."""

    commit: int
    keys: Mapping[str, str]
    """Key of the table, by the name of the value."""
    without_result: Collection[str]
    """Names of values that were tables, and have no result now: the last rows stay published."""


@dataclass(slots=True)
class _Published:
    value: str
    key: str | None
    """Key of the table; None: the value is a table no more."""
    version: int = -1
    """Version that the published table had; -1: none, or another than it should be."""
    replaced: dict[str, float] = field(default_factory=dict)
    """Files that the last version does not need → time of that, in seconds since 1970."""


@dataclass(slots=True)
class _Note:
    head: str
    commit: int = 0
    tables: dict[str, _Published] = field(default_factory=dict)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> "_Note":
        """Raises `ValueError`, `TypeError` or `AttributeError` for other bytes."""
        found = json.loads(data)
        tables = {folder: _Published(**each) for folder, each in found["tables"].items()}
        return cls(found["head"], int(found["commit"]), tables)


class _LastVersion(NamedTuple):
    """The last version of a published table."""

    number: int = -1
    commit: int = -1
    files: Mapping[str, int] = {}
    """Sizes of its files in bytes, by name."""
    schema: str = ""
    metadata: Mapping[str, Any] = {}
    features: Collection[str] = ()


class _Contents(NamedTuple):
    """The contents that a version shall have."""

    schema: str
    files: Mapping[str, DataFile]
    """Files in the store, by the digest of the path, which is the first part of a name."""
    workspace: str = ""


class Publications:
    """The published tables of all heads. All methods block; they raise `OSError` as `DeltaFiles`.

    Several Rebasers may publish at once.
    """

    def __init__(self, folder: Path, tables: TableFiles, keep_replaced: float) -> None:
        """Publish below `folder`; files that are replaced stay for `keep_replaced` seconds."""
        self._published = SharedFiles(str(folder))
        self._tables = tables
        self._keep_replaced = keep_replaced

    def names(self, head: ChangeSet) -> list[str]:
        """Return the names of the values that are published as tables."""
        return [each.value for each in self._note(head).tables.values() if each.key is not None]

    def is_behind(self, head: ChangeSet, commit: int) -> bool:
        """Whether the commit was not looked at, or replaced files are due to be removed."""
        note = self._note(head)
        return note.commit < commit or any(map(self._due, note.tables.values()))

    def publish(self, head: ChangeSet, found: HeadTables) -> int:
        """Add a version to each table that is not as found; return the number of versions.

        Raises:
            OSError, RebaserError: some tables are not published; the others are.
        """
        note = self._note(head)
        if found.commit < note.commit or not (found.keys or note.tables):
            return 0
        versions = 0
        failures: list[OSError | RebaserError] = []
        for name, key in self._wanted(note, found).items():
            folder = folder_of(name)
            before = note.tables.get(folder, _Published(name, None))
            if before.key == key and self._is_last(head, folder, before):
                continue
            try:
                number, is_new = self._publish(head, folder, name, key, found.commit)
                replaced = self._unused(head, folder, before.replaced)
                note.tables[folder] = _Published(name, key, number, replaced)
                versions += is_new
            except (OSError, RebaserError) as error:
                failures.append(error)
        for folder, each in note.tables.items():
            self._remove_due(head, folder, each)
        # A commit with failures counts as not looked at, so the next look tries it again.
        if not failures:
            note.commit = found.commit
        # The note of a later commit stays, which a second publisher may have written meanwhile.
        last = self._note(head)
        if last.commit <= note.commit and last != note:
            self._published.put(f"{head.workspace_id}/{_NOTE}", note.encode())
        if failures:
            raise failures[0]
        return versions

    def tidy(self) -> None:
        """Remove files that processes left half written."""
        leftovers = OrphanFiles(self._published)
        leftovers.remove(leftovers.older_than(time.time() - self._keep_replaced))

    def _is_last(self, head: ChangeSet, folder: str, published: _Published) -> bool:
        """Whether the version is known, and still the last one: others may have added one."""
        number, log = published.version, f"{head.workspace_id}/{folder}/{_LOG}"
        names = [_entry(number), _entry(number + 1)]
        return number >= 0 and list(self._published.sizes(log, names)) == names[:1]

    def _wanted(self, note: _Note, found: HeadTables) -> dict[str, str | None]:
        """Return the key of each table that is to be published; None: it is to be emptied."""
        wanted: dict[str, str | None] = dict(found.keys)
        for each in note.tables.values():
            if each.value not in found.without_result:
                wanted.setdefault(each.value, None)
        return wanted

    def _note(self, head: ChangeSet) -> _Note:
        with suppress(FileNotFoundError, ValueError, TypeError, LookupError, AttributeError):
            note = _Note.decode(bytes(self._published.get(f"{head.workspace_id}/{_NOTE}")))
            if note.head == str(head.change_set_id):
                return note
        return _Note(str(head.change_set_id))

    def _has_log(self, head: ChangeSet, folder: str) -> bool:
        names = self._published.list_names(f"{head.workspace_id}/{folder}/{_LOG}")
        return any(name.endswith(".json") for name in names)

    def _publish(
        self, head: ChangeSet, folder: str, name: str, key: str | None, commit: int
    ) -> tuple[int, bool]:
        """Add a version with the table of that key, or without rows, if one is due.

        None is due if the last version has this state, or names this commit or a later one. Returns
        the last version, or -1 if it is another than it should be, and whether it is new.
        """
        directory, app = f"{head.workspace_id}/{folder}", str(head.change_set_id)
        for _ in range(_TRIES):
            last = self._open(directory, app) if self._has_log(head, folder) else _LastVersion()
            if key is None and last.number < 0:
                return -1, False
            wanted = _Contents(last.schema, {}) if key is None else self._contents(head, key)
            kept = self._kept(directory, last, wanted)
            missing = wanted.files.keys() - {_digest_of(name) for name in kept}
            replaced = [file for file in last.files.items() if file[0] not in kept]
            if last.number >= 0 and last.schema == wanted.schema and not missing and not replaced:
                return last.number, False
            if last.commit >= commit:
                return -1, False
            # The files are on the disk before the entry that names them. Else a power cut could
            # leave a version without its files.
            added = self._bring(directory, wanted, missing, commit)
            actions = [
                _commit_info(commit, key),
                *_table_actions(last, wanted.schema, name),
                {"txn": {"appId": app, "version": commit, "lastUpdated": _milliseconds()}},
                *map(_remove, replaced),
                *added,
            ]
            version = last.number + 1
            entry = f"{directory}/{_LOG}/{_entry(version)}"
            payload = "\n".join(map(json.dumps, actions)).encode()
            self._published.put_if_absent(entry, payload)
            # The entry may be another publisher's. A random `txnId` makes the two differ.
            if bytes(self._published.get(entry)) == payload:
                if version and version % _SUM_EVERY == 0:
                    self._sum_up(directory, version)
                return version, True
        raise StoreFailed(f"others add versions to {directory} all the time")

    def _open(self, directory: str, app: str) -> _LastVersion:
        with translate_store_errors(directory):
            delta = self._delta(directory)
            metadata = delta.metadata()
            return _LastVersion(
                delta.version(),
                -1 if (commit := delta.transaction_version(app)) is None else commit,
                dict(zip(*_files_in(delta), strict=True)),
                delta.schema().to_json(),
                {"id": metadata.id, "name": metadata.name, "createdTime": metadata.created_time},
                delta.protocol().reader_features or (),
            )

    def _delta(self, directory: str) -> DeltaTable:
        root, options = delta_root(self._published.root, {})
        return DeltaTable(f"{root}/{directory}", storage_options=options)

    def _sum_up(self, directory: str, version: int) -> None:
        with translate_store_errors(directory):
            delta = self._delta(directory)
            delta.create_checkpoint()
            delta.cleanup_metadata()
        log = f"{directory}/{_LOG}"
        names = [f"{version:020d}.checkpoint.parquet", "_last_checkpoint"]
        present = self._published.sizes(log, names)
        self._published.sync([f"{log}/{name}" for name in present])

    def _contents(self, head: ChangeSet, key: str) -> _Contents:
        workspace = str(head.workspace_id)
        manifest = self._tables.get(workspace, key)
        fields = [{**each, "type": _delta_type(each["type"])} for each in manifest.fields]
        with translate_store_errors(key):
            schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields})).to_json()
        files = {blake3(f.path.encode()).hexdigest()[:_DIGEST]: f for f in manifest.files}
        return _Contents(schema, files, workspace)

    def _kept(self, directory: str, last: _LastVersion, wanted: _Contents) -> set[str]:
        """Return the names of the files of the last version that are wanted, and are whole."""
        if last.schema != wanted.schema:
            return set()
        names = [name for name in last.files if _digest_of(name) in wanted.files]
        sizes = self._published.sizes(directory, names)
        return {name for name in names if sizes.get(name) == last.files[name]}

    def _bring(
        self, directory: str, wanted: _Contents, missing: Collection[str], commit: int
    ) -> list[dict[str, Any]]:
        """Copy these files there, so that they outlast a power cut; return their actions."""
        adds, paths = [], []
        for digest in missing:
            # No name is used by two versions: a file that is due to be removed never comes back.
            name, file = f"{digest}-{commit}.parquet", wanted.files[digest]
            path = f"{directory}/{name}"
            if not self._published.has(path):  # by a publisher that was killed, or is as fast
                self._published.put(path, partial(self._tables.copy, wanted.workspace, file))
            paths.append(path)
            with self._published.open(path) as opened:
                rows = read_metadata(opened).num_rows
            adds.append(_add(name, file.size, rows))
        self._published.sync(paths)
        return adds

    def _unused(
        self, head: ChangeSet, folder: str, replaced: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the data files that the last version does not need, also those of a dead writer.

        `replaced`: those that are known, with their times.
        """
        directory = f"{head.workspace_id}/{folder}"
        if not self._has_log(head, folder):
            return {}
        used, now = self._open(directory, str(head.change_set_id)).files, time.time()
        names = self._published.list_names(directory)
        files = [name for name in names if name.endswith(".parquet") and name not in used]
        return {name: replaced.get(name, now) for name in files}

    def _due(self, published: _Published) -> list[str]:
        before = time.time() - self._keep_replaced
        return [name for name, since in published.replaced.items() if since < before]

    def _remove_due(self, head: ChangeSet, folder: str, published: _Published) -> None:
        for name in self._due(published):
            self._published.delete(f"{head.workspace_id}/{folder}/{name}")
            del published.replaced[name]


def _entry(version: int) -> str:
    return f"{version:020d}.json"


def _digest_of(name: str) -> str:
    """Return the first part of a file's name, see `_Contents`."""
    return name.partition("-")[0]


def _files_in(delta: DeltaTable) -> tuple[list[str], list[int]]:
    actions = pa.table(delta.get_add_actions(flatten=True))
    names = [unquote(name) for name in actions["path"].to_pylist()]
    return names, actions["size_bytes"].to_pylist()


def _delta_type(kind: Any) -> Any:
    """Return a type of Spark's JSON as Delta has it: a text has no collation there."""
    if isinstance(kind, str):
        return "string" if kind.startswith("string ") else kind
    parts = ("elementType", "keyType", "valueType")
    inner = {part: _delta_type(kind[part]) for part in parts if part in kind}
    if "fields" in kind:
        inner["fields"] = [{**each, "type": _delta_type(each["type"])} for each in kind["fields"]]
    return {**kind, **inner}


def _table_actions(last: _LastVersion, schema: str, name: str) -> list[dict[str, Any]]:
    """Return what a version says of the table, where the last one says another thing."""
    if last.schema == schema and last.metadata.get("name") == name:
        return []
    metadata = {
        "id": str(uuid4()),
        "createdTime": _milliseconds(),
        **last.metadata,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {},
    }
    actions = [{"metaData": metadata}]
    needs_ntz = '"timestamp_ntz"' in schema
    if needs_ntz and _NTZ not in last.features:
        actions.insert(0, {"protocol": _WITH_NTZ})
    elif last.number < 0:
        actions.insert(0, {"protocol": _PLAIN})
    return actions


def _commit_info(commit: int, key: str | None) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": _milliseconds(),
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
            "engineInfo": "Rebaser",
            "userMetadata": json.dumps({"commit": commit, "table": key}),
            "txnId": str(uuid4()),  # two publishers never write the same entry
        }
    }


def _remove(file: tuple[str, int]) -> dict[str, Any]:
    name, size = file
    return {
        "remove": {
            "path": name,
            "deletionTimestamp": _milliseconds(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": size,
        }
    }


def _add(name: str, size: int, rows: int) -> dict[str, Any]:
    return {
        "add": {
            "path": name,
            "partitionValues": {},
            "size": size,
            "modificationTime": _milliseconds(),
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
    }


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
