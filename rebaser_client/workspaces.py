"""What is registered: workspaces and change sets created, forked, found, renamed.

Nothing here asks a Rebaser: records are an index that Rebasers keep up to date.

Change sets as a whole: take head's changes over, apply, abandon, delete.

`RebaserClient.workspaces` has one of these. Everything that needs an order is a request in
the change set's own queue, so nothing here races with batches that others enqueue.

Addresses: how people name a change set, and which one in the registry that is.

`shop` is the head of the workspace `shop`, and `shop/winter` its branch `winter`; `shop/head` is
its head, too. An id stands for a name anywhere, and so does a part of an id that no other one has:
its beginning, its end after `…`, or both. Names are compared first, then parts of ids.

Operators' requests to a change set, queued with its batches: write a checkpoint, recompute.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from rebaser_client.errors import (
    AmbiguousAddress,
    NameTaken,
    NoSuchChangeSet,
    QuotaExceeded,
    RequestRefused,
)
from rebaser_client.registry import Registry, Workspace, new_branch, new_workspace, validated_name
from rebaser_core.commits import ForkPoint
from rebaser_core.errors import MalformedMessage, offer
from rebaser_core.ids import (
    CANONICAL,
    ChangeSet,
    ChangeSetId,
    RequestId,
    WorkspaceId,
    has_part,
    is_part,
)
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetRequestV1,
    ChangeSetStatus,
    CommentRecordV1,
    WorkspaceRecordV1,
    now,
)
from rebaser_core.streams import Streams
from rebaser_core.updates import BatchLimits
from rebaser_core.versioning import first_error

MAX_COMMENTS: Final = 1_000
"""Comments on a change set."""

CLOSED_STATUSES: Final = (
    ChangeSetStatus.APPLIED,
    ChangeSetStatus.ABANDONED,
    ChangeSetStatus.DELETED,
)


class WorkspaceCatalog:
    """Each coroutine may be cancelled, and asked again: see what it says of that."""

    def __init__(self, streams: Streams, limits: BatchLimits, author: str | None) -> None:
        self._streams = streams
        self._author = author
        self._limits = limits
        self.registry = Registry(streams, by_key=streams.js.is_imported)

    async def create(
        self,
        name: str,
        *,
        workspace_id: WorkspaceId | str | None = None,
        head: ChangeSetId | str | None = None,
    ) -> Workspace:
        """Register a workspace with its head, which is empty unless it is a change set in use.

        Asked again with the same ids it completes what was begun.

        Raises:
            AlreadyRegistered: there is a workspace of that id with another head.
        """
        workspace = new_workspace(
            name,
            WorkspaceId() if workspace_id is None else WorkspaceId.of(workspace_id, "workspace_id"),
            ChangeSetId() if head is None else ChangeSetId.of(head, "head"),
            self._author,
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

    async def change_sets(
        self, workspace_id: WorkspaceId | str, *, closed: bool = False
    ) -> list[ChangeSetRecordV1]:
        """Those of the workspace that are open, the oldest first; with `closed` all."""
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        found = {  # one that changes meanwhile comes twice
            record.change_set_id: record async for record in self.registry.change_sets(workspace_id)
        }
        wanted = (r for r in found.values() if closed or r.status not in CLOSED_STATUSES)
        return sorted(
            wanted, key=lambda record: (record.kind != ChangeSetKind.HEAD, record.created_at)
        )

    async def describe(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> ChangeSetRecordV1:
        """What is registered of it.

        Raises:
            NoSuchChangeSet: nothing.
        """
        return await self.registry.change_set(ChangeSet.of(workspace_id, change_set_id))

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

        Costs the same however large that is; the branch becomes a state of its own with
        its first request, or by `refresh`. From then on head's changes reach it. It begins
        with what `base` had edited itself, if that is a branch.

        Raises:
            NoSuchChangeSet: there is no such workspace, or `base` is not registered in it.
            QuotaExceeded: the workspace has as many change sets as it may have.
            AlreadyRegistered: `change_set_id` is taken by another.
        """
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        branch = (
            ChangeSetId()
            if change_set_id is None
            else ChangeSetId.of(change_set_id, "change_set_id")
        )
        base = None if base is None else ChangeSetId.of(base, "base")
        workspace = await self.registry.workspace(workspace_id)
        await self.registry.check_quota(workspace_id, self._limits.change_sets)
        parent = await self.describe(workspace_id, base or workspace.head)
        record = new_branch(
            name,
            workspace,
            branch,
            await self._base(parent, commit),
            self._author,
        )
        await self.registry.create_change_set(record)
        return record

    async def _base(self, parent: ChangeSetRecordV1, commit: int | None) -> ForkPoint:
        if commit is None:
            subject = self._streams.commits(ChangeSet(parent.workspace_id, parent.change_set_id))
            stream = self._streams.commits_stream
            last = await self._streams.js.get_message(stream, last_by_subject=subject)
            if last is None and parent.base is not None:
                return parent.base  # itself not more than a record yet
            commit = 0 if last is None else last.sequence
        return ForkPoint(change_set_id=parent.change_set_id, commit=commit)

    async def rename(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str, name: str
    ) -> ChangeSetRecordV1:
        """Rename the change set; return its record. Several may have the same name."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self.registry.update(
            change_set, lambda record: record.model_copy(update={"name": validated_name(name)})
        )

    async def comment(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str, text: str
    ) -> CommentRecordV1:
        """Add a comment to a registered change set, open or closed. It stays as it is.

        Raises:
            NoSuchChangeSet: it is not registered.
            MalformedMessage: the text is empty, or longer than 2,000 characters.
            QuotaExceeded: it has `MAX_COMMENTS` already.
        """
        record = await self.describe(workspace_id, change_set_id)
        if len(await self.comments(workspace_id, change_set_id)) >= MAX_COMMENTS:
            raise QuotaExceeded(f"{record.name} has {MAX_COMMENTS:,} comments already")
        try:
            comment = CommentRecordV1(
                id=RequestId(),
                **ChangeSet.of(workspace_id, change_set_id)._asdict(),
                text=text,
                created_at=now(),
                by=self._author,
            )
        except ValidationError as error:
            raise MalformedMessage(f"comment: {first_error(error)}") from None
        await self.registry.create_comment(comment)
        return comment

    async def comments(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> list[CommentRecordV1]:
        """All comments on the change set, the oldest first."""
        return await self.registry.comments(ChangeSet.of(workspace_id, change_set_id))


SendCommand = Callable[[ChangeSetRequestV1], Awaitable[EnqueueUpdatesResponseV2]]
"""Sends the request; its final answer."""

Action = Literal["refresh", "apply", "abandon", "delete"]

_POLL_BACKOFF: Final = Backoff(0.02, 1.0)
"""Between two reads of a record."""


class Workspaces(WorkspaceCatalog):
    """What is registered, and what is asked of it; coroutines may be cancelled, and asked again."""

    def __init__(
        self,
        streams: Streams,
        limits: BatchLimits,
        author: str | None,
        ask: SendCommand,
    ) -> None:
        super().__init__(streams, limits, author)
        self._send = ask

    async def refresh(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> None:
        """Materialise the branch and merge every change that head has by now.

        Raises:
            RequestRefused: its base is not kept any more, or it is closed.
        """
        await self._command(workspace_id, change_set_id, "refresh")

    async def apply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        *,
        reviewed: str | None = None,
    ) -> ChangeSetRecordV1:
        """Have head take the branch's difference; its record, once head has.

        With `reviewed`, the digest of a difference, no other difference is applied. The
        branch takes no request from then on. Giving up waiting does not take it back.

        Raises:
            RequestRefused: it is no branch, closed, changed since it was reviewed, or head would
                not have it; unless it was closed before, it is open as it was.
        """
        request = await self._command(workspace_id, change_set_id, "apply", reviewed=reviewed)
        record = await self._await_record(
            workspace_id,
            change_set_id,
            lambda r: (
                r.application is not None
                and r.application.request == request
                and r.status != ChangeSetStatus.APPLYING
            ),
        )
        if record.status == ChangeSetStatus.OPEN:
            raise RequestRefused(record.problem or "head would not have it")
        return record

    async def abandon(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> None:
        """Have the branch closed without effect on head. Its data stays; it can be forked.

        Raises:
            RequestRefused: it is no branch, or closed.
        """
        await self._command(workspace_id, change_set_id, "abandon")
        await self._await_record(workspace_id, change_set_id, lambda r: r.status in CLOSED_STATUSES)

    async def delete(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> None:
        """Have the branch closed for good, and its data gone after the retention time.

        A head goes with its whole workspace: see `delete_workspace`.

        Raises:
            NoSuchChangeSet: it is not registered.
            RequestRefused: it is a head, is being applied to head, or is deleted already.
        """
        if (await self.describe(workspace_id, change_set_id)).kind == ChangeSetKind.HEAD:
            raise RequestRefused("a head is deleted with its workspace only")
        await self._delete(workspace_id, change_set_id)

    async def delete_workspace(self, workspace_id: WorkspaceId | str) -> None:
        """Have all its change sets deleted, head last, and its record gone with head's data.

        Asked again it goes on where it was. A branch that is forked meanwhile stays, and
        can be deleted by itself.

        Raises:
            NoSuchChangeSet: there is no such workspace.
            RequestRefused: a branch is on its way to head.
        """
        workspace_id = WorkspaceId.of(workspace_id, "workspace_id")
        head = (await self.registry.workspace(workspace_id)).head
        for record in reversed(await self.change_sets(workspace_id, closed=True)):
            if record.status != ChangeSetStatus.DELETED and record.change_set_id != head:
                await self._delete(workspace_id, record.change_set_id)
        if (await self.describe(workspace_id, head)).status != ChangeSetStatus.DELETED:
            await self._delete(workspace_id, head)

    async def _delete(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> None:
        await self._command(workspace_id, change_set_id, "delete")
        await self._await_record(
            workspace_id, change_set_id, lambda r: r.status == ChangeSetStatus.DELETED
        )

    async def _await_record(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        until: Callable[[ChangeSetRecordV1], bool],
    ) -> ChangeSetRecordV1:
        """Return the record once `until` accepts it: it follows the log of the change set."""
        for delay in _POLL_BACKOFF:
            record = await self.describe(workspace_id, change_set_id)
            if until(record):
                return record
            await self._streams.js.connection.sleep(delay)
        raise AssertionError("delays have no end")

    async def _command(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        action: Action,
        *,
        reviewed: str | None = None,
    ) -> RequestId:
        request = ChangeSetRequestV1(
            id=RequestId(),
            **ChangeSet.of(workspace_id, change_set_id)._asdict(),
            action=action,
            reviewed=reviewed,
        )
        response = await self._send(request)
        if isinstance(response.status, ErrorStatus):
            raise RequestRefused(response.status.error.message.removeprefix("refused: "))
        return request.id


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
        if record.status not in CLOSED_STATUSES:
            return None
        how = record.status.value
        applied = record.application if record.status is ChangeSetStatus.APPLIED else None
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
            if record.workspace_id in workspaces and record.status not in CLOSED_STATUSES
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


class Operations:
    """Each call waits until its request is handled; a cancellation does not take it back."""

    def __init__(self, ask: SendCommand) -> None:
        self._send = ask

    async def checkpoint(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> int:
        """Request a checkpoint of the change set; return the commit that it will include.

        Its owner writes the checkpoint a moment later, beside the requests: a checkpoint of
        that commit or a later one in the store shows that it is written.

        Raises:
            RequestRefused: the change set is closed.
        """
        request = ChangeSetRequestV1(
            id=RequestId(),
            **ChangeSet.of(workspace_id, change_set_id)._asdict(),
            action="checkpoint",
        )
        return _commit(await self._send(request))

    async def recompute(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        values: Sequence[str] | None = None,
    ) -> int:
        """Recompute the values of these names or ids, or all failed ones; return the commit.

        The update follows the commit at once, even if an earlier one failed or was cancelled.

        Raises:
            RequestRefused: one of them does not exist or has no function, or the change set is
                closed.
        """
        request = ChangeSetRequestV1(
            id=RequestId(),
            **ChangeSet.of(workspace_id, change_set_id)._asdict(),
            action="recompute",
            values=None if values is None else list(values),
        )
        return _commit(await self._send(request))


def _commit(response: EnqueueUpdatesResponseV2) -> int:
    if isinstance(response.status, ErrorStatus):
        raise RequestRefused(response.status.error.message.removeprefix("refused: "))
    return response.status.success.commit or 0
