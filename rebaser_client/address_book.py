"""Addresses: how people name a change set, and which one in the registry that is.

`shop` is the head of the workspace `shop`, and `shop/winter` its branch `winter`; `shop/head` is
its head, too. An id stands for a name anywhere, and so does a part of an id that no other one has:
its beginning, its end after `…`, or both. Names are compared first, then parts of ids.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rebaser_client.errors import AmbiguousAddress, NameTaken, NoSuchChangeSet
from rebaser_client.workspace_catalog import CLOSED_STATUSES, WorkspaceCatalog
from rebaser_core.errors import offer
from rebaser_core.ids import CANONICAL, ChangeSet, ChangeSetId, WorkspaceId, has_part, is_part
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetStatus,
    WorkspaceRecordV1,
)

HEAD: Final = "head"
"""Names a workspace's head, where a change set of the workspace is named."""
_is_id: Final = re.compile(CANONICAL).fullmatch


@dataclass(frozen=True, slots=True)
class AddressedChangeSet:
    """A registered change set, with its workspace."""

    workspace: WorkspaceRecordV1
    record: ChangeSetRecordV1

    @property
    def change_set(self) -> ChangeSet:
        return ChangeSet(self.record.workspace_id, self.record.change_set_id)

    @property
    def address(self) -> str:
        """`shop` or `shop/winter`."""
        if self.record.kind is ChangeSetKind.HEAD:
            return self.workspace.name
        return f"{self.workspace.name}/{self.record.name}"

    @property
    def ended(self) -> str | None:
        """What became of a closed change set, as a sentence; None if it is open."""
        record = self.record
        if record.standing not in CLOSED_STATUSES:
            return None
        how = record.standing.value
        applied = record.application if record.standing is ChangeSetStatus.APPLIED else None
        if applied is not None and applied.commit is not None:
            how += f" as commit {applied.commit} of {self.workspace.name!r}"
        when = f", {record.closed_at}" if record.closed_at else ""
        return f"{self.address!r} was {how}{when}"


class AddressBook:
    """Finds what an address names; every coroutine may be cancelled and repeated.

    Whole ids cost two reads or three. A name costs a list of all workspaces and one of a
    workspace's change sets, which takes the permissions of an operator.
    """

    def __init__(self, catalog: WorkspaceCatalog) -> None:
        self._catalog = catalog
        self._registry = catalog.registry

    async def find(self, address: str, *, closed: bool = False) -> AddressedChangeSet:
        """The change set of that address. A closed one has no name, unless `closed`; it has its id.

        Raises:
            NoSuchChangeSet: there is none. The message offers similar names, or says how it ended.
            AmbiguousAddress: there are several; the message lists them.
        """
        found = await self._of_ids(address)
        if found is not None:
            return found
        workspaces = await self._catalog.all()
        candidates, problem = await self._of_names(address, workspaces)
        if not candidates and "/" not in address:
            candidates = await self._of_parts(address, workspaces)
        if not candidates:
            raise NoSuchChangeSet(problem or _no_workspace(address, workspaces))
        still_open = [each for each in candidates if each.ended is None]
        if not still_open and not closed and not _is_id(address.rpartition("/")[2].upper()):
            last = max(candidates, key=lambda each: each.record.closed_at or "")
            raise NoSuchChangeSet(last.ended or "")
        return _only(address, still_open or candidates)

    async def workspace(self, name_or_id: str) -> WorkspaceRecordV1:
        """The workspace of that name or id, or of that part of its id.

        Raises:
            NoSuchChangeSet: there is none. The message offers similar names.
            AmbiguousAddress: there are several; the message lists them.
        """
        workspaces = await self._catalog.all()
        found = [await self._head(each) for each in _workspaces(workspaces, name_or_id)]
        if not found:
            raise NoSuchChangeSet(_no_workspace(name_or_id, workspaces))
        return _only(name_or_id, [each for each in found if each.ended is None] or found).workspace

    async def all(self) -> list[AddressedChangeSet]:
        """All open change sets."""
        workspaces = {each.workspace_id: each for each in await self._catalog.all()}
        records = {r.change_set_id: r async for r in self._registry.change_sets(None)}
        return [
            AddressedChangeSet(workspaces[record.workspace_id], record)
            for record in records.values()
            if record.workspace_id in workspaces and record.standing not in CLOSED_STATUSES
        ]

    async def address_of(self, change_set: ChangeSet | tuple[str, str]) -> str:
        """The address of a registered change set; of another one its ids, which are one, too."""
        change_set = ChangeSet.of(*change_set)
        try:
            workspace = await self._registry.workspace(change_set.workspace_id)
            record = await self._registry.change_set(change_set)
        except NoSuchChangeSet:
            return "/".join(map(str, change_set))
        return AddressedChangeSet(workspace, record).address

    async def name_of(self, workspace: WorkspaceId | str) -> str:
        """The name of a registered workspace; of another one its id."""
        workspace = WorkspaceId.of(workspace, "workspace")
        try:
            return (await self._registry.workspace(workspace)).name
        except NoSuchChangeSet:
            return str(workspace)

    async def check_free(self, name: str, workspace: WorkspaceId | str | None = None) -> None:
        """Check that no workspace has the name; or no open change set of `workspace`, if given.

        Of two that are created at the same moment both may get it: then addresses take ids.

        Raises:
            NameTaken: one has it; or the name means something else in addresses.
        """
        if name == "." or (name == HEAD and workspace is not None):
            raise NameTaken(f"{name!r} means something else in addresses: choose another name")
        if workspace is not None:
            workspace = WorkspaceId.of(workspace, "workspace")
            taken = [r for r in await self._catalog.change_sets(workspace) if r.name == name]
            if taken:
                raise NameTaken(f"an open change set is called {name!r}: {taken[0].change_set_id}")
            return
        for each in await self._catalog.all():
            if each.name == name and (await self._head(each)).ended is None:
                raise NameTaken(f"a workspace is called {name!r}: {each.workspace_id}")

    async def _head(self, workspace: WorkspaceRecordV1) -> AddressedChangeSet:
        change_set = ChangeSet(workspace.workspace_id, workspace.head)
        return AddressedChangeSet(workspace, await self._registry.change_set(change_set))

    async def _of_ids(self, address: str) -> AddressedChangeSet | None:
        """The change set of one whole id or of two; None if it is not registered, or no id."""
        first, _, second = address.upper().partition("/")
        if not _is_id(first) or (second and not _is_id(second)):
            return None
        workspace_id, change_set_id = (
            WorkspaceId.from_str(first),
            ChangeSetId.from_str(second or first),
        )
        try:
            if not second and await self._registry.has_workspace(workspace_id):
                return await self._head(await self._registry.workspace(workspace_id))
            if not second:
                workspace_id = await self._registry.workspace_of(change_set_id) or workspace_id
            record = await self._registry.change_set(ChangeSet(workspace_id, change_set_id))
            return AddressedChangeSet(await self._registry.workspace(workspace_id), record)
        except NoSuchChangeSet:
            return None

    async def _of_names(
        self, address: str, workspaces: list[WorkspaceRecordV1]
    ) -> tuple[list[AddressedChangeSet], str | None]:
        """Those that the address may name; if none, why not, where a workspace is known."""
        problem = None
        found = [await self._head(each) for each in workspaces if each.name == address]
        for left, right in _readings(address):
            for workspace in _workspaces(workspaces, left):
                records = await self._catalog.change_sets(workspace.workspace_id, closed=True)
                named = _change_sets(records, right)
                found += [AddressedChangeSet(workspace, record) for record in named]
                problem = f"workspace {workspace.name!r} has no change set {right!r}" + offer(
                    right, (r.name for r in records if r.standing not in CLOSED_STATUSES)
                )
        return found, problem

    async def _of_parts(
        self, text: str, workspaces: list[WorkspaceRecordV1]
    ) -> list[AddressedChangeSet]:
        """The heads of workspaces with such an id, and change sets with one."""
        if not is_part(text):
            return []
        found = [await self._head(each) for each in _workspaces(workspaces, text)]
        known = {each.workspace_id: each for each in workspaces}
        records = {r.change_set_id: r async for r in self._registry.change_sets(None)}
        return found + [
            AddressedChangeSet(known[record.workspace_id], record)
            for record in records.values()
            if has_part(str(record.change_set_id), text) and record.workspace_id in known
        ]


def _readings(address: str) -> Iterator[tuple[str, str]]:
    """The address as two names, either of which may have a slash itself."""
    for place, character in enumerate(address):
        if character == "/":
            yield address[:place], address[place + 1 :]


def _workspaces(workspaces: list[WorkspaceRecordV1], text: str) -> list[WorkspaceRecordV1]:
    named = [w for w in workspaces if w.name == text or str(w.workspace_id) == text.upper()]
    return named or [each for each in workspaces if has_part(str(each.workspace_id), text)]


def _change_sets(records: list[ChangeSetRecordV1], text: str) -> list[ChangeSetRecordV1]:
    named = [r for r in records if r.name == text or str(r.change_set_id) == text.upper()]
    if text == HEAD and not named:
        named = [each for each in records if each.kind is ChangeSetKind.HEAD]
    return named or [each for each in records if has_part(str(each.change_set_id), text)]


def _only(address: str, candidates: list[AddressedChangeSet]) -> AddressedChangeSet:
    different = {each.change_set: each for each in candidates}
    if len(different) == 1:
        return candidates[0]
    listed = ", ".join(
        f"{each.address!r} ({'/'.join(map(str, each.change_set))})" for each in candidates
    )
    raise AmbiguousAddress(f"{address!r} may be any of these: {listed}")


def _no_workspace(address: str, workspaces: list[WorkspaceRecordV1]) -> str:
    name = address.partition("/")[0]
    return f"there is no workspace {name!r}" + offer(name, (each.name for each in workspaces))
