"""Change sets as a whole: take head's changes over, apply, abandon, delete.

`RebaserClient.workspaces` has one of these. Everything that needs an order is a request in
the change set's own queue, so nothing here races with batches that others enqueue.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

from rebaser_client.errors import RequestRefused
from rebaser_client.workspace_catalog import CLOSED_STATUSES, WorkspaceCatalog
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetRequestV2,
    ChangeSetStatus,
)
from rebaser_core.subjects import Subjects
from rebaser_core.updates import BatchLimits

SendCommand = Callable[[ChangeSetRequestV2], Awaitable[EnqueueUpdatesResponseV2]]
"""Sends the request; its final answer."""

Action = Literal["refresh", "apply", "abandon", "delete"]

_POLL_BACKOFF: Final = Backoff(0.02, 1.0)
"""Between two reads of a record."""


class Workspaces(WorkspaceCatalog):
    """What is registered, and what is asked of it; coroutines may be cancelled, and asked again."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        limits: BatchLimits,
        author: str | None,
        ask: SendCommand,
    ) -> None:
        super().__init__(js, subjects, limits, author)
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
                and r.standing != ChangeSetStatus.APPLYING
            ),
        )
        if record.standing == ChangeSetStatus.OPEN:
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
        await self._await_record(
            workspace_id, change_set_id, lambda r: r.standing in CLOSED_STATUSES
        )

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
            if record.standing != ChangeSetStatus.DELETED and record.change_set_id != head:
                await self._delete(workspace_id, record.change_set_id)
        if (await self.describe(workspace_id, head)).standing != ChangeSetStatus.DELETED:
            await self._delete(workspace_id, head)

    async def _delete(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> None:
        await self._command(workspace_id, change_set_id, "delete")
        await self._await_record(
            workspace_id, change_set_id, lambda r: r.standing == ChangeSetStatus.DELETED
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
            await self._js.connection.sleep(delay)
        raise AssertionError("delays have no end")

    async def _command(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        action: Action,
        *,
        reviewed: str | None = None,
    ) -> RequestId:
        request = ChangeSetRequestV2(
            id=RequestId(),
            **ChangeSet.of(workspace_id, change_set_id)._asdict(),
            action=action,
            reviewed=reviewed,
        )
        response = await self._send(request)
        if isinstance(response.status, ErrorStatus):
            raise RequestRefused(response.status.error.message.removeprefix("refused: "))
        return request.id
