"""The slots of a process: a bounded number of change sets at once, shared fairly.

`Deferrals` says when tasks that got no slot are redelivered. `Fairness` says how many slots a
workspace may have while others wait.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from typing import Final, Never

import structlog

from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import ConsumerInfo
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.containment import repeat_every

_SOONEST: Final = 0.25  # seconds

DEFERRED_PER_SECOND: Final = 50
"""Number of deferred tasks that are redelivered per second: bounds what a crowd costs this process.
A process that takes tasks faster gets more: else slots would wait for tasks."""

_FIRST_PER_SECOND: Final = 1_000
"""The same of tasks that are deferred for the first time: about as many as a process can take.
While a crowd arrives, nothing says how long its runs will be. Were they taken to be long, the slots
of short ones would be idle until the last of the crowd is back."""

_PER_TAKEN: Final = 1.5
"""Number of deferred tasks that are redelivered for each task taken, if that is more."""

_LATELY: Final = 5.0  # seconds in which tasks were taken that count

MAX_DEFERRAL: Final = 120.0  # seconds

_PREEMPT_AHEAD: Final = 1.0  # seconds before a deferred task's redelivery that a slot is requested


class Deferrals:
    """The tasks that a process deferred. They return one after the other, workspaces in turns.

    So they are no flood, the other tasks in the stream are reached quickly, and no workspace
    waits for another's crowd.
    """

    def __init__(self) -> None:
        self._due: dict[ChangeSet, float] = {}
        """Times at which the tasks of deferred change sets are redelivered."""
        self._in_order: dict[WorkspaceId, deque[tuple[float, ChangeSet]]] = {}
        """The same of each workspace, the soonest first, with some that count no more: so the cost
        of a look does not grow with the number of deferred tasks."""
        self._last: dict[WorkspaceId, float] = {}
        """Time at which the last deferred task of each workspace is redelivered, if that is not
        past."""
        self._taken: deque[float] = deque()
        """Times at which the last tasks were taken."""

    def __len__(self) -> int:
        return len(self._due)

    def defer(self, change_set: ChangeSet, delivered: int) -> float:
        """Return for how many seconds to nak the change set's task, which got no slot.

        `delivered` counts its deliveries.
        """
        now = asyncio.get_running_loop().time()
        workspace = change_set.workspace_id
        last = max(self._last.setdefault(workspace, now), now)
        per_second = _FIRST_PER_SECOND if delivered == 1 else self._per_second(now)
        soonest = max(last + len(self._last) / per_second, now + _SOONEST)
        redelivery = min(soonest, now + MAX_DEFERRAL)
        self._last[workspace] = self._due[change_set] = redelivery
        self._in_order.setdefault(workspace, deque()).append((redelivery, change_set))
        return redelivery - now

    def _per_second(self, now: float) -> float:
        self._forget(now)
        return max(DEFERRED_PER_SECOND, _PER_TAKEN * len(self._taken) / _LATELY)

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0] < now - _LATELY:
            self._taken.popleft()

    def on_taken(self, change_set: ChangeSet) -> None:
        """Forget the change set's task, which has a slot."""
        now = asyncio.get_running_loop().time()
        self._taken.append(now)
        self._forget(now)
        self._due.pop(change_set, None)

    def due(self) -> Counter[WorkspaceId]:
        """Return the number of deferred tasks of each workspace that are redelivered about now."""
        now = asyncio.get_running_loop().time()
        self._last = {whose: at for whose, at in self._last.items() if at > now}
        counts = Counter[WorkspaceId]()
        for workspace, deferred in list(self._in_order.items()):
            while deferred and deferred[0][0] <= now - _PREEMPT_AHEAD:  # another Rebaser took it
                at, change_set = deferred.popleft()
                if self._due.get(change_set) == at:
                    del self._due[change_set]
            soon = takewhile(lambda each: each[0] < now + _PREEMPT_AHEAD, deferred)
            if count := sum(self._due.get(change_set) == at for at, change_set in soon):
                counts[workspace] = count
            if not deferred:
                del self._in_order[workspace]
        return counts


_SHARE: Final = 4.0
"""Number of slots that a workspace may have for each one that is free afterwards. A single busy
workspace leaves 1/5 of the slots free, k of them 1 / (4 k + 1), so a workspace with little work
finds one: dynamic thresholds, after Choudhury and Hahne (1998). More would leave few to others,
less would leave slots idle."""
MAX_HOLD: Final = 30.0
"""Seconds of work after which a change set leaves its slot if another one needs it: long beside the
load of a change set, which each turn costs, and short for those who wait."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Shares of workspaces in the slots, while others wait."""

    weights: Mapping[WorkspaceId, float] = field(default_factory=dict)
    """Factors of single workspaces' shares; 1 for the others."""

    def admits(self, workspace: WorkspaceId, held: int, free: int) -> bool:
        """Whether a workspace with `held` slots may have one of `free` ones, if any is free.

        A workspace may always have its first slot.
        """
        share = _SHARE * self.weights.get(workspace, 1.0)
        return free > 0 and (held == 0 or held + 1 <= share * (free - 1))


log: Final = structlog.get_logger()

CHECK_EVERY: Final = 0.25
"""Seconds between two checks whether tasks wait."""

_WANTED_CHECK_EVERY: Final = 0.02
"""Seconds between two checks while no slot is free and the last check found tasks that wait."""

_TASKS_WAIT_FOR: Final = 1.0
"""Seconds for which tasks are taken to wait after a check that found some."""

_VACATE_EVERY: Final = 0.01
"""Seconds between two requests to idle change sets to leave for tasks that wait here."""

MAX_WAIT: Final = 1.0
"""Seconds that a task waits here for an idle change set to leave; then it is deferred."""

_MAX_CHECK_EVERY: Final = 2.0  # seconds between two checks, at most, while NATS does not answer

_HANDOVER_CHECK_EVERY: Final = 0.1
"""Seconds between two checks during a handover: a Rebaser left, and its tasks wait."""

_MIN_IDLE: Final = 0.05
"""Seconds after its last request before which a change set is not preempted."""

_CONFIRMING_CHECKS: Final = 4
"""Checks in a row that must show undelivered tasks before slots are requested for them: longer than
the age of the other Rebasers' counts, which come every half second."""

_HANDOVER_CONFIRMING_CHECKS: Final = 2
"""Checks in a row during a handover, when the counts come more often."""


class SlotPool:
    """The slots of a process, and the leases on them."""

    def __init__(
        self,
        streams: Streams,
        count: int,
        fairness: Fairness,
        busy_elsewhere: Callable[[], int | None] = lambda: None,
        in_handover: Callable[[], bool] = lambda: False,
    ) -> None:
        """Divide `count` slots.

        `busy_elsewhere` counts the tasks of other Rebasers; None if that is unknown.

        `in_handover`: whether one of them left lately.
        """
        self._streams = streams
        self._count = count
        self._fairness = fairness
        self._leases: dict[SlotLease, None] = {}
        """Leases, the oldest first: of equals, the older one leaves."""
        self._by_workspace: dict[WorkspaceId, dict[SlotLease, None]] = {}
        self._waiting: dict[asyncio.Future[SlotLease], WorkspaceId] = {}
        """Tasks of workspaces that have their share, and that wait for an idle change set to
        leave."""
        self._vacating: asyncio.TimerHandle | None = None
        self._tasks_waited_at = -_TASKS_WAIT_FOR
        """Time at which a check last found tasks that wait for a slot."""
        self.deferrals = Deferrals()
        self._busy_elsewhere = busy_elsewhere
        self._in_handover = in_handover
        self._undelivered_counts: deque[int] = deque(maxlen=_CONFIRMING_CHECKS)
        self._freed = asyncio.Event()

    @property
    def busy(self) -> int:
        return len(self._leases)

    @property
    def in_hand(self) -> int:
        return len(self._leases) + len(self._waiting)

    @property
    def free(self) -> int:
        return self._count - len(self._leases)

    @property
    def spare(self) -> int:
        """Number of free slots that no task waits for, without those that are left to others."""
        now = asyncio.get_running_loop().time()
        if self._waiting or self.deferrals or now < self._tasks_waited_at + _TASKS_WAIT_FOR:
            return 0
        return self.free

    async def wait_until_free(self) -> None:
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def acquire(self, change_set: ChangeSet) -> SlotLease | None:
        """Return a slot for the change set; None if other workspaces have precedence."""
        workspace = change_set.workspace_id
        if not self._fairness.admits(workspace, len(self._of(workspace)), self.free):
            return None
        self.deferrals.on_taken(change_set)
        return self._lease(workspace)

    def _lease(self, workspace: WorkspaceId) -> SlotLease:
        slot = SlotLease(workspace)
        self._leases[slot] = self._by_workspace.setdefault(workspace, {})[slot] = None
        return slot

    async def acquire_vacated(self, change_set: ChangeSet) -> SlotLease | None:
        """Return the slot of an idle change set of the workspace, which leaves for it.

        Return None if no change set has left within `MAX_WAIT`, or if others wait for each that
        may.
        """
        workspace = change_set.workspace_id
        if list(self._waiting.values()).count(workspace) >= len(self._of(workspace)):
            return None
        vacated: asyncio.Future[SlotLease] = asyncio.get_running_loop().create_future()
        self._waiting[vacated] = workspace
        self._request_vacating()
        try:
            await asyncio.wait([vacated], timeout=MAX_WAIT)
        except asyncio.CancelledError:
            # A slot that comes in the moment of the cancellation would stay taken for ever.
            if vacated.done():
                self.release(vacated.result())
            raise
        finally:
            self._waiting.pop(vacated, None)
        # The slot may come between the timeout and this line, so the future is asked, not the wait.
        if not vacated.done():
            return None
        self.deferrals.on_taken(change_set)
        return vacated.result()

    def _of(self, workspace: WorkspaceId) -> dict[SlotLease, None]:
        return self._by_workspace.get(workspace, {})

    def _request_vacating(self) -> None:
        if self._vacating is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._vacating = loop.call_later(_VACATE_EVERY, self._vacate)

    def _vacate(self) -> None:
        """Ask one idle change set to leave for each task that waits.

        Several are asked at a time, so that a look pays.
        """
        self._vacating = None
        for workspace, count in Counter(self._waiting.values()).items():
            self._request_slots(self._of(workspace), count)
        self._request_vacating()

    def _hand_over(self) -> None:
        """Give free slots to the tasks that wait here, the longest waiting first."""
        for vacated, workspace in list(self._waiting.items()):
            if self._fairness.admits(workspace, len(self._of(workspace)), self.free):
                # The waiting task wakes later. A second release until then must not serve it.
                del self._waiting[vacated]
                vacated.set_result(self._lease(workspace))

    def release(self, slot: SlotLease) -> None:
        if slot in self._leases:
            del self._leases[slot]
            others = self._of(slot.workspace)
            del others[slot]
            if not others:
                del self._by_workspace[slot.workspace]
            self._hand_over()
        self._freed.set()

    async def preempt(self) -> Never:
        """Request slots that others need: within a workspace, or, once all are taken, from all.

        The longest idle change sets go first; then those that worked for `MAX_HOLD`, beginning with
        the workspace that has most slots.
        """

        async def pause(seconds: float) -> None:
            if self._in_handover():
                seconds = min(seconds, _HANDOVER_CHECK_EVERY)
            if asyncio.get_running_loop().time() < self._tasks_waited_at + _TASKS_WAIT_FOR:
                seconds = min(seconds, _WANTED_CHECK_EVERY)
            await asyncio.sleep(seconds)

        await repeat_every(
            CHECK_EVERY, self._preempt, "slots", jitter=0, max_backoff=_MAX_CHECK_EVERY, pause=pause
        )

    async def _preempt(self) -> None:
        for workspace, count in self.deferrals.due().items():
            self._request_slots(self._of(workspace), count)
        if self.free:
            self._undelivered_counts.clear()
            return
        js, stream = self._streams.js, self._streams.tasks_stream
        info = await js.consumer_info(stream, TASKS_CONSUMER)
        if info.num_pending:
            self._tasks_waited_at = asyncio.get_running_loop().time()
        self._request_slots(self._leases, info.num_pending + self._undelivered(info))

    def _undelivered(self, info: ConsumerInfo) -> int:
        """Count the tasks that were delivered once, then nak'd, and that no Rebaser holds.

        The server counts them among the delivered ones. The other Rebasers' counts are old,
        so the smallest of the last few differences is used.
        """
        elsewhere = self._busy_elsewhere()
        in_hand = self.in_hand + (elsewhere or 0)
        self._undelivered_counts.append(
            0 if elsewhere is None else max(0, info.num_ack_pending - in_hand)
        )
        checks = _HANDOVER_CONFIRMING_CHECKS if self._in_handover() else _CONFIRMING_CHECKS
        latest = list(self._undelivered_counts)[-checks:]
        return min(latest) if len(latest) == checks else 0

    def _request_slots(self, slots: Iterable[SlotLease], count: int) -> None:
        idle, expired = list[tuple[float, SlotLease]](), []
        for slot in slots:
            if slot.is_set:
                count -= 1  # it is about to leave, or has a request
            elif (seconds := slot.idle) >= _MIN_IDLE:
                idle.append((seconds, slot))
            elif slot.age >= MAX_HOLD:
                expired.append(slot)
        idle.sort(key=itemgetter(0), reverse=True)
        for _, slot in idle[: max(0, count)]:
            slot.set()
        expired.sort(key=lambda slot: (len(self._of(slot.workspace)), slot.age), reverse=True)
        for slot in expired[: max(0, count - len(idle))]:
            slot.expired = True
