"""What is registered: workspaces and change sets created, forked, found, renamed.

Nothing here asks a Rebaser: records are an index that Rebasers keep up to date.
"""

from typing import Final

from pydantic import ValidationError

from rebaser_client.errors import QuotaExceeded
from rebaser_client.initial_records import Workspace, new_branch, new_workspace, validated_name
from rebaser_client.registry import Registry
from rebaser_core.commits import ForkPoint
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetStatus,
    CommentRecordV1,
    WorkspaceRecordV1,
    now,
)
from rebaser_core.subjects import Subjects
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

    def __init__(
        self, js: JetStream, subjects: Subjects, limits: BatchLimits, author: str | None
    ) -> None:
        self._js = js
        self._author = author
        self._subjects = subjects
        self._limits = limits
        self.registry = Registry(js, subjects, by_key=js.is_imported)

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
        wanted = (r for r in found.values() if closed or r.standing not in CLOSED_STATUSES)
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
            subject = self._subjects.commits(ChangeSet(parent.workspace_id, parent.change_set_id))
            stream = self._subjects.commits_stream
            last = await self._js.get_message(stream, last_by_subject=subject)
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
