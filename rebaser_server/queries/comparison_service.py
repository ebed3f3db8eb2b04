"""Answer what applying a branch, or undoing a commit, would change; nothing is changed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from itertools import chain

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import DifferenceQueryV1, DifferenceReplyV2, RevertQueryV1, RevertReplyV1
from rebaser_core.versioning import WireModel, accepted_version
from rebaser_server.queries.diff import Diff, diff
from rebaser_server.queries.revert import plan_revert
from rebaser_server.queries.selection import TooManyValues
from rebaser_server.queries.state_cache import OpenLoader
from rebaser_server.runtime.tasks import compute_in_turn


class ComparisonService:
    """Loads whole change sets to compare them: for one question at a time."""

    def __init__(self, open_loader: OpenLoader, max_bytes: int) -> None:
        """`max_bytes`: octets of an answer, more or less."""
        self._open_loader = open_loader
        self._max_bytes = max_bytes
        self._comparing = asyncio.Lock()

    async def diff(self, change_set: ChangeSet, *, computed: bool) -> Diff:
        """As `diff.diff`."""
        async with self._comparing:
            return await diff(self._open_loader(change_set), computed=computed)

    async def difference(
        self, query: DifferenceQueryV1, headers: Mapping[str, str]
    ) -> AsyncGenerator[DifferenceReplyV2, None]:
        """The one reply to a query; an asker of version 1 learns only what is known.

        Raises:
            NotABranch: there is no head to compare with.
            NotRetained, HistoryInconsistent: as `StateLoader.load`.
            TooManyValues: the difference is too large for a reply.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        found = await self.diff(change_set, computed=query.computed)
        parts = chain(found.updates, found.changes, found.computed or ())
        await compute_in_turn(str(query.workspace_id), self._require_few_octets, parts)
        computed, is_old = found.computed, accepted_version(headers) < DifferenceReplyV2.VERSION
        if computed is not None and is_old:
            no_status = {"head_status": None, "branch_status": None}
            computed = [each.model_copy(update=no_status) for each in computed]
        yield DifferenceReplyV2.model_construct(
            id=query.id,
            commit=found.commit,
            digest=found.digest,
            updates=found.updates,
            changes=found.changes,
            computed=computed,
            error=None,
            behind=None if is_old else found.behind,
            uncomputed=None if is_old else found.uncomputed,
        )

    async def revert(
        self, query: RevertQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[RevertReplyV1, None]:
        """The one reply to a query.

        Raises:
            NotRetained: the log does not go back so far.
            NotRevertible: there is no such commit, or it changed no definition.
            TooManyValues: the batch is too large for a reply.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        async with self._comparing:
            loader = self._open_loader(change_set)
            plan = await plan_revert(loader, query.commit, force=query.force)
        await compute_in_turn(str(query.workspace_id), self._require_few_octets, plan.updates)
        yield RevertReplyV1.model_construct(
            id=query.id, now=plan.now, updates=plan.updates, skipped=plan.skipped, error=None
        )

    def _require_few_octets(self, parts: Iterable[WireModel]) -> None:
        octets = 0
        for part in parts:
            octets += len(json.dumps(part.to_wire()))
            if octets > self._max_bytes:
                raise TooManyValues(
                    f"more than {self._max_bytes:,} octets, too many for one answer: read the "
                    "change set where its store is seen"
                )


def no_difference(query_id: RequestId, why: str) -> DifferenceReplyV2:
    """The reply that says why there is no answer."""
    return DifferenceReplyV2(id=query_id, commit=0, error=why)


def no_revert(query_id: RequestId, why: str) -> RevertReplyV1:
    """The reply that says why there is no answer."""
    return RevertReplyV1(id=query_id, now=0, error=why)
