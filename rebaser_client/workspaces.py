"""Workspaces and their change sets: create, fork, find, review, apply, abandon, delete.

`RebaserClient.workspaces` has one of these. Everything that needs an order is a request in
the change set's own queue, so nothing here races with batches that others enqueue.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from rebaser_client.errors import NoSuchChangeSet, Refused
from rebaser_client.registry import Registry
from rebaser_core.change_sets import (
    ChangeSetRecordV1,
    ChangeSetRequestV2,
    Kind,
    RecordName,
    Standing,
    WorkspaceRecordV1,
    now,
)
from rebaser_core.commits import Base
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.limits import Limits
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_core.subjects import Subjects
from rebaser_core.versioned import brief

Ask = Callable[[ChangeSetRequestV2], Awaitable[EnqueueUpdatesResponseV2]]
"""Sends the request; its final answer."""

Action = Literal["refresh", "apply", "abandon", "delete"]

_FIRST_LOOK: Final = 0.02  # seconds between two looks at a record, doubled up to
_LAST_LOOK: Final = 1.0


_NAME: Final = TypeAdapter(RecordName)


def _named(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        raise MalformedMessage(f"name: {brief(error)}") from error


class Workspace(NamedTuple):
    """A workspace and its head, as they are registered."""

    record: WorkspaceRecordV1
    head: ChangeSetRecordV1


class Workspaces:
    """Each coroutine may be cancelled, and asked again: see what it says of that."""

    def __init__(
        self, js: JetStream, subjects: Subjects, limits: Limits, author: str | None, ask: Ask
    ) -> None:
        self._js = js
        self._author = author
        self._subjects = subjects
        self._limits = limits
        self._ask = ask
        self.registry = Registry(js, subjects)

    async def create(
        self,
        name: str,
        *,
        workspace_id: WorkspaceId | None = None,
        head: ChangeSetId | None = None,
    ) -> Workspace:
        """Register a workspace with its head, which is empty unless it is a change set in use.

        Asked again with the same ids it completes what was begun.

        Raises:
            AlreadyThere: there is a workspace of that id with another head.
        """
        workspace_id = workspace_id or WorkspaceId()
        head = head or ChangeSetId()
        moment = now()
        # Ids made of what they name: so whoever asks again is recognised.
        workspace = WorkspaceRecordV1(
            id=RequestId.from_bytes(head.bytes),
            workspace_id=workspace_id,
            name=_named(name),
            head=head,
            created_at=moment,
            by=self._author,
        )
        record = ChangeSetRecordV1(
            id=RequestId.from_bytes(head.bytes),
            workspace_id=workspace_id,
            change_set_id=head,
            name="head",
            kind=Kind.HEAD,
            head=head,
            created_at=moment,
            by=self._author,
        )
        await self.registry.create_workspace(workspace)
        await self.registry.create_change_set(record)
        return Workspace(workspace, record)

    async def all(self) -> list[WorkspaceRecordV1]:
        """All workspaces."""
        return [record async for record in self.registry.workspaces()]

    async def change_sets(
        self, workspace_id: WorkspaceId, *, closed: bool = False
    ) -> list[ChangeSetRecordV1]:
        """Those of the workspace that are open, the oldest first; with `closed` all."""
        found = [
            record
            async for record in self.registry.change_sets(workspace_id)
            if closed or record.standing in (Standing.OPEN, Standing.APPLYING)
        ]
        return sorted(found, key=lambda record: (record.kind != Kind.HEAD, record.created_at))

    async def describe(
        self, workspace_id: WorkspaceId, change_set_id: ChangeSetId
    ) -> ChangeSetRecordV1:
        """What is registered of it.

        Raises:
            NoSuchChangeSet: nothing.
        """
        return await self.registry.change_set(ChangeSet(workspace_id, change_set_id))

    async def fork(
        self,
        workspace_id: WorkspaceId,
        name: str,
        *,
        base: ChangeSetId | None = None,
        commit: int | None = None,
        change_set_id: ChangeSetId | None = None,
    ) -> ChangeSetRecordV1:
        """Register a branch of head, or of another change set, as it is or was at a commit.

        Costs the same however large that is; the branch becomes a state of its own with
        its first request, or by `ready`. From then on head's changes reach it. It begins
        with what `base` had edited itself, if that is a branch.

        Raises:
            NoSuchChangeSet: there is no such workspace, or `base` is not registered in it.
            TooMany: the workspace has as many change sets as it may have.
            AlreadyThere: `change_set_id` is taken by another.
        """
        workspace = await self.registry.workspace(workspace_id)
        await self.registry.require_room(workspace_id, self._limits.change_sets)
        parent = await self.describe(workspace_id, base or workspace.head)
        change_set_id = change_set_id or ChangeSetId()
        record = ChangeSetRecordV1(
            id=RequestId.from_bytes(change_set_id.bytes),
            workspace_id=workspace_id,
            change_set_id=change_set_id,
            name=_named(name),
            kind=Kind.BRANCH,
            head=workspace.head,
            base=await self._base(parent, commit),
            created_at=now(),
            by=self._author,
        )
        await self.registry.create_change_set(record)
        return record

    async def _base(self, parent: ChangeSetRecordV1, commit: int | None) -> Base:
        if commit is None:
            subject = self._subjects.commits(ChangeSet(parent.workspace_id, parent.change_set_id))
            stream = self._subjects.commits_stream
            last = await self._js.get_message(stream, last_by_subject=subject)
            if last is None and parent.base is not None:
                return parent.base  # itself not more than a record yet
            commit = 0 if last is None else last.sequence
        return Base(change_set_id=parent.change_set_id, commit=commit)

    async def ready(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> None:
        """Have the branch a state of its own, with all that head has changed by now.

        Raises:
            Refused: its base is not kept any more, or it is closed.
        """
        await self._act(workspace_id, change_set_id, "refresh")

    refresh = ready

    async def rename(
        self, workspace_id: WorkspaceId, change_set_id: ChangeSetId, name: str
    ) -> ChangeSetRecordV1:
        """The record, which now has the name. Names need not be unique."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self.registry.change(
            change_set, lambda record: record.model_copy(update={"name": _named(name)})
        )

    async def apply(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        *,
        reviewed: str | None = None,
    ) -> ChangeSetRecordV1:
        """Have head take the branch's difference; its record, once head has.

        With `reviewed`, the digest of a difference, no other difference is applied. The
        branch takes no request from then on. Giving up waiting does not take it back.

        Raises:
            Refused: it is no branch, closed, changed since it was reviewed, or head would
                not have it; unless it was closed before, it is open as it was.
        """
        request = await self._act(workspace_id, change_set_id, "apply", reviewed=reviewed)
        delay = _FIRST_LOOK
        while True:
            record = await self.describe(workspace_id, change_set_id)
            known = record.application
            if known and known.request == request and record.standing != Standing.APPLYING:
                if record.standing == Standing.OPEN:
                    raise Refused(record.problem or "head would not have it")
                return record
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_LOOK)

    async def abandon(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> None:
        """Have the branch closed without effect on head. Its data stays; it can be forked.

        Raises:
            Refused: it is no branch, or closed.
        """
        await self._act(workspace_id, change_set_id, "abandon")

    async def delete(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> None:
        """Have the branch closed for good, and its data gone after the retention time.

        Raises:
            Refused: it is no branch, on its way to head, or deleted already.
        """
        await self._act(workspace_id, change_set_id, "delete")

    async def find(self, workspace_id: WorkspaceId, name_or_id: str) -> ChangeSetRecordV1:
        """The change set of that id, or the one of that name among the open ones.

        Raises:
            NoSuchChangeSet: there is none, or more than one of that name.
        """
        try:
            return await self.describe(workspace_id, ChangeSetId.from_str(name_or_id))
        except ValueError:
            pass
        found = [r for r in await self.change_sets(workspace_id) if r.name == name_or_id]
        if len(found) != 1:
            which = "no change set" if not found else "more than one"
            raise NoSuchChangeSet(f"{which} of workspace {workspace_id} is called {name_or_id!r}")
        return found[0]

    async def _act(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        action: Action,
        *,
        reviewed: str | None = None,
    ) -> RequestId:
        request = ChangeSetRequestV2(
            id=RequestId(),
            workspace_id=workspace_id,
            change_set_id=change_set_id,
            action=action,
            reviewed=reviewed,
        )
        response = await self._ask(request)
        if isinstance(response.status, ErrorStatus):
            raise Refused(response.status.error.message.removeprefix("refused: "))
        return request.id
