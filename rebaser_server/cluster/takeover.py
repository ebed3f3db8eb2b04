"""Hand over at once the tasks that nobody works on any more, without waiting for a lease."""

import asyncio
from collections.abc import Callable
from typing import Final, Never

import structlog

from rebaser_client.request_publisher import ensure_task
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.cluster.membership import BEAT_EVERY, PRESUMED_DEAD, Members
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import HistoryBroken, LeftForNewer
from rebaser_server.runtime.concurrency import for_each_concurrently
from rebaser_server.runtime.containment import contained, printable
from rebaser_server.runtime.periodic import repeat_every, survived
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

LONGEST_LOOK: Final = 2.0  # seconds between two looks while NATS does not answer

AT_ONCE: Final = 16
"""Tasks that are looked at and renewed at a time."""


class Takeover:
    """Makes new tasks in place of those that the dead held.

    The holder's acks, naks and progress refer to the old task's sequence and do not
    touch the new one; its commits fail as soon as somebody takes the new one. So it
    may be alive: all that is lost then is its work in hand.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        members: Members,
        holds: Callable[[ChangeSet], bool] = lambda _: False,
    ) -> None:
        """`holds`: whether a change set is worked on in this process."""
        self._js = js
        self._subjects = subjects
        self._members = members
        self._holds = holds
        self._presumed: dict[str, int] = {}
        """The last task that was stored when each of the silent ones was found so."""
        self._done: set[str] = set()
        """Those of them whose tasks were replaced."""

    async def run(self) -> Never:
        """Watch until cancelled; each silence is acted on once (F1).

        Were it acted on for as long as it lasts, one that is only slow would lose task
        after task, and so would whoever takes them.
        """
        await self._renew_tasks_of_strangers()
        await repeat_every(BEAT_EVERY, self._look, "takeover", jitter=0, max_backoff=LONGEST_LOOK)

    async def _look(self) -> None:
        silent = self._members.silent()
        self._done &= silent
        self._presumed = {m: sequence for m, sequence in self._presumed.items() if m in silent}
        for member in silent - self._done:
            with contained("presumption", passing=(JetStreamError,), member=member):
                await self._replace(member)

    async def _replace(self, member: str) -> None:
        if member not in self._presumed:
            self._presumed[member] = await self._last_task()
        # Those before us in rank have had their second; we find it done.
        await asyncio.sleep(self._members.rank() * BEAT_EVERY)
        renewed = await self.renew_tasks(self._presumed[member], member.__eq__)
        self._done.add(member)
        log.warning("member presumed dead", member=printable(member), tasks=renewed)

    async def _renew_tasks_of_strangers(self) -> None:
        """Once, after listening for a while: what was delivered before and nobody works on.

        Owners not heard died before this one started (F3). What nobody owns was given back:
        it comes by itself, unless NATS was stopped, too, and has forgotten; then it would
        come when the lease ends. The eldest has it come at once (F5). Nothing is presumed
        while this one does not hear even itself.
        """
        up_to = None
        while up_to is None or not self._members.hears_itself():
            with survived("takeover"):
                up_to = up_to or await self._last_delivered()
            await asyncio.sleep(PRESUMED_DEAD)
        eldest = self._members.eldest()

        def lost(owner: str) -> bool:
            return not self._members.heard(owner) if owner else eldest

        with survived("takeover"):  # else their leases end
            renewed = await self.renew_tasks(up_to, lost, but=self._holds)
            if renewed:
                log.warning("orphaned tasks reclaimed", tasks=renewed)

    async def _last_task(self) -> int:
        info = await self._js.stream_info(self._subjects.tasks_stream)
        return int(info["state"]["last_seq"])

    async def _last_delivered(self) -> int:
        """Of the tasks; those behind it come by themselves, whoever died."""
        info = await self._js.consumer_info(self._subjects.tasks_stream, TASKS_CONSUMER)
        return int(info["delivered"]["stream_seq"])

    async def renew_tasks(
        self,
        up_to: int,
        dead: Callable[[str], bool],
        but: Callable[[ChangeSet], bool] = lambda _: False,
    ) -> int:
        """Replace each task whose change set's owner is `dead`; how many that were.

        Only tasks up to sequence `up_to`, which were there when it fell silent: a later
        one is a healthy successor's. None of those `but` is true of. May be repeated.
        """
        stream, renewed = self._subjects.tasks_stream, 0

        async def renew(subject: str) -> None:
            with contained("task", passing=(JetStreamError,), subject=subject):
                await renew_one(self._subjects.parse_change_set(subject))

        async def renew_one(change_set: ChangeSet) -> None:
            nonlocal renewed
            subject = self._subjects.task(change_set)
            # The task first, then the head (F2): the other way round it might be a successor's.
            task = await self._js.get_message(stream, last_by_subject=subject)
            if task is None or task.sequence > up_to or but(change_set):
                return
            if not dead(await self._owner(change_set)):
                return
            try:
                await self._js.delete_message(stream, task.sequence)
            finally:  # gone or not: a task too many costs an empty run
                await ensure_task(self._js, self._subjects, change_set)
            renewed += 1
            metrics.TAKEN_OVER.inc()

        await for_each_concurrently(await self._js.stream_subjects(stream), renew, AT_ONCE)
        return renewed

    async def _owner(self, change_set: ChangeSet) -> str:
        """The start of a process that owns the change set; empty if none does, or none we know."""
        try:
            _, last = await CommitLog(self._js, self._subjects, change_set).last()
        except (LeftForNewer, HistoryBroken):  # for newer ones to renew, or for a person to mend
            return ""
        return "" if last is None else last.head.owner.rpartition("/")[0]
