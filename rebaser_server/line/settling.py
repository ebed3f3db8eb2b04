"""How the results of a dependent values update get into the log: in line, under their claim."""

import asyncio
from contextlib import suppress
from typing import Final

from rebaser_client.publishing import publish_task, publish_when_room
from rebaser_core import deadlines
from rebaser_core.commits import Claim, Outcome
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.messages import Computed, EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.subjects import Subjects
from rebaser_server.dvu.shelf import Shelf
from rebaser_server.line.findings import Findings
from rebaser_server.line.ownership import Ownership

POKE_TIMEOUT: Final = 2.0  # seconds


class Settling:
    """Of one change set, in one run."""

    def __init__(
        self, js: JetStream, subjects: Subjects, change_set: ChangeSet, own: Ownership
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._change_set = change_set
        self._own = own
        self._handled = asyncio.Event()

    def look(self) -> None:
        """Have the head looked at: something was committed."""
        self._handled.set()

    async def settle(
        self, claim: Claim, base: int, findings: Findings, shelf: Shelf, stored: asyncio.Event
    ) -> None:
        """Have the findings committed under their claim, if it stands; `stored` once in line.

        Results travel as a request, in line with all others. Where nothing came out
        changed there is nothing to put in line, and the head alone is written (D5b).
        """
        if len(findings):
            sequence = await self._enqueue(claim, base, findings, shelf)
            stored.set()
            await self._until_handled(sequence, claim)
            known = self._own.state.recent.get(claim.id)
            if known is None or known.outcome is not Outcome.APPLIED:
                return  # another attempt may go on from what is on the shelf
        else:
            async with self._own.lock:
                if self._own.state.head.claim != claim:
                    return
                await self._own.write(claim=None, clean_sequence=claim.covers, dvu_failures=0)
        with suppress(OSError):  # nothing refers to it; it is collected some day
            await asyncio.to_thread(shelf.clear, [file.name for file in findings.files])

    async def _enqueue(self, claim: Claim, base: int, findings: Findings, shelf: Shelf) -> int:
        computed = Computed(claim=claim.id, covers=claim.covers, commit=base)
        # The claim's id is the request's: published twice, the result is stored once (D4).
        address = await findings.placed(self._own.archive.batches, claim.id, computed, shelf)
        request = EnqueueUpdatesRequestV1(
            id=claim.id,
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            updates_address=address,
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        try:
            return await publish_when_room(
                self._js, self._subjects, self._change_set, headers, payload
            )
        except asyncio.CancelledError:
            # An end never separates the two publishes: the result may be stored (D4).
            with suppress(TimeoutError):
                async with deadlines.within(POKE_TIMEOUT):
                    await publish_task(self._js, self._subjects, self._change_set)
            raise

    async def _until_handled(self, sequence: int, claim: Claim) -> None:
        """D3: no new update before this one's result was handled."""
        while True:
            self._handled.clear()
            head = self._own.state.head
            if head.last_sequence >= sequence or head.claim != claim:
                return
            await self._handled.wait()
