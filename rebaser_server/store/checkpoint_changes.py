"""What a checkpoint writes: the changes of a graph since the checkpoint before it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_server.store.row_digest import NO_ROWS, RowDigest
from rebaser_server.store.table_schema import SealedRows, rows_for, select_rows
from rebaser_server.values.graph import Graph, GraphSnapshot

_FEW: Final = 4_096
_PART: Final = 64
"""With up to `_FEW` changes, or one for so many values, making their rows costs no more than a
snapshot of the graph."""


@dataclass(frozen=True, slots=True)
class CheckpointChanges:
    """What a checkpoint writes: taken from a graph at one moment, written later."""

    commit: int
    make_rows: Callable[[], Iterable[pa.RecordBatch]]
    """All but the head. Reading takes long if they are many; the graph may change meanwhile."""
    metadata: bytes
    """JSON; what the head says."""
    count: int
    whole: bool
    """The rows are complete: they replace the table's rows and the past."""
    base: int = 0
    """The commit of the checkpoint that the rows are added to; 0 if that is not known."""
    values: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """The touched values, as indices into the graph."""
    funcs: frozenset[str] = frozenset()

    def sealed(self, before: RowDigest = NO_ROWS) -> SealedRows:
        """The rows with their head; `before`: the digest of those that the table has had."""
        return SealedRows(self.make_rows(), self.metadata, self.commit, before)

    def __len__(self) -> int:
        return self.count


def take_changes(
    graph: Graph, commit: int, metadata: dict[str, Any], *, whole: bool, base: int = 0
) -> CheckpointChanges:
    """Take what changed since the last call, or everything; afterwards no value is touched."""
    make_rows: Callable[[], Iterable[pa.RecordBatch]]
    selection, encoded = select_rows(graph, whole=whole), to_json(metadata)
    if len(selection.indices) > max(_FEW, len(graph.columns) // _PART):
        make_rows = partial(rows_for, GraphSnapshot(graph), selection, commit)
    else:
        make_rows = list(rows_for(graph, selection, commit)).copy
    count = len(selection.indices) + len(selection.funcs) + 1
    touched, funcs = graph.touched.indices(), frozenset(graph.touched_funcs)
    graph.touched.clear()
    graph.touched_funcs.clear()
    graph.compact()
    return CheckpointChanges(commit, make_rows, encoded, count, whole, base, touched, funcs)


def restore_touched(graph: Graph, changes: CheckpointChanges) -> None:
    """Mark these changes as touched again: they may not have been written."""
    graph.touched.mark_all(changes.values)
    graph.touched_funcs |= changes.funcs
