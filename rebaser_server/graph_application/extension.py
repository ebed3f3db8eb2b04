"""The protocol of an extension: another kind of values that a graph may have, such as tables."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Never

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.garbage_collection import Holdings
from rebaser_server.commit_log.state import Batch
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.compute.results import UnitResult
from rebaser_server.values.graph import Graph

OpenLoader = Callable[[ChangeSet], StateLoader]
"""Function that opens the state of a change set without a run in this process."""


class Extension:
    """What a kind of values brings. A graph without any takes this class as it is."""

    holdings = Holdings()
    """Files in the store that its values name."""

    async def adopt(self, change_set: ChangeSet, batch: Batch) -> str | None:
        """Take into the store what a client's batch refers to; see `Application.adopt`."""
        del change_set, batch
        return None

    def forget(self, change_set: ChangeSet, graph: Graph, value_ids: Collection[str]) -> None:
        """Let these values be computed, and not be found. Blocks; the caller holds the graph."""

    def on_plan(self, change_set: ChangeSet, graph: Graph) -> None:
        """Note what an update may compute. Blocks; the caller holds the graph."""

    async def on_results(self, change_set: ChangeSet, results: Iterable[UnitResult]) -> None:
        """Note what the update has computed. To iterate over the results blocks."""

    def on_commit(self, loader: StateLoader) -> None:
        """Note a commit, or the beginning of a run; see `Application.on_commit`."""

    async def run(self, open_loader: OpenLoader) -> Never:
        """Work beside all change sets of the process, until cancelled."""
        del open_loader
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")
