"""The definitions of some values, traced through the commits that are kept of a change set.

The history of a branch begins with that of the change set that it was forked from. Where head's
changes reached it, the edits are those in head's log.
"""

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSetId, RequestId
from rebaser_server.commit_log.state import SMALL_BATCH
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent, NotRetained
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.provenance.tracked_definitions import Attribution, TrackedDefinitions
from rebaser_server.runtime.tasks import compute_in_turn


class CommittedEdit(NamedTuple):
    """What one commit of a log did."""

    change_set_id: ChangeSetId
    commit: int
    entry: CommitV1
    from_head: int | None = None
    """Of a commit that brought head's changes to a branch: head's last commit in it."""
    begins_update: bool = False
    """Whether no update was due before it."""


class DefinitionHistory:
    """Definitions of `values` and `funcs`, brought forward from commit to commit."""

    def __init__(
        self, loader: StateLoader, values: Collection[str], funcs: Collection[str]
    ) -> None:
        self._loader = loader
        self._workspace = str(loader.change_set.workspace_id)
        self._ids = values, funcs
        self._commit = 0
        self._is_due = False
        self.begins = 0
        """The commit behind which the history begins; 0 if it is all there was."""
        self.definitions = TrackedDefinitions[CommittedEdit](values, funcs)
        self.requests: dict[int, tuple[int, RequestId]] = {}
        """Sequence of a request that left values to recompute → its commit, and that one's id."""

    async def begin(self) -> None:
        """Go to the earliest commit that is kept.

        Raises:
            NotRetained, HistoryInconsistent: as `StateLoader.load`.
        """
        self.begins = self._commit = await self._loader.earliest_commit()
        if self.begins:
            state = (await self._loader.load(self.begins)).state
            self._is_due = state.control.dvu_due
            await compute_in_turn(self._workspace, self.definitions.begin, graph_of(state))
            return
        first = await self._loader.log.oldest()
        if first is None or first.control.branch is None:
            return
        base = first.control.branch.base
        origin = await self._of(base.change_set_id)
        try:
            await origin.begin()
            await origin.advance(base.commit)
        except (NotRetained, HistoryInconsistent):
            self.definitions.begin_unknown()
        else:
            self.definitions = origin.definitions

    async def advance(self, until: int) -> None:
        """Go on to a commit.

        Raises:
            HistoryInconsistent: commits are missing.
            MissingBatch, DamagedBatch, MalformedMessage: a batch cannot be read.
        """
        if until < self._commit:
            raise NotRetained(
                f"{self._loader.change_set}: what was before commit {self._commit} is not kept"
            )
        change_set_id = self._loader.change_set.change_set_id
        async for sequence, entry in self._loader.log.entries(self._commit, until):
            handled, was_due = entry.handled, self._is_due
            self._commit, self._is_due = sequence, entry.control.dvu_due
            if handled is None or handled.updates is None or handled.covers is not None:
                continue
            if entry.control.dirty_sequence == handled.sequence:
                self.requests[handled.sequence] = sequence, entry.id
            batch = await self._loader.batches.fetch(handled.updates, handled.id)
            branch, from_head = entry.control.branch, None
            if batch.head_side is not None and branch is not None:
                from_head = branch.cursor
            edit = CommittedEdit(change_set_id, sequence, entry, from_head, not was_due)
            if len(batch.updates) < SMALL_BATCH:
                self.definitions.apply(batch.updates, edit)
            else:
                await compute_in_turn(self._workspace, self.definitions.apply, batch.updates, edit)

    async def attributions(self) -> AsyncIterator[Attribution[CommittedEdit]]:
        """Each part of the definitions with its edit; of one of head's, the one in head's log."""
        merged: dict[int, list[Attribution[CommittedEdit]]] = {}
        for attribution in await self.listed():
            if attribution.edit.from_head is None:
                yield attribution
            else:
                merged.setdefault(attribution.edit.from_head, []).append(attribution)
        async for attribution in self._in_head(merged):
            yield attribution

    async def _in_head(
        self, merged: dict[int, list[Attribution[CommittedEdit]]]
    ) -> AsyncIterator[Attribution[CommittedEdit]]:
        """Those edits of head that the merges up to these commits of head brought."""
        head: DefinitionHistory | None = None
        for cursor, attributions in sorted(merged.items()):
            try:
                head = head or await self._head_of(attributions[0].edit)
                await head.advance(cursor)
                known = {_part(each): each for each in await head.listed()}
            except (NotRetained, HistoryInconsistent):
                known = {}
            for each in attributions:
                yield known.get(_part(each), each)

    async def _head_of(self, edit: CommittedEdit) -> "DefinitionHistory":
        branch = edit.entry.control.branch
        if branch is None:
            raise HistoryInconsistent(f"commit {edit.commit} is of no branch")
        history = await self._of(branch.head)
        await history.begin()
        return history

    async def _of(self, change_set_id: ChangeSetId) -> "DefinitionHistory":
        loader = self._loader.sibling(change_set_id)
        return await compute_in_turn(self._workspace, DefinitionHistory, loader, *self._ids)

    async def listed(self) -> list[Attribution[CommittedEdit]]:
        """Each part of the definitions with its edit in this log."""
        return await compute_in_turn(self._workspace, list, self.definitions.attributions())


def _part(attribution: Attribution[CommittedEdit]) -> tuple[str, str, str]:
    return attribution.id, attribution.part, attribution.lost
