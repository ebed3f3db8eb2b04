"""Make a task for each change set that has work and no task (X1, X2). Deletes nothing (X4)."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, Never

import structlog

from rebaser_client.requests import ensure_task
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.dvu_scanner import UnfinishedScanner
from rebaser_server.cluster.subject_slices import FEW, SubjectSlices
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.tasks import for_each_concurrently, repeat_every
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

_TURN: Final = 200
"""Subjects that are parsed until others have a turn on the loop."""
_AT_ONCE: Final = 16
"""Tasks that are looked up at a time."""


class Reconciler:
    """Runs at the start and then once a period, somewhat early or late so that daemons spread.

    The cost of a round depends on the requests and tasks, not on the number of change sets, and
    is bounded: of more than some thousand each round looks at a part.
    Nearly all undone work has a request; a DVU is due without one only if another process
    removed the task and both died, so several rounds may pass until it is found.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        period: float,
        paused: Callable[[ChangeSet], bool] = lambda _: False,
        has_room: Callable[[], bool] = lambda: False,
        few: int = FEW,
    ) -> None:
        """`period`: seconds; `paused`: whether a change set gets no task (P3).

        `has_room`: whether slots are free for which no task waits, so that checkpoints may be
        made up for (X2b).
        `few`: change sets that are listed at once.
        """
        self._few = few
        self._js = js
        self._subjects = subjects
        self._period = period
        self._paused = paused
        self._requests = SubjectSlices(js, subjects.requests_stream, few=few)
        self._scanner = UnfinishedScanner(js, subjects.commits_stream, has_room)

    async def run(self) -> Never:
        """Reconcile until cancelled. A failure is logged; the next period tries again."""
        await repeat_every(self._period, self._reconcile, "reconciler", first_delay=0)

    async def _reconcile(self) -> None:
        result = "failed"
        try:
            with metrics.RECONCILER_SECONDS.time():
                published = await self.reconcile()
            result = "done"
        finally:
            metrics.RECONCILER_LOOKS.labels(result).inc()
        if published:
            metrics.RECONCILED.inc(published)
            log.info("missing tasks created", tasks=published)

    async def reconcile(self) -> int:
        """Make a task for each change set that has a request and no task; return their number.

        Of those that this round looks at. Likewise for each due DVU that this round's scan finds.
        May be repeated, and run in several processes at once: a needless task costs one empty run.
        """
        tasks = await self._tasks()
        without_task = sorted(await self._with_requests(tasks) | await self._unfinished(tasks))
        for change_set in without_task:
            with contained("change set", passing=(JetStreamError,), change_set=change_set):
                await ensure_task(self._js, self._subjects, change_set)
        return len(without_task)

    async def _tasks(self) -> Collection[str] | None:
        """Return the subjects of all tasks; None if they are too many to be listed."""
        stream = self._subjects.tasks_stream
        if (await self._js.stream_info(stream)).state.num_subjects > self._few:
            return None
        return await self._js.stream_subjects(stream)

    async def _with_requests(self, tasks: Collection[str] | None) -> set[ChangeSet]:
        """Return the change sets that have requests and no task, of those that this round looks at.

        Subjects are compared as text: a hundred thousand with a task need no parsing.
        """
        subjects = self._subjects
        requests, task_prefix = (
            subjects.join("rebaser.requests."),
            subjects.join("rebaser.tasks."),
        )
        with_requests = await self._requests.next()
        without_task = [
            s
            for s in with_requests
            if tasks is None or f"{task_prefix}{s.removeprefix(requests)}.process" not in tasks
        ]
        change_sets = await self._change_sets(without_task, subjects.requests_stream)
        return change_sets if tasks is not None else await self._lacking_task(change_sets)

    async def _change_sets(self, subjects: Iterable[str], stream: str) -> set[ChangeSet]:
        """Return those that the subjects name, and that are not paused."""
        change_sets = set()
        for number, subject in enumerate(subjects):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            with contained("subject", stream=stream, subject=subject):
                change_sets.add(self._subjects.parse_change_set(subject))
        return {change_set for change_set in change_sets if not self._paused(change_set)}

    async def _lacking_task(self, change_sets: Iterable[ChangeSet]) -> set[ChangeSet]:
        """Return those without a task, asked for one by one."""
        lacking = set[ChangeSet]()

        async def look(change_set: ChangeSet) -> None:
            stream, subject = self._subjects.tasks_stream, self._subjects.task(change_set)
            if await self._js.get_message(stream, last_by_subject=subject) is None:
                lacking.add(change_set)

        await for_each_concurrently(change_sets, look, _AT_ONCE)
        return lacking

    async def _unfinished(self, tasks: Collection[str] | None) -> set[ChangeSet]:
        """Return the change sets whose control record is unfinished and that have no task."""
        stream, subjects = self._subjects.commits_stream, self._subjects
        change_sets = await self._change_sets(await self._scanner.scan(), stream)
        if tasks is None:
            change_sets = await self._lacking_task(change_sets)
        return {
            change_set
            for change_set in change_sets
            if (tasks is None or subjects.task(change_set) not in tasks)
            and await self._scanner.is_unfinished(subjects.commits(change_set))
        }
