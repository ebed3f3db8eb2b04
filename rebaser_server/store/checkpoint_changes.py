"""What a checkpoint writes: the changes of a graph since the checkpoint before it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.store.table_schema import rows_of
from rebaser_server.values.graph import Graph


@dataclass(frozen=True, slots=True)
class CheckpointChanges:
    """What a checkpoint writes: taken from a graph at one moment, written later."""

    commit: int
    rows: pa.Table
    whole: bool
    """The rows are complete: they replace the table's rows and the past."""
    base: int = 0
    """The commit of the checkpoint that the rows are added to; 0 if that is not known."""
    values: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """The touched values, as indices into the graph."""
    funcs: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return int(self.rows.num_rows)


def take_changes(
    graph: Graph, commit: int, metadata: dict[str, Any], *, whole: bool, base: int = 0
) -> CheckpointChanges:
    """Take what changed since the last call, or everything; afterwards no value is touched."""
    rows = rows_of(graph, metadata, commit, whole=whole)
    changes = CheckpointChanges(
        commit, rows, whole, base, graph.touched.indices(), frozenset(graph.touched_funcs)
    )
    graph.touched.clear()
    graph.touched_funcs.clear()
    graph.compact()
    return changes


def restore_touched(graph: Graph, changes: CheckpointChanges) -> None:
    """Mark these changes as touched again: they may not have been written."""
    graph.touched.mark_all(changes.values)
    graph.touched_funcs |= changes.funcs
