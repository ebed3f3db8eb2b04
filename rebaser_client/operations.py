"""What an operator asks of one change set, in line with its batches: save it, compute again."""

from collections.abc import Sequence

from rebaser_client.errors import RequestRefused
from rebaser_client.workspaces import SendCommand
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_core.registry_records import ChangeSetRequestV2


class Operations:
    """Each waits for its turn in line; giving up waiting does not take the request back."""

    def __init__(self, ask: SendCommand) -> None:
        self._send = ask

    async def checkpoint(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> int:
        """Have the state saved by whoever has the change set; the commit that will be in it.

        It is saved a moment later, beside the requests: a checkpoint of that commit or a
        later one in the store shows that it is.

        Raises:
            RequestRefused: the change set is closed.
        """
        request = ChangeSetRequestV2(
            id=RequestId(),
            workspace_id=workspace_id,
            change_set_id=change_set_id,
            action="checkpoint",
        )
        return _commit(await self._send(request))

    async def recompute(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        values: Sequence[str] | None = None,
    ) -> int:
        """Have values of these names or ids computed anew, or all that failed; the commit.

        The update follows the commit, at once even if one failed or was cancelled before.

        Raises:
            RequestRefused: one of them is not there or not computed, or the change set is closed.
        """
        request = ChangeSetRequestV2(
            id=RequestId(),
            workspace_id=workspace_id,
            change_set_id=change_set_id,
            action="recompute",
            values=None if values is None else list(values),
        )
        return _commit(await self._send(request))


def _commit(response: EnqueueUpdatesResponseV2) -> int:
    if isinstance(response.status, ErrorStatus):
        raise RequestRefused(response.status.error.message.removeprefix("refused: "))
    return response.status.success.commit or 0
