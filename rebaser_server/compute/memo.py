"""Former results of functions, by value: kept in memory, and those of dear calls in the store.

The planner of an update hands former results of its values to the evaluator. Keys tell whether one
of them is the result of a call (`recall`). So nothing here can make a value wrong, and a lost
result costs a call. A workspace's results are never looked up for another one.

In the store each update adds a file to its workspace's directory: the digest of what follows, and
an Arrow stream. Many files are merged, and the oldest are deleted beyond the limit in bytes; used
results are written again, so the least lately used go first.

Functions that came to two results from equal inputs are noted in the store for people to see.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from itertools import accumulate, chain
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import structlog
from blake3 import blake3

from rebaser_core.ids import RequestId
from rebaser_server.compute.cost_model import ROW_SECONDS, UNMEASURED_SECONDS, CostModel
from rebaser_server.compute.results import REMEMBERED
from rebaser_server.compute.work_unit import KEY_BYTES, KNOWN_RESULTS
from rebaser_server.files import IMPURE, MEMO, SharedFiles, impure_directory, memo_directory
from rebaser_server.runtime.containment import contained

log: Final = structlog.get_logger()

_MIN_CALL_SECONDS: Final = 20e-6
"""Seconds of a call from which its result is remembered: a look-up takes some microseconds."""
_MIN_FILE_SECONDS: Final = 0.05
"""Seconds of an update's calls from which its results are looked for, and put, in files."""
_RESULTS_PER_VALUE: Final = 4
"""Number of results of one value that are kept, the latest."""
MAX_FILES: Final = 64
"""Number of small files of a workspace beyond which they are merged."""
_MERGED_BYTES: Final = 1 << 20
"""Size of a file, in bytes, from which it is left alone."""
_MEMORY_PART: Final = 16
"""Reciprocal of the part of the limit in bytes that each process takes in memory."""
_TIDIED_EVERY: Final = 16
"""Number of files that a process puts until it looks whether files are too many or too large."""
_REWRITTEN_AFTER: Final = 3_600.0
"""Seconds after which a used result is written again."""
_DIGEST_BYTES: Final = 32
_ENTRY_BYTES: Final = 300
"""Estimated bytes of memory of a result in addition to its text."""
_FORGOTTEN: Final = b"\xff" * KEY_BYTES
"""Key of a row that takes back all earlier results of its value; no call has this key."""
_REMEMBERED_RUNTIMES: Final = ("python", "cel")
_NOTE_SECONDS: Final = 30 * 86_400.0
"""Seconds for which a function that is not pure is noted."""
_NOTES_PER_WORKSPACE: Final = 10
_MAX_NOTES: Final = 50


@dataclass(slots=True)
class _Results:
    by_key: dict[bytes, str]
    written: float
    """Time at which the latest was computed or put into a file, in seconds since 1970."""
    size: int = 0
    is_used: bool = False
    """Whether they were looked for since then."""


class Memo:
    """The results of all workspaces. Methods may be called from any thread; those with files block.

    Args:
        files: the store.
        max_bytes: of all files together; 0: nothing is remembered.
    """

    def __init__(self, files: SharedFiles, max_bytes: int) -> None:
        self._files = files
        self.impure: Final = ImpureFunctions(files)
        self.max_bytes: Final = max_bytes
        self._room = max_bytes // _MEMORY_PART
        self._lock = Lock()
        self._results: OrderedDict[tuple[str, str], _Results] = OrderedDict()
        """Results by workspace and value; the least lately used first."""
        self._size = self._puts = 0
        self._read: dict[str, set[str]] = {}
        """Files of each workspace that were read or written here."""

    def of(self, workspace: str) -> "WorkspaceMemo | None":
        """The results of a workspace; None if nothing is remembered."""
        return WorkspaceMemo(self, workspace) if self.max_bytes else None

    def known(self, workspace: str, ids: pa.LargeStringArray) -> pa.LargeListArray:
        """Return the former results of each of these values, as `KNOWN_RESULTS`."""
        known: list[list[tuple[bytes, str]] | None] = []
        with self._lock:
            for value_id in ids.to_pylist():
                results = self._results.get((workspace, value_id))
                if results is not None:
                    self._results.move_to_end((workspace, value_id))
                    results.is_used = True
                known.append(None if results is None else list(results.by_key.items()))
        return pa.array(known, KNOWN_RESULTS)

    def add(self, workspace: str, results: pa.Table, written: float) -> None:
        """Keep results, columns as `REMEMBERED` has them, in memory."""
        columns = (results.column(name).to_pylist() for name in ("id", "key", "text"))
        with self._lock:
            for value_id, key, text in zip(*columns, strict=True):
                place = workspace, value_id
                entry = self._results.setdefault(place, _Results({}, written))
                self._results.move_to_end(place)
                _keep(entry.by_key, key, text)
                entry.written = written
                self._size -= entry.size
                entry.size = sum(_ENTRY_BYTES + len(each) for each in entry.by_key.values())
                self._size += entry.size
            while self._size > self._room and self._results:
                self._size -= self._results.popitem(last=False)[1].size

    def forget(self, workspace: str, value_ids: Sequence[str]) -> None:
        """Forget the results of these values, so that they are computed; new ones count again.

        That holds in other processes, too, once they read what the store has. Blocks.
        """
        self.read(workspace)  # else what it has would be taken in later, and count
        count = len(value_ids)
        columns = [value_ids, [_FORGOTTEN] * count, [""] * count, pa.nulls(count)]
        forgotten = pa.table(columns, schema=REMEMBERED)
        self.add(workspace, forgotten, time.time())
        self.put(workspace, forgotten)

    def read(self, workspace: str) -> None:
        """Read results in the store, of other processes or from before this one was started."""
        infos = self._files.list_infos(memo_directory(workspace))
        infos.sort(key=lambda info: info.base_name, reverse=True)
        sizes = accumulate(info.size or 0 for info in infos)
        fitting = [i.base_name for i, size in zip(infos, sizes, strict=True) if size <= self._room]
        before, self._read[workspace] = self._read.get(workspace, set()), set(fitting)
        for name in reversed(fitting):  # the latest last
            if name not in before:
                with contained("remembered result", file=name):
                    written = RequestId.from_str(name).milliseconds / 1000
                    self.add(workspace, self._get(workspace, name), written)

    def put(self, workspace: str, results: pa.Table) -> None:
        """Put results into a file, with used ones that were put long ago."""
        name, now = str(RequestId()), time.time()
        rows = self._used_and_old(workspace, now)
        carried = pa.table(
            [*map(list, zip(*rows, strict=True)), pa.nulls(len(rows))] if rows else [[]] * 4,
            schema=REMEMBERED,
        )
        self._write(workspace, name, pa.concat_tables([carried, results]))
        self._read.setdefault(workspace, set()).add(name)
        self._puts += 1
        if self._puts % _TIDIED_EVERY == 0:
            self.tidy()

    def _used_and_old(self, workspace: str, now: float) -> list[tuple[str, bytes, str]]:
        rows: list[tuple[str, bytes, str]] = []
        with self._lock:
            for (of, value_id), entry in self._results.items():
                is_old = entry.written < now - _REWRITTEN_AFTER
                if of == workspace and entry.is_used and is_old:
                    entry.written, entry.is_used = now, False
                    rows += [(value_id, key, text) for key, text in entry.by_key.items()]
        return rows

    def _write(self, workspace: str, name: str, results: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, REMEMBERED) as stream:
            stream.write_table(results)
        data = sink.getvalue().to_pybytes()
        path = f"{memo_directory(workspace)}/{name}"
        # A file that a power cut has spoiled fails its digest, and costs calls alone.
        self._files.put(path, blake3(data).digest() + data, durable=False)

    def _get(self, workspace: str, name: str) -> pa.Table:
        try:
            found = self._files.get_buffer(f"{memo_directory(workspace)}/{name}")
        except FileNotFoundError:  # merged meanwhile
            return REMEMBERED.empty_table()
        data = memoryview(found).cast("B")
        if blake3(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            log.warning("remembered results are damaged", file=name)
            return REMEMBERED.empty_table()
        return pa.ipc.open_stream(data[_DIGEST_BYTES:]).read_all()

    def tidy(self) -> None:
        """Merge the small files of workspaces with many; delete the oldest beyond the limit."""
        files: list[tuple[str, str, int]] = []
        workspaces = self._files.list_names(MEMO)
        for deleted in self._read.keys() - {*workspaces}:
            self._read.pop(deleted, None)
        for workspace in workspaces:
            infos = self._files.list_infos(memo_directory(workspace))
            small = sorted(info.base_name for info in infos if (info.size or 0) < _MERGED_BYTES)
            if len(small) > MAX_FILES:
                self._merge(workspace, small)
                infos = self._files.list_infos(memo_directory(workspace))
            files += [(info.base_name, workspace, info.size or 0) for info in infos]
        files.sort()
        size = sum(each for _, _, each in files)
        for name, workspace, each in files:
            if size <= self.max_bytes:
                break
            self._files.delete(f"{memo_directory(workspace)}/{name}")
            size -= each

    def _merge(self, workspace: str, names: list[str]) -> None:
        """Merge the results of all files, once each, into the last one."""
        latest: dict[str, dict[bytes, str]] = {}
        for name in names:
            rows = self._get(workspace, name)
            columns = (rows.column(column).to_pylist() for column in ("id", "key", "text"))
            for value_id, key, text in zip(*columns, strict=True):
                _keep(latest.setdefault(value_id, {}), key, text)
        merged = [(i, key, text) for i, results in latest.items() for key, text in results.items()]
        if merged:
            columns_of_all = [*map(list, zip(*merged, strict=True)), pa.nulls(len(merged))]
            # The merged file is there before the others go, so a crash in between loses no result.
            self._write(workspace, names[-1], pa.table(columns_of_all, schema=REMEMBERED))
            names = names[:-1]
        for name in names:
            self._files.delete(f"{memo_directory(workspace)}/{name}")


@dataclass(frozen=True, slots=True)
class WorkspaceMemo:
    memo: Memo
    workspace: str

    def seconds(self, runtime: str | None, code: str, costs: CostModel) -> float:
        """Return a function's seconds for a value; 0 if results are not worth remembering."""
        if runtime not in _REMEMBERED_RUNTIMES:
            return 0.0
        seconds = costs.of_function(runtime, code, unmeasured=UNMEASURED_SECONDS)
        return seconds if seconds - ROW_SECONDS >= _MIN_CALL_SECONDS else 0.0

    def reads_store(self, seconds: float) -> bool:
        """Whether `prepare` takes longer than a moment."""
        return seconds >= _MIN_FILE_SECONDS

    def prepare(self, seconds: float) -> None:
        """Read results from the store, if an update's calls would take that long. Blocks."""
        if self.reads_store(seconds):
            with contained("remembered result", workspace=self.workspace):
                self.memo.read(self.workspace)

    def known(self, ids: pa.LargeStringArray) -> pa.LargeListArray:
        return self.memo.known(self.workspace, ids)

    def record(self, results: pa.Table, seconds: float) -> None:
        """Remember results, in columns as of `REMEMBERED`, whose calls took `seconds`."""
        if results.num_rows:
            self.memo.add(self.workspace, results, time.time())
            if seconds >= _MIN_FILE_SECONDS:
                with contained("remembered result", workspace=self.workspace):
                    self.memo.put(self.workspace, results)

    def forget(self, value_ids: Sequence[str]) -> None:
        """Forget the results of these values, so that they are computed anew. Blocks."""
        with contained("remembered result", workspace=self.workspace):
            self.memo.forget(self.workspace, value_ids)


def _keep(results: dict[bytes, str], key: bytes, text: str) -> None:
    """Add the latest result of a value to its results that are kept."""
    if key == _FORGOTTEN:
        results.clear()
    results.pop(key, None)
    results[key] = text
    if len(results) > _RESULTS_PER_VALUE:
        del results[next(iter(results))]


class ImpureFunctions:
    """Notes of functions that came to two results from the same inputs, for people to see.

    The latest of each function, `_NOTES_PER_WORKSPACE` of a workspace at most, for `_NOTE_SECONDS`.
    All methods block.
    """

    def __init__(self, files: SharedFiles) -> None:
        self._files = files
        self.latest: list[dict[str, Any]] = []
        """Notes of all workspaces, at most `_MAX_NOTES`, the latest first, as of the last look."""

    def add(self, workspace: str, runtime: str | None, code: str, note: dict[str, Any]) -> None:
        """Keep a note, plain data, in place of an earlier one of the function; drop the oldest."""
        path = _note_file(workspace, runtime, code)
        self._files.put(path, json.dumps(note).encode(), durable=False)
        for _, oldest in sorted(self._written_in(workspace))[:-_NOTES_PER_WORKSPACE]:
            self._files.delete(oldest)

    def of_function(self, workspace: str, runtime: str | None, code: str) -> dict[str, Any] | None:
        return self._read(_note_file(workspace, runtime, code))

    def look(self) -> None:
        """Take in what the store has."""
        written = chain.from_iterable(map(self._written_in, self._files.list_names(IMPURE)))
        notes = [self._read(path) for _, path in nlargest(_MAX_NOTES, written)]
        self.latest = [*filter(None, notes)]

    def _written_in(self, workspace: str) -> list[tuple[int, str]]:
        """Return the times of a workspace's notes, in nanoseconds, and their paths."""
        directory = impure_directory(workspace)
        infos = self._files.list_infos(directory)
        return [(info.mtime_ns or 0, f"{directory}/{info.base_name}") for info in infos]

    def _read(self, path: str) -> dict[str, Any] | None:
        with contained("remembered result", file=path), suppress(FileNotFoundError):
            note: dict[str, Any] = json.loads(self._files.get(path))
            is_old = datetime.fromisoformat(note["at"]).timestamp() < time.time() - _NOTE_SECONDS
            return None if is_old else note
        return None


def _note_file(workspace: str, runtime: str | None, code: str) -> str:
    name = blake3(f"{runtime} {code}".encode()).hexdigest(16)
    return f"{impure_directory(workspace)}/{name}.json"
