"""The protocol of an extension: another kind of values that a graph may have, such as tables."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Never

from rebaser_core.ids import ChangeSet
from rebaser_core.updates import PutFunc
from rebaser_server.commit_log.garbage_collection import Holdings
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Executor
from rebaser_server.runtime.tasks import wait_forever
from rebaser_server.values.graph import Graph

OpenLoader = Callable[[ChangeSet], StateLoader]
"""Function that opens the state of a change set without a run in this process."""


class Extension:
    """Parts that a kind of values brings. A graph without any takes this class as it is."""

    runtimes: Collection[str] = ()
    """Runtimes of the functions that compute such values."""
    executor: Executor | None = None
    """Executor of units that have such functions."""
    holdings = Holdings()
    """Files in the store that such values name."""
    on_commit: Callable[[StateLoader], None] | None = None
    """Called after a commit, and at the beginning of a run; see `Application.on_commit`."""
    on_plan: Callable[[ChangeSet, Graph], None] | None = None
    """Called with what an update may compute. May block; the caller holds the graph."""
    on_results: Callable[[ChangeSet, Iterable[UnitResult]], None] | None = None
    """Called with what an update has computed. May block, and so does the iterable."""

    async def adopt(
        self, change_set: ChangeSet, functions: Sequence[PutFunc], references: Sequence[Any]
    ) -> str | None:
        """Take into the store what a client's batch refers to; see `Application.adopt`.

        Args:
            change_set: the one that the batch is for.
            functions: those of `runtimes` that the batch puts.
            references: values of the batch that have references, or claim to.
        """
        del change_set, functions, references
        return None

    def forget(self, change_set: ChangeSet, graph: Graph, value_ids: Collection[str]) -> None:
        """Let these values be computed, and not be found. Blocks; the caller holds the graph."""

    async def run(self, open_loader: OpenLoader) -> Never:
        """Work beside all change sets of the process, until cancelled."""
        del open_loader
        await wait_forever()
