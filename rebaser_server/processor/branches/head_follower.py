"""Head's changes reach a branch while somebody holds it: its refresh asked for, one at a time.

Head publishes nothing for a branch. A branch looks at head's log, when it is taken up and
whenever head says on its activities that a request took effect; a word that gets lost is
made up for by looking now and then.
"""

import asyncio
from contextlib import suppress
from typing import Final, Never

import nats.errors
import structlog
from nats.aio.msg import Msg

from rebaser_client.request_publisher import publish_request
from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.commits import BranchState
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, deadlines
from rebaser_core.registry_records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.subjects import Subjects
from rebaser_server.errors import HistoryBroken
from rebaser_server.processor.ownership import Ownership

log: Final = structlog.get_logger()


class Following:
    """Beside the requests of one run; does nothing for a change set that is no branch."""

    def __init__(self, js: JetStream, subjects: Subjects, own: Ownership, every: float) -> None:
        """`every`: seconds between two looks at head if nothing is heard of it."""
        self._js = js
        self._subjects = subjects
        self._own = own
        self._every = every
        self._heard = asyncio.Event()
        self._handled = asyncio.Event()
        self._seen = 0
        """Line of head's log up to which there is nothing for the branch."""
        self._asked: set[int] = set()

    def asked(self, sequence: int) -> bool:
        """Whether that request is one of these, which is no sign of interest in the branch."""
        return sequence in self._asked

    def handled(self) -> None:
        """A request was handled."""
        self._handled.set()

    async def run(self) -> Never:
        """Ask for a refresh whenever head is ahead, until cancelled."""
        branch = self._own.state.head.branch
        if branch is None:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")
        change_set = ChangeSet(self._own.archive.change_set.workspace_id, branch.head)
        nc = self._js.connection.nc
        subscription = await nc.subscribe(self._subjects.activities(change_set), cb=self._hear)
        try:
            while True:
                self._heard.clear()
                await self._look()
                with suppress(TimeoutError):
                    async with deadlines.within(self._every):
                        await self._heard.wait()
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        with suppress(MessageError):
            told = Activity.decode(message.headers or {}, message.data)
            if told.kind is ActivityKind.REQUEST_APPLIED:
                self._heard.set()

    async def _look(self) -> None:
        head = self._own.state.head
        if head.closing is None and head.branch is not None and await self._ahead(head.branch):
            await self._refreshed()

    async def _ahead(self, branch: BranchState) -> bool:
        """Whether head's log has a batch for the branch; its own results and claims are none."""
        log_of_head = self._own.archive.of(branch.head).log
        until, _ = await log_of_head.last()
        after = max(branch.cursor or 0, self._seen)
        try:
            async for _, line in log_of_head.lines(after, until):
                if line.handled and line.handled.updates and line.handled.covers is None:
                    return True
        except HistoryBroken:  # purged so far: there was something
            return True
        self._seen = max(until, self._seen)
        return False

    async def _refreshed(self) -> None:
        change_set = self._own.archive.change_set
        request = ChangeSetRequestV2(
            id=RequestId(),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            action="refresh",
        )
        headers, payload = ChangeSetRequest.encode(request)
        sequence = await publish_request(self._js, self._subjects, change_set, headers, payload)
        self._asked = {sequence}
        while self._own.state.head.last_sequence < sequence:
            self._handled.clear()
            await self._handled.wait()
