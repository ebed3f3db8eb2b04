"""The content of a change set: a graph of values, and the edits of a branch on head's."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from rebaser_core.commits import ControlState
from rebaser_core.updates import PutValue
from rebaser_server.commit_log.state import SMALL_BATCH, Batch, Content, ResultFiles, State
from rebaser_server.compute.results import RunStore
from rebaser_server.errors import HistoryInconsistent, MissingBatch
from rebaser_server.files import shared_files
from rebaser_server.values.bulk_rebase import RebaseResult
from rebaser_server.values.edits import Edits, Preimage, edits_from_json, edits_to_json
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import apply_result_table, rebase

T = TypeVar("T")

_REFERRED: Final = "tables"
"""Key under which a checkpoint's metadata lists the keys of the files that its values name."""


class BranchOrigin(NamedTuple):
    """Origin of a branch, while its own log does not have it."""

    cursor: int
    """Commit of head's log that its base included."""
    lost: str | None = None
    """Reason why the base cannot be loaded; the branch is empty then."""
    code: str = ""
    """Code that the base's values were computed with, see `State.code`."""


@dataclass(slots=True)
class GraphContent(Content):
    """A `Content`: values, and what makes them a branch."""

    graph: Graph = field(default_factory=Graph)
    edits: Edits | None = None
    """Edits of a branch; None for a change set that is no branch."""
    origin: BranchOrigin | None = None
    """Origin of a branch that was loaded from its base, or from a checkpoint that has an origin."""

    async def apply(self, sequence: int, batch: Batch, covers: int | None = None) -> RebaseResult:
        """Apply a batch, in a thread if that takes long."""
        if len(batch.updates) < SMALL_BATCH and batch.results is None:
            return self.apply_now(sequence, batch, covers)
        return await asyncio.to_thread(self.apply_now, sequence, batch, covers)

    def apply_now(self, sequence: int, batch: Batch, covers: int | None = None) -> RebaseResult:
        """Rebase a batch onto the graph; a branch remembers which updates were its own edits.

        A batch with a `head_side` brings head's changes to the branch, and is no edit. Updates of a
        client's batch that change nothing are not performed.

        Raises:
            MissingBatch: results that it names are missing; nothing was changed.
        """
        if covers is not None and batch.results is not None:
            return apply_result_table(self.graph, read_results(batch.results), covers)
        if covers is not None:
            return rebase(self.graph, sequence, batch.updates, covers)
        if self.edits is None:
            repeated = _always if batch.from_client else None
            return rebase(self.graph, sequence, batch.updates, repeated=repeated)
        if batch.head_side is not None:
            done = rebase(self.graph, sequence, batch.updates)
            self.edits.update_theirs(batch.head_side)
            return done
        return self._apply_edit(self.edits, sequence, batch)

    def _apply_edit(self, edits: Edits, sequence: int, batch: Batch) -> RebaseResult:
        before = Preimage.of(self.graph, batch.updates)
        repeated = edits.has if batch.from_client else None
        done = rebase(self.graph, sequence, batch.updates, repeated=repeated)
        edits.add(done.updates, before)
        return done

    def complete(self, covers: int) -> None:
        """Forget the roots that a dependent values update has covered."""
        self.graph.clear_roots(covers)

    def cursor(self, control: ControlState) -> int:
        """Return the last commit of head's log that a branch includes."""
        known = None if control.branch is None else control.branch.cursor
        return known if known is not None else self.origin.cursor if self.origin else 0

    def is_unstarted_branch(self, control: ControlState) -> bool:
        """Whether it is a branch whose own log does not yet say where it began."""
        branch = control.branch
        return self.origin is not None and branch is not None and branch.cursor is None

    def metadata(self, control: ControlState) -> dict[str, Any]:
        """Return all but the graph, as plain data for a checkpoint."""
        found: dict[str, Any] = {}
        if keys := self.graph.referred_keys():
            found[_REFERRED] = keys  # the collector of garbage looks for keys in all of this
        if self.edits is not None:
            found["edits"] = edits_to_json(self.edits, self.graph)
        if self.origin is not None and self.is_unstarted_branch(control):
            found["origin"] = self.origin.cursor
        return found

    @classmethod
    def from_checkpoint(cls, graph: Graph, metadata: dict[str, Any]) -> "GraphContent":
        graph.texts.may_refer = _REFERRED in metadata
        edits = edits_from_json(metadata["edits"], graph) if "edits" in metadata else None
        origin = BranchOrigin(metadata["origin"]) if "origin" in metadata else None
        return cls(graph, edits, origin)


def _always(_: PutValue) -> bool:
    return True


def require(part: T | None, name: str) -> T:
    """Return a part of a branch's state; raise `HistoryInconsistent` if it is missing."""
    if part is None:
        raise HistoryInconsistent(f"a branch without {name}")
    return part


def content_of(state: State) -> GraphContent:
    return as_graph(state.content)


def as_graph(content: Content) -> GraphContent:
    """The content as this application's."""
    if not isinstance(content, GraphContent):
        raise TypeError(f"{type(content).__name__} is not the content of a value graph")
    return content


def graph_of(state: State) -> Graph:
    return content_of(state).graph


def read_results(results: ResultFiles) -> pa.Table:
    """Results in columns `id`, `status` and `text`, see `UnitResult`. Blocks.

    Raises:
        MissingBatch: a file is missing.
    """
    store = RunStore(shared_files(results.files), results.run)
    try:
        tables = [store.get_part(name).table for name in results.names]
    except FileNotFoundError as error:
        raise MissingBatch(f"no results at {error}") from error
    return pa.concat_tables(
        [table.select(["id", "status", "text"]).replace_schema_metadata() for table in tables]
    )
