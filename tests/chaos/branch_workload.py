"""What people do with the branches of a workspace, and what is written down of it."""

import random
from functools import partial
from typing import Any

from rebaser_client import QueueFull, RebaserClient
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.records import ChangeSetRequest
from rebaser_core.requests import publish_request
from rebaser_core.streams import Streams
from tests.chaos.history import History, Kind
from tests.chaos.tables import QuerySheet
from tests.helpers.eventually import eventually
from tests.schedules.example_batches import Sheet

ACTIONS = {
    "fork": 3, "fork_branch": 2, "edit": 8, "refresh": 2, "apply": 3, "misjudge": 1,
    "abandon": 1, "delete": 1,
}  # fmt: skip
"""What is done with branches, and how often; `misjudge`: apply a difference that is another."""
ANY_OTHER = "0" * 64
"""Digest of a difference that nobody reviewed."""


class Leading:
    """Forks branches of a head, edits them and brings them to an end; waits for nothing of it."""

    def __init__(
        self,
        js: JetStream,
        history: History,
        rng: random.Random,
        head: ChangeSet,
        sheet: Sheet | QuerySheet,
    ) -> None:
        self.head = head
        self.branches: list[ChangeSet] = []
        self._js = js
        self._history = history
        self._random = rng
        self._sheet = sheet

    async def create(self, client: RebaserClient) -> None:
        """Register the workspace."""
        workspace, head = self.head
        await client.workspaces.create("sheets", workspace_id=workspace, head=head)

    async def define(self, client: RebaserClient) -> None:
        """Have head be something, so that what is asked of branches is never corrected away."""
        batch, request_id = self._sheet.define(self._random), RequestId()
        self._sent(self.head, request_id, batch=batch, expected=["applied"])
        _, reply = await client.enqueue_updates_with_reply(*self.head, batch, request_id=request_id)
        await reply

    async def do(self, client: RebaserClient, what: str, which: int) -> None:
        """One of the actions, to one of the branches; `edit_head` is one, too."""
        if what == "edit_head":
            await self._edit(client, self.head, expected=["applied"])
        elif what == "fork" or not self.branches:
            await self._fork(client, None)
        else:
            branch = self.branches[which % len(self.branches)]
            match what:
                case "fork_branch":
                    await self._fork(client, branch)
                case "edit":
                    await self._edit(client, branch)
                case "misjudge":
                    await self.ask_for(branch, "apply", reviewed=ANY_OTHER)
                case action:
                    await self.ask_for(branch, action)

    async def ask_for(self, branch: ChangeSet, action: str, *, reviewed: str | None = None) -> None:
        """Store the request with a task for it."""
        request = ChangeSetRequest.current(
            id=RequestId(),
            workspace_id=branch.workspace_id,
            change_set_id=branch.change_set_id,
            action=action,
            reviewed=reviewed,
        )
        self._sent(branch, request.id, action=action)
        headers, payload = ChangeSetRequest.encode(request)
        await publish_request(Streams(js=self._js), branch, headers, payload)

    async def refresh(self, js: JetStream) -> None:
        """Have what head has done by now come to every branch that is open."""
        self._js = js
        for branch in self.branches:
            await eventually(partial(self._is_refreshed, branch), within=120)

    async def _is_refreshed(self, branch: ChangeSet) -> bool:
        """Whether the request for it found room in the queue."""
        try:
            await self.ask_for(branch, "refresh")
        except QueueFull:
            return False
        return True

    async def _edit(self, client: RebaserClient, change_set: ChangeSet, **more: Any) -> None:
        batch, request_id = self._sheet.batch(self._random), RequestId()
        self._sent(change_set, request_id, batch=batch, **more)
        await client.enqueue_updates(*change_set, batch, request_id=request_id)

    async def _fork(self, client: RebaserClient, base: ChangeSet | None) -> None:
        record = await client.workspaces.fork(
            self.head.workspace_id, "branch", base=base and base.change_set_id
        )
        self.branches.append(ChangeSet(self.head.workspace_id, record.change_set_id))

    def _sent(self, change_set: ChangeSet, request_id: RequestId, **more: Any) -> None:
        """Write it down. What is asked of a branch is refused if it is closed by then."""
        about = {"expected": ["applied", "refused"], "poison": False, "batch": None, **more}
        self._history.add(Kind.SENT, request=str(request_id), change_set=str(change_set), **about)
