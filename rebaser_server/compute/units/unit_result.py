"""What became of a unit, as columns: only the values that are not what they were.

Encoded it is an Arrow IPC stream of one record batch, see `SCHEMA`, which any reader of Arrow
can read as it is; the schema's metadata has what belongs to no single value, under `METADATA`
as JSON: `recomputed`, and `costs` as rows of runtime, code, calls, seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.units.buffers import STRING_TYPE
from rebaser_server.compute.units.work_unit import OK, STATUSES
from rebaser_server.values.canonical_json import dumps, loads

SCHEMA: Final = pa.schema(
    [
        pa.field("id", STRING_TYPE, nullable=False),
        pa.field("status", pa.uint8(), nullable=False),  # an index into `STATUSES`, not PENDING
        pa.field("text", STRING_TYPE, nullable=False),  # as `WorkUnit.texts` has it
        pa.field("place", pa.int32(), nullable=False),  # in the unit's columns, ascending
    ]
)
METADATA: Final = b"rebaser"

ValueResult = tuple[str, str, Any]
"""Value id and `"ok"`, value | `"failed"`, message | `"blocked"`, id of the first input that is
failed or blocked."""

CallCosts = dict[tuple[str, str], tuple[int, float]]
"""What calling functions took: runtime and code → how many values, how many seconds in all."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitResult:
    """What became of a unit."""

    recomputed: int
    """Functions called, or found missing or blocked."""
    table: pa.Table
    """Only values that are not what they were, in the unit's order. Columns as `SCHEMA` has them,
    in chunks."""
    costs: CallCosts = field(default_factory=dict)

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
        """Value by value, for those that are few."""
        columns = zip(
            self.ids.to_pylist(), self.statuses.tolist(), self.texts.to_pylist(), strict=True
        )
        return [
            (value_id, STATUSES[status], loads(text) if status == OK else text)
            for value_id, status, text in columns
        ]


def write_result(result: UnitResult, sink: Any) -> None:
    """Write it, encoded, to what Arrow can write to."""
    metadata = {
        "recomputed": result.recomputed,
        "costs": [[*function, *cost] for function, cost in result.costs.items()],
    }
    table = result.table.replace_schema_metadata({METADATA: dumps(metadata)})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def encode_result(result: UnitResult) -> pa.Buffer:
    size = pa.MockOutputStream()
    write_result(result, size)
    # Memory of Arrow's pool, which a stream that grows would take several times over.
    encoded = pa.allocate_buffer(size.size())
    write_result(result, pa.FixedSizeBufferWriter(encoded))
    return encoded


def decode_result(data: bytes | memoryview | pa.Buffer) -> UnitResult:
    """The result; its table shares the memory of `data`.

    What releases before 64-bit offsets wrote is read, too.
    """
    table = pa.ipc.open_stream(data).read_all()
    metadata = loads(table.schema.metadata[METADATA])
    if table.schema != SCHEMA:
        table = table.cast(SCHEMA)
    costs = {(runtime, code): (calls, spent) for runtime, code, calls, spent in metadata["costs"]}
    return UnitResult(metadata["recomputed"], table, costs)


class HasCosts(Protocol):
    @property
    def costs(self) -> CallCosts: ...


def total_costs(results: Iterable[HasCosts]) -> CallCosts:
    """What functions took in all of these together."""
    total: CallCosts = {}
    for result in results:
        for function, (calls, seconds) in result.costs.items():
            before, spent = total.get(function, (0, 0.0))
            total[function] = before + calls, spent + seconds
    return total
