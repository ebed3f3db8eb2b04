"""What every Rebaser of the deployment says of itself, asked for over plain NATS."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.subjects import Subjects

PATIENCE: Final = 0.3  # seconds for all answers
MOST_OCTETS: Final = 200_000
"""Of one answer; a longer one is somebody else's."""

Report = dict[str, Any]


class Peers:
    """Answers for this one and asks all, this one among them."""

    def __init__(self, nc: Client, subjects: Subjects, report: Callable[[], Report]) -> None:
        self._nc = nc
        self._subject = subjects.subject("rebaser.status")
        self._report = report

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
            with suppress(nats.errors.Error, OSError):
                await self._nc.publish(question.reply, json.dumps(self._report()).encode())

    async def ask(self, expected: int) -> list[Report]:
        """The reports of `expected` Rebasers, or of those that answer in time, in stable order."""
        inbox = self._nc.new_inbox()
        reports: list[Report] = []
        enough = asyncio.Event()

        async def take(answer: Msg) -> None:
            if len(answer.data) <= MOST_OCTETS:
                with suppress(ValueError):
                    reports.append(json.loads(answer.data))
            if len(reports) >= expected:
                enough.set()

        subscription = await self._nc.subscribe(inbox, cb=take)
        try:
            await self._nc.publish(self._subject, b"", reply=inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await enough.wait()
        finally:
            await subscription.unsubscribe()
        return sorted(reports, key=lambda report: str(report.get("instance", "")))
