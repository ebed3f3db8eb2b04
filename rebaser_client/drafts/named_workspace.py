"""Workspaces and their branches by name."""

from typing import Final, Self

from rebaser_client.batch_enqueuer import BatchEnqueuer
from rebaser_client.drafts.differences import ValueDifferences
from rebaser_client.drafts.named_change_set import NamedChangeSet
from rebaser_client.errors import AlreadyRegistered, NoSuchChangeSet
from rebaser_client.outcomes.settlement import Settlement
from rebaser_client.queries.branch_difference import BranchDifference
from rebaser_client.workspaces import Workspaces


class NamedWorkspace(NamedChangeSet):
    """The head of a workspace; its branches are made from here."""

    async def create(self, *, exist_ok: bool = False) -> Self:
        """Register a workspace of that name, whose head is empty; return this one.

        Raises:
            AlreadyRegistered: there is one of that name, unless `exist_ok`.
        """
        if not await _exists(self, exist_ok=exist_ok):
            await self._workspaces.create(self.address)
        return self

    def branch(self, name: str) -> "NamedBranch":
        """The open branch of that name; its `fork` makes one. No I/O."""
        return NamedBranch(self._enqueuer, self._workspaces, self, name)


class NamedBranch(NamedChangeSet):
    """A branch of a workspace."""

    def __init__(
        self, enqueuer: BatchEnqueuer, workspaces: Workspaces, head: NamedWorkspace, name: str
    ) -> None:
        super().__init__(enqueuer, workspaces, f"{head.address}/{name}")
        self.head: Final = head
        self.name: Final = name

    async def fork(self, *, exist_ok: bool = False) -> Self:
        """Fork a branch of that name from head, as head is; return this one.

        Raises:
            AlreadyRegistered: an open change set has that name, unless `exist_ok`.
        """
        if not await _exists(self, exist_ok=exist_ok):
            record = await self._workspaces.fork((await self.head.ids()).workspace_id, self.name)
            await self._workspaces.refresh(record.workspace_id, record.change_set_id)
        return self

    async def difference(self, *, computed: bool = False) -> BranchDifference:
        """The edits that `apply` would bring to head; with `computed`, also the results.

        Raises: as `ChangeSetReader.difference`.
        """
        return await self._enqueuer.reader(*await self.ids()).difference(computed=computed)

    async def differences(self) -> ValueDifferences:
        """The values that differ from head's, sources and computed ones, as both are."""
        return ValueDifferences(await self.head.values(), await self.values())

    async def apply(self, *, reviewed: str | None = None) -> Settlement:
        """Have head take the branch's difference, and wait until head's values are computed.

        Raises:
            RequestRefused: see `Workspaces.apply`.
        """
        await self._workspaces.apply(*await self.ids(), reviewed=reviewed)
        return await self.head.settled()

    async def abandon(self) -> None:
        """Have the branch closed without effect on head."""
        await self._workspaces.abandon(*await self.ids())


async def _exists(change_set: NamedChangeSet, *, exist_ok: bool) -> bool:
    try:
        await change_set.ids()
    except NoSuchChangeSet:
        return False
    if exist_ok:
        return True
    raise AlreadyRegistered(f"{change_set.address!r} is there already; exist_ok=True uses it")
