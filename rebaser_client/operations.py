"""Operators' requests to a change set, queued with its batches: write a checkpoint, recompute."""

from collections.abc import Sequence

from rebaser_client.errors import RequestRefused
from rebaser_client.workspaces import SendCommand
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_core.records import ChangeSetRequestV2


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
        request = ChangeSetRequestV2(
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
        request = ChangeSetRequestV2(
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
