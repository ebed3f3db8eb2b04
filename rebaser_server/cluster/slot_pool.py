"""So many change sets at once, and no workspace or change set at the cost of the others."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Never

import structlog

from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.periodic import repeat_every

log: Final = structlog.get_logger()

CHECK_EVERY: Final = 0.25
"""Seconds between two looks whether tasks wait."""

MAX_CHECK_EVERY: Final = 2.0  # seconds to which that grows while NATS does not answer

HANDOVER_CHECK_EVERY: Final = 0.1
"""The same while the tasks of one that left are on their way."""

MIN_IDLE: Final = 0.25
"""Seconds that a change set is left its slot after its last request, whoever waits."""

CONFIRMING_CHECKS: Final = 4
"""Looks in a row that must show tasks given back before room is made for them: for longer than
others' counts are old, which tell each other of theirs every half second."""

HANDOVER_CONFIRMING_CHECKS: Final = 2
"""The same while the tasks of one that left are on their way: they tell each other more often."""

DEFERRED_PER_SECOND: Final = 50
"""Tasks a second that come back after they were put off: what a crowd may cost this process."""

MAX_DEFERRAL: Final = 120.0  # seconds

PREEMPT_AHEAD: Final = 1.0  # seconds that room is made before a task that was put off comes again


@dataclass(frozen=True, slots=True)
class Fairness:
    """What a workspace and a change set may have while others want it, too."""

    share: float = 4.0
    """Slots a workspace may have for each one that is free afterwards. A single busy one then
    leaves 1 / (share + 1) of the slots free, k of them 1 / (k * share + 1), so whoever comes
    with little work finds one: dynamic thresholds, after Choudhury and Hahne (1998)."""
    weights: Mapping[WorkspaceId, float] = field(default_factory=dict)
    """By which the share of a workspace is multiplied; 1 for those not named."""
    max_hold: float = 30.0
    """Seconds of work after which a change set whose slot is wanted goes to the end of the line."""

    def admits(self, workspace: WorkspaceId, held: int, free: int) -> bool:
        """Whether a workspace that has `held` slots may have one of `free` ones; its first always.

        As long as any is free, that is.
        """
        share = self.share * self.weights.get(workspace, 1.0)
        return free > 0 and (held == 0 or held + 1 <= share * (free - 1))


class SlotPool:
    """The slots of a process and who has them."""

    def __init__(
        self,
        js: JetStream,
        tasks_stream: str,
        count: int,
        fairness: Fairness,
        busy_elsewhere: Callable[[], int | None] = lambda: None,
        in_handover: Callable[[], bool] = lambda: False,
    ) -> None:
        """`busy_elsewhere` counts the tasks in hand of other Rebasers; None if that is unknown.

        `moving`: whether one of them left lately.
        """
        self._js = js
        self._stream = tasks_stream
        self._count = count
        self._fairness = fairness
        self._leases: set[SlotLease] = set()
        self._held: Counter[WorkspaceId] = Counter()
        self._deferred: dict[ChangeSet, float] = {}
        """When their tasks come again for want of room in their workspace."""
        self._last_redelivery: dict[WorkspaceId, float] = {}
        """When the last of these of each comes, as far as that is not over."""
        self._busy_elsewhere = busy_elsewhere
        self._in_handover = in_handover
        self._undelivered_counts: deque[int] = deque(maxlen=CONFIRMING_CHECKS)
        self._freed = asyncio.Event()

    @property
    def busy(self) -> int:
        return len(self._leases)

    @property
    def free(self) -> int:
        return self._count - len(self._leases)

    async def wait_until_free(self) -> None:
        """Return once a slot is free."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def acquire(self, change_set: ChangeSet) -> SlotLease | None:
        """A slot for the change set; None if that would be at other workspaces' cost."""
        workspace = change_set.workspace_id
        if not self._fairness.admits(workspace, self._held[workspace], self.free):
            return None
        self._deferred.pop(change_set, None)
        slot = SlotLease(workspace)
        self._leases.add(slot)
        self._held[workspace] += 1
        return slot

    def defer(self, change_set: ChangeSet) -> float:
        """For how many seconds its task is given back, as it got no slot.

        One after the other, however many, so that looking for what else there is in the
        stream is quick, and what comes back is no flood; and the workspaces in turns, so that
        none waits for another's crowd.
        """
        now = asyncio.get_running_loop().time()
        workspace = change_set.workspace_id
        last = max(self._last_redelivery.setdefault(workspace, now), now)
        soonest = max(last + len(self._last_redelivery) / DEFERRED_PER_SECOND, now + CHECK_EVERY)
        redelivery = min(soonest, now + MAX_DEFERRAL)
        self._last_redelivery[workspace] = self._deferred[change_set] = redelivery
        return redelivery - now

    def _due_deferrals(self) -> Counter[WorkspaceId]:
        """How many tasks that were put off need room now: they are there, or will be soon."""
        now = asyncio.get_running_loop().time()
        self._last_redelivery = {
            whose: at for whose, at in self._last_redelivery.items() if at > now
        }
        late = now - PREEMPT_AHEAD  # and so taken elsewhere
        self._deferred = {which: due for which, due in self._deferred.items() if due > late}
        return Counter(
            c.workspace_id for c, due in self._deferred.items() if due < now + PREEMPT_AHEAD
        )

    def release(self, slot: SlotLease) -> None:
        if slot in self._leases:
            self._leases.discard(slot)
            self._held[slot.workspace] -= 1
            self._held += Counter()  # forgets who has none
        self._freed.set()

    async def preempt(self) -> Never:
        """Ask for slots that are wanted: within a workspace, or by anyone once all are taken.

        First those of the longest idle; then those of whoever has worked for a turn, and
        of these first the ones whose workspace has most.
        """

        async def pause(seconds: float) -> None:
            await asyncio.sleep(
                min(seconds, HANDOVER_CHECK_EVERY) if self._in_handover() else seconds
            )

        await repeat_every(
            CHECK_EVERY, self._preempt, "slots", jitter=0, max_backoff=MAX_CHECK_EVERY, pause=pause
        )

    async def _preempt(self) -> None:
        for workspace, count in self._due_deferrals().items():
            self._request_slots(
                (slot for slot in self._leases if slot.workspace == workspace), count
            )
        if self.free:
            self._undelivered_counts.clear()
            return
        info = await self._js.consumer_info(self._stream, TASKS_CONSUMER)
        self._request_slots(self._leases, info["num_pending"] + self._undelivered(info))

    def _undelivered(self, info: Mapping[str, Any]) -> int:
        """Tasks that wait though they were delivered once: given back, and nobody has them.

        The server counts them among those in hand. Others' counts of these are old, so
        what was so for a while is believed, and no more.
        """
        elsewhere = self._busy_elsewhere()
        in_hand = self.busy + (elsewhere or 0)
        self._undelivered_counts.append(
            0 if elsewhere is None else max(0, info["num_ack_pending"] - in_hand)
        )
        checks = HANDOVER_CONFIRMING_CHECKS if self._in_handover() else CONFIRMING_CHECKS
        latest = list(self._undelivered_counts)[-checks:]
        return min(latest) if len(latest) == checks else 0

    def _request_slots(self, slots: Iterable[SlotLease], count: int) -> None:
        idle, expired = [], []
        for slot in slots:
            if slot.is_set:
                count -= 1  # it is about to go, or has a request by now
            elif slot.idle >= MIN_IDLE:
                idle.append(slot)
            elif slot.age >= self._fairness.max_hold:
                expired.append(slot)
        idle.sort(key=lambda slot: slot.idle, reverse=True)
        for slot in idle[: max(0, count)]:
            slot.set()
        expired.sort(key=lambda slot: (self._held[slot.workspace], slot.age), reverse=True)
        for slot in expired[: max(0, count - len(idle))]:
            slot.expired = True
