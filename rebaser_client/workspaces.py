"""Registered workspaces and change sets: create, fork, list and find them.

Records are an index that Rebasers keep up to date.

An address is how people name a change set. `shop` is the head of the workspace `shop`, and
`shop/winter` its branch `winter`; `shop/head` is its head, too. An id stands for a name anywhere,
and so does a part of an id that no other id has: its beginning, its end after `…`, or both. Names
are compared first, then parts of ids.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rebaser_client.errors import AmbiguousAddress, NameTaken, RequestRefused
from rebaser_client.requests import RequestSender
from rebaser_core.calls import ServiceRecordV1
from rebaser_core.commits import ForkPoint
from rebaser_core.errors import NoSuchChangeSet, offer
from rebaser_core.ids import CANONICAL, ChangeSet, ChangeSetId, WorkspaceId, has_part, is_part
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetStatus,
    WorkspaceRecordV1,
)
from rebaser_core.registry import Registry, Workspace, new_branch, new_workspace

CLOSED_STATUSES: Final = (
    ChangeSetStatus.APPLIED,
    ChangeSetStatus.ABANDONED,
    ChangeSetStatus.DELETED,
)


class Workspaces:
    """Create, fork and delete change sets. Every method is safe to cancel and retry."""

    def __init__(self, sender: RequestSender) -> None:
        self._sender = sender
        streams = sender.streams
        self.registry = Registry(streams, by_key=streams.js.is_imported)

    async def create(
        self,
        name: str,
        *,
        workspace_id: WorkspaceId | str | None = None,
        head: ChangeSetId | str | None = None,
    ) -> Workspace:
        """Register a workspace with its head, which is empty unless it is a change set in use.

        A repeated call with these ids completes an earlier one.

        Raises:
            AlreadyRegistered: there is a workspace of that id with another head.
        """
        workspace = new_workspace(
            name,
            WorkspaceId() if workspace_id is None else WorkspaceId.of(workspace_id, "workspace_id"),
            ChangeSetId() if head is None else ChangeSetId.of(head, "head"),
            self._sender.options.author,
        )
        await self.registry.create_workspace(workspace.record)
        await self.registry.create_change_set(workspace.head)
        return workspace

    async def all(self) -> list[WorkspaceRecordV1]:
        """All workspaces, the oldest first."""
        found = {  # one that changes meanwhile comes twice
            record.workspace_id: record async for record in self.registry.workspaces()
        }
        return [*found.values()]

    async def services(self) -> list[ServiceRecordV1]:
        """Descriptions of all services that a worker ever served, by name."""
        found = {record.name: record async for record in self.registry.services()}
        return [found[name] for name in sorted(found)]

    async def change_sets(
        self, workspace_id: WorkspaceId | str, *, closed: bool = False
    ) -> list[ChangeSetRecordV1]:
        """The open change sets of the workspace, the oldest first; with `closed` all."""
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        found = {  # one that changes meanwhile comes twice
            record.change_set_id: record async for record in self.registry.change_sets(workspace_id)
        }
        wanted = (r for r in found.values() if closed or r.status not in CLOSED_STATUSES)
        return sorted(
            wanted, key=lambda record: (record.kind != ChangeSetKind.HEAD, record.created_at)
        )

    async def fork(
        self,
        workspace_id: WorkspaceId | str,
        name: str,
        *,
        base: ChangeSetId | str | None = None,
        commit: int | None = None,
        change_set_id: ChangeSetId | str | None = None,
    ) -> ChangeSetRecordV1:
        """Register a branch of head, or of another change set, as it is or was at a commit.

        The cost does not depend on the size. The branch gets its own state with its first request,
        or by `refresh`. From then on head's changes reach it. It begins with the edits of `base`,
        if that is a branch.

        Raises:
            NoSuchChangeSet: there is no such workspace, or `base` is not registered in it.
            QuotaExceeded: the workspace has as many change sets as it may have.
            AlreadyRegistered: another change set has `change_set_id`.
            RequestRefused: there is no such commit yet.
        """
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        branch = ChangeSetId()
        if change_set_id is not None:
            branch = ChangeSetId.of(change_set_id, "change_set_id")
        base = None if base is None else ChangeSetId.of(base, "base")
        workspace = await self.registry.workspace(workspace_id)
        await self.registry.check_quota(workspace_id, self._sender.options.limits.change_sets)
        parent = await self.registry.change_set(ChangeSet(workspace_id, base or workspace.head))
        point, author = await self._base(parent, commit), self._sender.options.author
        record = new_branch(name, workspace, branch, point, author)
        await self.registry.create_change_set(record)
        return record

    async def _base(self, parent: ChangeSetRecordV1, commit: int | None) -> ForkPoint:
        streams = self._sender.streams
        subject = streams.commits(ChangeSet(parent.workspace_id, parent.change_set_id))
        last = await streams.js.get_message(streams.commits_stream, last_by_subject=subject)
        if commit is None and last is None and parent.base is not None:
            return parent.base  # itself not more than a record yet
        newest = 0 if last is None else last.sequence
        if commit is not None and commit > newest:  # the branch would wait for it without end
            raise RequestRefused(f"the log ends at commit {newest}, before {commit}")
        return ForkPoint(
            change_set_id=parent.change_set_id, commit=newest if commit is None else commit
        )

    async def delete_workspace(self, workspace_id: WorkspaceId | str) -> None:
        """Delete all change sets of the workspace, head last, and the record with head's data.

        A repeated call goes on where the last one stopped. A branch that is forked meanwhile stays,
        and can be deleted by itself.

        Raises:
            NoSuchChangeSet: there is no such workspace.
            RequestRefused: a branch is on its way to head.
        """
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        head = ChangeSet(workspace_id, (await self.registry.workspace(workspace_id)).head)
        for record in reversed(await self.change_sets(workspace_id, closed=True)):
            change_set = ChangeSet(workspace_id, record.change_set_id)
            if change_set != head and not _is_deleted(record):
                await delete(self._sender, self.registry, change_set)
        if not _is_deleted(await self.registry.change_set(head)):
            await delete(self._sender, self.registry, head)


async def delete(sender: RequestSender, registry: Registry, change_set: ChangeSet) -> None:
    """Delete a change set, also a head; return once its record says so."""
    await sender.command(change_set, "delete")
    await registry.change_set_once(change_set, _is_deleted)


def _is_deleted(record: ChangeSetRecordV1) -> bool:
    return record.status == ChangeSetStatus.DELETED


HEAD: Final = "head"
"""Name of a workspace's head in the place of a change set's name."""
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
        """A sentence about the end of a closed change set; None if it is open."""
        record = self.record
        if record.status not in CLOSED_STATUSES:
            return None
        how = record.status.value
        applied = record.application if record.status is ChangeSetStatus.APPLIED else None
        if applied is not None and applied.commit is not None:
            how += f" as commit {applied.commit} of {self.workspace.name!r}"
        when = f", {record.closed_at}" if record.closed_at else ""
        return f"{self.address!r} was {how}{when}"


class AddressBook:
    """A finder of what an address names; every coroutine may be cancelled and repeated.

    Whole ids cost two reads or three. A name costs a list of all workspaces and one of a
    workspace's change sets, which takes the permissions of an operator.
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._registry = workspaces.registry

    async def find(self, address: str, *, closed: bool = False) -> AddressedChangeSet:
        """The change set of that address.

        A closed change set is found by its id, and with `closed` by its name, too.

        Raises:
            NoSuchChangeSet: nothing has the address. The message offers similar names, or says how
                the change set ended.
            AmbiguousAddress: there are several; the message lists them.
        """
        found = await self._of_ids(address)
        if found is not None:
            return found
        workspaces = await self._workspaces.all()
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
        workspaces = await self._workspaces.all()
        found = [await self._head(each) for each in _workspaces(workspaces, name_or_id)]
        if not found:
            raise NoSuchChangeSet(_no_workspace(name_or_id, workspaces))
        return _only(name_or_id, [each for each in found if each.ended is None] or found).workspace

    async def all(self) -> list[AddressedChangeSet]:
        """All open change sets."""
        found = await self._in(await self._workspaces.all())
        return [each for each in found if each.record.status not in CLOSED_STATUSES]

    async def _in(self, workspaces: Iterable[WorkspaceRecordV1]) -> list[AddressedChangeSet]:
        known = {each.workspace_id: each for each in workspaces}
        records = {r.change_set_id: r async for r in self._registry.change_sets(None)}
        return [
            AddressedChangeSet(known[record.workspace_id], record)
            for record in records.values()
            if record.workspace_id in known
        ]

    async def address_of(self, change_set: ChangeSet | tuple[str, str]) -> str:
        """The address of a registered change set; else its ids, which are an address, too."""
        change_set = ChangeSet.of(*change_set)
        try:
            workspace = await self._registry.workspace(change_set.workspace_id)
            record = await self._registry.change_set(change_set)
        except NoSuchChangeSet:
            return "/".join(map(str, change_set))
        return AddressedChangeSet(workspace, record).address

    async def name_of(self, workspace: WorkspaceId | str) -> str:
        """The name of a registered workspace; the id of another one."""
        workspace = WorkspaceId.of(workspace, "workspace")
        try:
            return (await self._registry.workspace(workspace)).name
        except NoSuchChangeSet:
            return str(workspace)

    async def check_free(self, name: str, workspace: WorkspaceId | str | None = None) -> None:
        """Check that no workspace has the name; or no open change set of `workspace`, if given.

        Two that are created at one moment may both get the name: then addresses take ids.

        Raises:
            NameTaken: the name is taken, or means something else in addresses.
        """
        if name == "." or (name == HEAD and workspace is not None):
            raise NameTaken(f"{name!r} means something else in addresses: choose another name")
        if workspace is not None:
            workspace = WorkspaceId.of(workspace, "workspace")
            taken = [r for r in await self._workspaces.change_sets(workspace) if r.name == name]
            if taken:
                raise NameTaken(f"an open change set is called {name!r}: {taken[0].change_set_id}")
            return
        for each in await self._workspaces.all():
            if each.name == name and (await self._head(each)).ended is None:
                raise NameTaken(f"a workspace is called {name!r}: {each.workspace_id}")

    async def _head(self, workspace: WorkspaceRecordV1) -> AddressedChangeSet:
        change_set = ChangeSet(workspace.workspace_id, workspace.head)
        try:
            record = await self._registry.change_set(change_set)
        except NoSuchChangeSet:  # of a service, which has keys and no head
            record = new_workspace(workspace.name, *change_set, workspace.by).head
        return AddressedChangeSet(workspace, record)

    async def _of_ids(self, address: str) -> AddressedChangeSet | None:
        """The change set of one whole id or of two; None if it is not registered, or not an id."""
        first, _, second = address.upper().partition("/")
        if not _is_id(first) or (second and not _is_id(second)):
            return None
        workspace_id, change_set_id = ChangeSet.of(first, second or first)
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
        """The change sets that the address may name; else the reason, if a workspace is known."""
        problem = None
        found = [await self._head(each) for each in workspaces if each.name == address]
        for left, right in _readings(address):
            for workspace in _workspaces(workspaces, left):
                records = await self._workspaces.change_sets(workspace.workspace_id, closed=True)
                named = _change_sets(records, right)
                found += [AddressedChangeSet(workspace, record) for record in named]
                problem = f"workspace {workspace.name!r} has no change set {right!r}" + offer(
                    right, (r.name for r in records if r.status not in CLOSED_STATUSES)
                )
        return found, problem

    async def _of_parts(
        self, text: str, workspaces: list[WorkspaceRecordV1]
    ) -> list[AddressedChangeSet]:
        """The heads of workspaces with such an id, and change sets with one."""
        if not is_part(text):
            return []
        found = [await self._head(each) for each in _workspaces(workspaces, text)]
        every = await self._in(workspaces)
        return found + [each for each in every if has_part(str(each.record.change_set_id), text)]


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
