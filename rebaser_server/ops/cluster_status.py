"""What every Rebaser of the deployment says of itself, asked for over plain NATS.

An empty question is answered with a report; one that names a change set, with the sketch of
its latest update there, if any.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import deadlines
from rebaser_core.subjects import Subjects
from rebaser_server.runtime.containment import contained

PATIENCE: Final = 0.3  # seconds for all answers
MOST_OCTETS: Final = 200_000
"""Of one answer; a longer one is somebody else's."""

Report = dict[str, Any]


class Witness(Protocol):
    """Knows what this Rebaser has to say."""

    def own(self) -> Report: ...

    def sketch(self, change_set: ChangeSet) -> Report | None: ...


class Peers:
    """Answers for this one and asks all, this one among them."""

    def __init__(self, nc: Client, subjects: Subjects, witness: Witness) -> None:
        self._nc = nc
        self._subject = subjects.join("rebaser.status")
        self._witness = witness

    @asynccontextmanager
    async def answered(self) -> AsyncIterator[None]:
        """Answer the others' questions for as long as the body runs."""
        subscription = await self._nc.subscribe(self._subject, cb=self._answer)
        try:
            yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _answer(self, question: Msg) -> None:
        if question.reply:
            with suppress(nats.errors.Error, OSError, ValueError):
                answer = json.dumps(self._say(question.data))
                await self._nc.publish(question.reply, answer.encode())

    def _say(self, question: bytes) -> Report:
        if not question:
            return self._witness.own()
        workspace, _, change_set = question.decode().partition(".")
        named = ChangeSet(WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set))
        return {"sketch": self._witness.sketch(named)}

    async def reports(self, expected: int) -> list[Report]:
        """Those of `expected` Rebasers, or of those that answer in time, in stable order."""
        reports = await self._ask(b"", expected)
        return sorted(reports, key=lambda report: str(report.get("instance", "")))

    async def sketch(self, change_set: ChangeSet, expected: int) -> Report | None:
        """Of the change set's latest update, wherever that is or was."""
        question = f"{change_set.workspace_id}.{change_set.change_set_id}".encode()
        answers = await self._ask(question, expected)
        sketches: list[Report] = [answer["sketch"] for answer in answers if answer.get("sketch")]
        return max(sketches, key=lambda sketch: str(sketch.get("began")), default=None)

    async def _ask(self, question: bytes, expected: int) -> list[Report]:
        inbox = self._nc.new_inbox()
        answers: list[Report] = []
        enough = asyncio.Event()

        async def take(answer: Msg) -> None:
            if len(answer.data) <= MOST_OCTETS:
                with contained("announcement"):
                    said = json.loads(answer.data)
                    answers.append(dict(said.items()))
            if len(answers) >= expected:
                enough.set()

        subscription = await self._nc.subscribe(inbox, cb=take)
        try:
            await self._nc.publish(self._subject, question, reply=inbox)
            with suppress(TimeoutError):
                async with deadlines.within(PATIENCE):
                    await enough.wait()
        finally:
            await subscription.unsubscribe()
        return answers
