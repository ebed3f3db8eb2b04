"""Finds work that nobody has a task for, and makes the task (X1, X2). Deletes nothing (X4)."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final, Never

import structlog

from rebaser_client.publishing import publish_task
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log import CommitLog

log: Final = structlog.get_logger()


class Reconciler:
    """Looks at the start and then once a period, somewhat early or late so that daemons spread."""

    def __init__(self, js: JetStream, subjects: Subjects, every: float) -> None:
        self._js = js
        self._subjects = subjects
        self._every = every

    async def run(self) -> Never:
        """Look until cancelled. What fails is logged and tried again in the next period."""
        while True:
            try:
                poked = await self.reconcile()
                log.debug("reconciled", tasks=poked)
            except JetStreamError as error:
                log.warning("not reconciled", error=str(error))
            await asyncio.sleep(self._every * random.uniform(0.75, 1.25))  # noqa: S311 - jitter

    async def reconcile(self) -> int:
        """See that each change set with a request or a due DVU has a task; how many that are.

        May be repeated and run anywhere at once: a task too many costs one empty run.
        """
        tasks = await self._with_messages(self._subjects.tasks_stream)
        needed = await self._with_messages(self._subjects.requests_stream)
        needed |= {change_set async for change_set in self._due()}
        for change_set in sorted(needed - tasks):
            await publish_task(self._js, self._subjects, change_set)
        return len(needed - tasks)

    async def _with_messages(self, stream: str) -> set[ChangeSet]:
        found = set()
        for subject in await self._js.stream_subjects(stream):
            try:
                found.add(self._subjects.change_set_of(subject))
            except UnknownSubject as error:
                log.error("stray message", stream=stream, error=str(error))
        return found

    async def _due(self) -> AsyncIterator[ChangeSet]:
        """Change sets whose last line says that a DVU is due."""
        for change_set in await self._with_messages(self._subjects.commits_stream):
            _, last = await CommitLog(self._js, self._subjects, change_set).last()
            if last is not None and last.head.dvu_due:
                yield change_set
