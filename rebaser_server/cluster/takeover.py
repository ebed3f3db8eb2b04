"""Take over the tasks of dead Rebasers at once, without waiting for their leases to end."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, Never

import structlog

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_core.requests import ensure_task
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.membership import PRESUMED_DEAD, Membership
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion
from rebaser_server.runtime.containment import contained, printable, repeat_every, survived
from rebaser_server.runtime.tasks import TaskGroup, finish, for_each_concurrently
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

CHECK_EVERY: Final = 0.25
"""Seconds between two looks for silent members; absent ones are noticed without."""
_MAX_CHECK_EVERY: Final = 2.0  # seconds between two checks, at most, while NATS does not answer

_TURN: Final = 0.5
"""Seconds that a member has for the tasks of a dead one before the next member acts, too."""

CONCURRENCY: Final = 16
"""Tasks that are checked and republished at a time."""

_FINISHED_WITHIN: Final = 10.0
"""Seconds that a deleted task's successor may take, although others failed or the process stops."""


class Takeover:
    """Makes new tasks in place of those that dead Rebasers held.

    The holder's acks, naks and progress refer to the old task's sequence and do not
    touch the new one; its commits fail as soon as a run takes the new one. So the holder
    may be alive: only its work under way is lost then.
    """

    def __init__(
        self,
        streams: Streams,
        members: Membership,
        holds: Callable[[ChangeSet], bool] = lambda _: False,
    ) -> None:
        """Begin without suspects. `holds`: whether this process works on a change set."""
        self._streams = streams
        self._members = members
        self._holds = holds
        self._delivered_when_suspected: dict[str, int] = {}
        """Sequence of the last delivered task when the silence of each silent member was
        noticed."""
        self._done: set[str] = set()
        """The silent members whose tasks were republished."""

    async def run(self) -> Never:
        """Watch the members until cancelled; act on each silence once (F1).

        Acting for as long as the silence lasts would take task after task from a member that is
        only slow, and from the members that take them over.
        """
        async with TaskGroup() as group:
            group.create_task(self._reclaim_orphans())
            await repeat_every(
                CHECK_EVERY,
                self._check,
                "takeover",
                jitter=0,
                max_backoff=_MAX_CHECK_EVERY,
                pause=self._members.await_absence,
            )

    async def _check(self) -> None:
        suspected = self._members.suspected()
        # F1: a member that is heard again is forgotten here, so its next silence is acted on, too.
        self._done &= suspected
        self._delivered_when_suspected = {
            m: sequence for m, sequence in self._delivered_when_suspected.items() if m in suspected
        }
        for member in sorted(suspected - self._done):  # the same order for the same seed
            with contained("presumption", passing=(JetStreamError,), member=member):
                await self._take_over(member)

    async def _take_over(self, member: str) -> None:
        # F1: a retry keeps the first number. Else it would also replace tasks that healthy
        # successors have taken since then.
        if member not in self._delivered_when_suspected:
            self._delivered_when_suspected[member] = await self._last_delivered()
        # The members whose turn is before this one's have probably done it by then.
        await asyncio.sleep(self._members.turn(member) * _TURN)

        async def is_dead(owner: str) -> bool:
            # Without a living owner, it may be the member's that has not begun with it (F7).
            unclaimed = self._members.is_eldest() and not self._members.is_alive(owner)
            return owner == member or unclaimed

        renewed = await self.republish_tasks(
            self._delivered_when_suspected[member], is_dead, except_for=self._holds
        )
        # The note comes last, so that the next check repeats a round that failed.
        self._done.add(member)
        log.warning("member presumed dead", member=printable(member), tasks=renewed)

    async def _reclaim_orphans(self) -> None:
        """Republish, once, the tasks that no member works on: those of absent owners at once (F6).

        Other tasks follow after listening for a while. An owner that is not heard died before this
        process started (F3). A change set without an owner has a nak'd task: NATS redelivers it,
        unless NATS was restarted, too, and lost the nak; then it would wait for the lease's end.
        The eldest member republishes those (F5). While this process does not hear itself, it
        republishes nothing.
        """
        up_to, checks = None, defaultdict[str, asyncio.Lock](asyncio.Lock)
        absent: dict[str, bool] = {}

        async def is_absent(owner: str) -> bool:
            async with checks[owner]:  # an owner is asked once for all its tasks
                if owner not in absent:
                    absent[owner] = bool(
                        owner
                        and not self._members.is_known(owner)
                        and await self._members.confirm_absence(owner)
                    )
            return absent[owner]

        async def is_orphaned(owner: str) -> bool:
            return not self._members.is_known(owner) if owner else self._members.is_eldest()

        while up_to is None or not self._members.hears_itself():
            with survived("takeover"):
                if up_to is None:
                    # F3: the number of the start counts in both rounds, since later tasks come by
                    # themselves.
                    up_to = await self._last_delivered()
                    await self._reclaim(up_to, is_absent)
            await asyncio.sleep(PRESUMED_DEAD)
        await self._reclaim(up_to, is_orphaned)

    async def _reclaim(self, up_to: int, dead: Callable[[str], Awaitable[bool]]) -> None:
        with survived("takeover"):  # without it, the leases end in time
            republished = await self.republish_tasks(up_to, dead, except_for=self._holds)
            if republished:
                log.warning("orphaned tasks reclaimed", tasks=republished)

    async def _last_delivered(self) -> int:
        """Return the sequence of the last delivered task; later ones are delivered anyway."""
        info = await self._streams.js.consumer_info(self._streams.tasks_stream, TASKS_CONSUMER)
        return info.delivered.stream_seq

    async def republish_tasks(
        self,
        up_to: int,
        dead: Callable[[str], Awaitable[bool]],
        except_for: Callable[[ChangeSet], bool] = lambda _: False,
    ) -> int:
        """Replace each task whose change set's owner is `dead`; return their number.

        Tasks count up to sequence `up_to`, the last one delivered when the owner fell silent: a
        later one is a healthy successor's. Change sets for which `except_for` is true are left out.
        May be repeated.
        """
        stream, republished = self._streams.tasks_stream, 0

        async def republish(subject: str) -> None:
            with contained("task", passing=(JetStreamError,), subject=subject):
                await republish_one(self._streams.parse_change_set(subject))

        async def republish_one(change_set: ChangeSet) -> None:
            nonlocal republished
            subject = self._streams.task(change_set)
            # First the task, then the owner (F2): the other way round it might be a successor's.
            task = await self._streams.js.get_message(stream, last_by_subject=subject)
            if task is None or task.sequence > up_to or except_for(change_set):
                return
            owner = await self._owner(change_set)
            if not await dead(owner):
                return
            # That took a while: since then this process, or another, may have taken the task.
            if except_for(change_set) or await self._owner(change_set) != owner:
                return
            # F2: a stop, or another task that fails, cancels this one. Cancelled between its two
            # steps, the replacement would leave the change set without a task.
            await finish(self._replace(change_set, task.sequence), _FINISHED_WITHIN)
            republished += 1
            metrics.TAKEN_OVER.inc()

        subjects = await self._streams.js.stream_subjects(stream)
        await for_each_concurrently(subjects, republish, CONCURRENCY)
        return republished

    async def _replace(self, change_set: ChangeSet, sequence: int) -> None:
        try:
            await self._streams.js.delete_message(self._streams.tasks_stream, sequence)
        finally:  # even if the delete failed: a needless task costs an empty run
            await ensure_task(self._streams, change_set)

    async def _owner(self, change_set: ChangeSet) -> str:
        """Return the owner of the change set; empty if it has none, or an unreadable one."""
        try:
            _, last = await CommitLog(self._streams, change_set).last()
        except (
            NeedsNewerVersion,
            HistoryInconsistent,
        ):  # a newer Rebaser republishes it, or an operator repairs it
            return ""
        return "" if last is None else last.control.owner.rpartition("/")[0]
