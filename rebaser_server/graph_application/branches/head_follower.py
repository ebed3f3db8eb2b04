"""Bring head's changes to a branch while a run owns it: request its refresh, one at a time.

Head publishes nothing for a branch. A branch reads head's log when its run starts and whenever
head's activities report an applied request; it also reads it now and then, since an activity
may be lost.
"""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog
from nats.aio.msg import Msg

from rebaser_client.errors import ClientError
from rebaser_client.requests import publish_request
from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.commits import BranchState
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, deadlines
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.subjects import Subjects
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.processor.ownership import Ownership

log: Final = structlog.get_logger()

CONFIRM_WITHIN: Final = 5.0
"""Seconds that a run which ends waits for the confirmation of a refresh that it has sent."""


class HeadFollower:
    """Runs beside the requests of one run; does nothing for a change set that is no branch."""

    def __init__(
        self, js: JetStream, subjects: Subjects, ownership: Ownership, every: float
    ) -> None:
        """`every`: seconds between two reads of head's log if no activity of head comes."""
        self._js = js
        self._subjects = subjects
        self._ownership = ownership
        self._every = every
        self._wakeup = asyncio.Event()
        self._committed = asyncio.Event()
        self._checked_up_to = 0
        """Commit of head's log up to which there is nothing to refresh from."""
        self._own_refreshes: set[int] = set()

    def is_own_refresh(self, sequence: int) -> bool:
        """Whether that request is one of our refreshes, which does not keep the branch awake."""
        return sequence in self._own_refreshes

    def notify(self) -> None:
        """Note that something was committed."""
        self._committed.set()

    async def run(self) -> Never:
        """Request a refresh whenever head is ahead, until cancelled."""
        branch = self._ownership.state.control.branch
        if branch is None:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")
        change_set = ChangeSet(self._ownership.loader.change_set.workspace_id, branch.head)
        nc = self._js.connection.nc
        async with subscribed(nc, self._subjects.activities(change_set), self._on_activity):
            while True:
                self._wakeup.clear()
                await self._refresh_if_behind()
                with suppress(TimeoutError):
                    async with deadlines.within(self._every):
                        await self._wakeup.wait()

    async def _on_activity(self, message: Msg) -> None:
        with suppress(MessageError):
            activity = Activity.decode(message.headers or {}, message.data)
            if activity.kind is ActivityKind.REQUEST_APPLIED:
                self._wakeup.set()

    async def _refresh_if_behind(self) -> None:
        head = self._ownership.state.control
        if (
            head.closing is None
            and head.branch is not None
            and await self._is_head_ahead(head.branch)
        ):
            await self._refresh()

    async def _is_head_ahead(self, branch: BranchState) -> bool:
        """Whether head's log has a batch for the branch; DVU results and claims do not count."""
        log_of_head = self._ownership.loader.sibling(branch.head).log
        until, _ = await log_of_head.last()
        after = max(branch.cursor or 0, self._checked_up_to)
        try:
            async for _, entry in log_of_head.entries(after, until):
                if entry.handled and entry.handled.updates and entry.handled.covers is None:
                    return True
        except HistoryInconsistent:  # purged past the cursor: there was a batch
            return True
        self._checked_up_to = max(until, self._checked_up_to)
        return False

    async def _refresh(self) -> None:
        change_set = self._ownership.loader.change_set
        request = ChangeSetRequestV2(
            id=RequestId(),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            action="refresh",
        )
        headers, payload = ChangeSetRequest.encode(request)
        publishing = asyncio.ensure_future(
            publish_request(self._js, self._subjects, change_set, headers, payload)
        )
        try:
            sequence = await asyncio.shield(publishing)
        except asyncio.CancelledError:
            # Stored after the run's last look at the queue (W12), the request would have no task.
            with suppress(TimeoutError, ClientError):
                async with deadlines.within(CONFIRM_WITHIN):
                    await publishing
            raise
        self._own_refreshes = {sequence}
        while self._ownership.state.control.last_sequence < sequence:
            self._committed.clear()
            await self._committed.wait()
