"""Finds work that nobody has a task for, and makes the task (X1, X2). Deletes nothing (X4)."""

import asyncio
import random
from collections.abc import Iterable
from typing import Final, Never

import structlog

from rebaser_client.publishing import publish_task
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError, OrderedConsumer
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log import DVU_DUE

log: Final = structlog.get_logger()

HEADS_EVERY: Final = 10
"""Passes until every head is looked at again. Requests tell of nearly all that is left undone;
a DVU can be due without one only if somebody else removed the task and both died."""


class Reconciler:
    """Looks at the start and then once a period, somewhat early or late so that daemons spread."""

    def __init__(self, js: JetStream, subjects: Subjects, every: float) -> None:
        self._js = js
        self._subjects = subjects
        self._every = every

    async def run(self) -> Never:
        """Look until cancelled. What fails is logged and tried again in the next period."""
        passes = 0
        while True:
            try:
                poked = await self.reconcile(heads=passes % HEADS_EVERY == 0)
                passes += 1
                if poked:
                    log.info("tasks made for what had none", tasks=poked)
            except JetStreamError as error:
                log.warning("not reconciled", error=str(error))
            await asyncio.sleep(self._every * random.uniform(0.75, 1.25))  # noqa: S311 - jitter

    async def reconcile(self, *, heads: bool) -> int:
        """See that each change set with a request has a task; how many had none.

        With `heads`, each with a due DVU, too. May be repeated and run anywhere at once:
        a task too many costs one empty run.
        """
        tasks = await self._with_messages(self._subjects.tasks_stream)
        needed = await self._with_messages(self._subjects.requests_stream)
        if heads:
            needed |= await self._due()
        for change_set in sorted(needed - tasks):
            await publish_task(self._js, self._subjects, change_set)
        return len(needed - tasks)

    async def _with_messages(self, stream: str) -> set[ChangeSet]:
        return self._change_sets(await self._js.stream_subjects(stream), stream)

    def _change_sets(self, subjects: Iterable[str], stream: str) -> set[ChangeSet]:
        found = set()
        for subject in subjects:
            try:
                found.add(self._subjects.change_set_of(subject))
            except UnknownSubject as error:
                log.error("stray message", stream=stream, error=str(error))
        return found

    async def _due(self) -> set[ChangeSet]:
        """Change sets whose last line says that a DVU is due; reads a header of each one known."""
        stream, due = self._subjects.commits_stream, set()
        reader = OrderedConsumer(
            self._js, stream, deliver_policy="last_per_subject", headers_only=True
        )
        async with reader:
            while (line := await reader.next(quiet=0)) is not None:
                if DVU_DUE in line.headers:
                    due.add(line.subject)
                if not reader.pending:
                    break
        return self._change_sets(due, stream)
