"""The result of a unit, as columns: only the values that changed.

Encoded it is an Arrow IPC stream of one record batch, see `SCHEMA`, which any reader of Arrow can
read as it is; the schema's metadata has the data that belongs to no single value, under `METADATA`
as JSON: `recomputed`, and `costs` as rows of runtime, code, calls, seconds. A second stream follows
if results are to be remembered, see `REMEMBERED`.

A `RunStore` has the files that runs leave for the driver, for a crashed run's successor, and for
the log. It is a directory that all attempts at one update share. Files lie there for each unit, by
the digest of its bytes, without the limits that it is computed under:

- `<digest>-<start>-<stop>-<unique>`: the result of its values from `start` up to `stop`, an encoded
  `UnitResult`. Written once: two attempts never share a name, so a file that a commit refers to
  never changes.
- `<digest>.blob`: the unit, if it is too large to travel with the job.
- `progress/<run>-<digest>`: the number of its values that are done. This alone need not outlast a
  power cut: only the run in hand reads it.

The file `costs` has the first attempt's estimates of functions' costs, in all; `sweeps-<digest>`
has its estimates when it split the units of a round into levels; the digest is the first unit's.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Protocol
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.work_unit import KEY_BYTES, OK, STATUSES, STRING_TYPE
from rebaser_server.files import SharedFiles, is_batch, run_directory
from rebaser_server.values.canonical_json import dumps, loads

SCHEMA: Final = pa.schema(
    [
        pa.field("id", STRING_TYPE, nullable=False),
        pa.field("status", pa.uint8(), nullable=False),  # an index into `STATUSES`, not PENDING
        pa.field("text", STRING_TYPE, nullable=False),  # a text as in `WorkUnit.texts`
        pa.field("place", pa.int32(), nullable=False),  # position in the unit's columns, ascending
    ]
)
METADATA: Final = b"rebaser"
REMEMBERED: Final = pa.schema(
    [
        pa.field("id", STRING_TYPE, nullable=False),
        pa.field("key", pa.binary(KEY_BYTES), nullable=False),  # see `work_unit.KEY_BYTES`
        pa.field("text", STRING_TYPE, nullable=False),
        pa.field("former", STRING_TYPE),  # the text that was known under this key, if another
    ]
)
"""Schema of results, changed or not, of functions that a unit says to remember."""

ValueResult = tuple[str, str, Any]
"""Value id and `"ok"`, value | `"failed"`, message | `"blocked"`, id of the first input that is
failed or blocked."""

CallCosts = dict[tuple[str, str], tuple[int, float]]
"""Costs of calls: runtime and code → number of values, seconds in all.

The number is 0 if all results of the function were known."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitResult:
    recomputed: int
    """Number of values whose functions were called, or found missing or blocked."""
    table: pa.Table
    """Changed values alone, in the unit's order. Columns as of `SCHEMA`, in chunks."""
    costs: CallCosts = field(default_factory=dict)
    remembered: pa.Table = field(default_factory=REMEMBERED.empty_table)
    """Columns as of `REMEMBERED`, in chunks."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def ids(self) -> pa.ChunkedArray:
        return self.table.column("id")

    @property
    def statuses(self) -> NDArray[np.uint8]:
        statuses: NDArray[np.uint8] = self.table.column("status").to_numpy()
        return statuses

    @property
    def texts(self) -> pa.ChunkedArray:
        return self.table.column("text")

    @property
    def value_results(self) -> list[ValueResult]:
        """Return the results value by value, for small results."""
        columns = zip(
            self.ids.to_pylist(), self.statuses.tolist(), self.texts.to_pylist(), strict=True
        )
        return [
            (value_id, STATUSES[status], loads(text) if status == OK else text)
            for value_id, status, text in columns
        ]


def _write_result(result: UnitResult, sink: Any) -> None:
    """Write the result, encoded, to a sink of Arrow."""
    metadata = {
        "recomputed": result.recomputed,
        "costs": [[*function, *cost] for function, cost in result.costs.items()],
    }
    table = result.table.replace_schema_metadata({METADATA: dumps(metadata)})
    for each in (table, result.remembered)[: 2 if result.remembered.num_rows else 1]:
        with pa.ipc.new_stream(sink, each.schema) as stream:
            stream.write_table(each)


def encode_result(result: UnitResult) -> pa.Buffer:
    size = pa.MockOutputStream()
    _write_result(result, size)
    # Memory of Arrow's pool, which a stream that grows would take several times over.
    encoded = pa.allocate_buffer(size.size())
    _write_result(result, pa.FixedSizeBufferWriter(encoded))
    return encoded


def decode_result(data: bytes | memoryview | pa.Buffer) -> UnitResult:
    """Return the result; its tables share the memory of `data`."""
    source = pa.BufferReader(data)
    table = pa.ipc.open_stream(source).read_all()
    metadata = loads(table.schema.metadata[METADATA])
    costs = {(runtime, code): (calls, spent) for runtime, code, calls, spent in metadata["costs"]}
    result = UnitResult(metadata["recomputed"], table, costs)
    if source.tell() < source.size():
        result = replace(result, remembered=pa.ipc.open_stream(source).read_all())
    return result


def join_results(results: Sequence[UnitResult], table: pa.Table) -> UnitResult:
    """Return the result of a unit from those of its parts, with a table made from theirs."""
    return UnitResult(
        sum(result.recomputed for result in results),
        table,
        total_costs(results),
        pa.concat_tables([REMEMBERED.empty_table(), *(result.remembered for result in results)]),
    )


class HasCosts(Protocol):
    @property
    def costs(self) -> CallCosts: ...


def total_costs(results: Iterable[HasCosts]) -> CallCosts:
    """Return the costs of functions in all results together."""
    total: CallCosts = {}
    for result in results:
        for function, (calls, seconds) in result.costs.items():
            before, spent = total.get(function, (0, 0.0))
            total[function] = before + calls, spent + seconds
    return total


_COSTS: Final = "costs"
_PROGRESS: Final = "progress"


@dataclass(frozen=True)
class PartFile:
    name: str

    @cached_property
    def _parts(self) -> list[str]:
        return self.name.split("-")

    @property
    def start(self) -> int:
        return int(self._parts[1])

    @property
    def stop(self) -> int:
        return int(self._parts[2])


@dataclass(frozen=True, slots=True, eq=False)
class StoredResult:
    recomputed: int
    files: list[tuple[str, int]]
    """Names of the files and the number of values in each, in the unit's order."""
    costs: CallCosts = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(count for _, count in self.files)


@dataclass(frozen=True, slots=True)
class RunStore:
    """Files of one update's runs. All methods block."""

    files: SharedFiles
    key: str
    """Key of 64 hexadecimal digits."""

    def put_part(self, digest: str, start: int, stop: int, result: UnitResult) -> str:
        name = f"{digest}-{start}-{stop}-{uuid4().hex}"
        self.files.put(self._path(name), partial(_write_result, result))
        return name

    def get_part(self, name: str) -> UnitResult:
        return decode_result(self.files.get_buffer(self._path(name)))

    def results_of(self, outcome: UnitResult | StoredResult) -> list[UnitResult]:
        """Return the results of a unit, part by part. Raises `FileNotFoundError`."""
        if isinstance(outcome, UnitResult):
            return [outcome]
        return [self.get_part(name) for name, _ in outcome.files]

    def put_unit(self, digest: str, unit: bytes) -> None:
        self.files.put(self._path(f"{digest}.blob"), unit)

    def get_unit(self, digest: str) -> memoryview:
        return memoryview(self.files.get_buffer(self._path(f"{digest}.blob"))).cast("B")

    def put_costs(self, seconds: Mapping[tuple[str, str], float], name: str = _COSTS) -> None:
        """Store the estimates, so that later attempts cut the update into these units, too."""
        rows = [[*function, cost] for function, cost in seconds.items()]
        self.files.put(self._path(name), dumps(rows).encode())

    def costs(self, name: str = _COSTS) -> dict[tuple[str, str], float]:
        """Return the first attempt's estimates of calls, in seconds; empty if it stored none."""
        try:
            rows = loads(bytes(self.files.get(self._path(name))))
        except FileNotFoundError:
            return {}
        return {(runtime, code): cost for runtime, code, cost in rows}

    def names(self) -> list[str]:
        return self.files.list_names(self._path(""))

    def put_progress(self, run: str, digest: str, done: int) -> None:
        path = self._path(f"{_PROGRESS}/{run}-{digest}")
        self.files.put(path, str(done).encode(), durable=False)

    def progress(self, run: str) -> dict[str, int]:
        """Return the number of values done of each of the run's units that report it."""
        done = {}
        for name in self.files.list_names(self._path(_PROGRESS)):
            if name.startswith(f"{run}-"):
                with suppress(FileNotFoundError):
                    done_values = self.files.get(self._path(f"{_PROGRESS}/{name}"))
                    done[name.removeprefix(f"{run}-")] = int(done_values)
        return done

    def clear(self, keep: Sequence[str] = ()) -> None:
        """Delete all, or all but these files and the batch that names them."""
        if not keep:
            self.files.delete_directory(self._path(""))
            return
        for name in set(self.names()).difference(keep, [_PROGRESS]):
            if not is_batch(name):
                self.files.delete(self._path(name))
        self.files.delete_directory(self._path(_PROGRESS))

    def _path(self, name: str) -> str:
        return f"{run_directory(self.key)}/{name}".rstrip("/")


def contiguous_parts(names: Sequence[str], digest: str) -> list[PartFile]:
    """Return the files among `names` with this unit's results from its first value on, in order."""
    by_start: dict[int, PartFile] = {}
    for name in names:
        if name.startswith(f"{digest}-"):
            part = PartFile(name)
            best = by_start.get(part.start)
            if best is None or part.stop > best.stop:
                by_start[part.start] = part
    parts: list[PartFile] = []
    stop = 0
    while stop in by_start:
        parts.append(by_start[stop])
        stop = parts[-1].stop
    return parts


def locate(
    result: UnitResult | StoredResult, positions: NDArray[Any], store: RunStore | None
) -> UnitResult:
    """Return the result of a part of a unit, with the positions of the whole."""
    if isinstance(result, StoredResult):
        parts = store.results_of(result) if store else []
        tables = [SCHEMA.empty_table(), *(part.table.replace_schema_metadata() for part in parts)]
        read = replace(join_results(parts, pa.concat_tables(tables)), recomputed=result.recomputed)
        return locate(read, positions, store)
    table = result.table.replace_schema_metadata()
    moved = positions[table.column("place").to_numpy()]
    table = table.set_column(3, SCHEMA.field(3), pa.array(moved, pa.int32()))
    return replace(result, table=table)


def restore_order(results: Sequence[UnitResult], order: NDArray[np.int64]) -> UnitResult:
    """Return the result of a unit from its parts', which have positions of another order.

    `order`: the position in the unit of each value in that order.
    """
    table = pa.concat_tables([SCHEMA.empty_table(), *(each.table for each in results)])
    positions = order[table.column("place").to_numpy()]
    table = table.set_column(3, SCHEMA.field(3), pa.array(positions, pa.int32()))
    return join_results(results, table.take(np.argsort(positions)))
