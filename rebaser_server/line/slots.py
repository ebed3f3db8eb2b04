"""So many change sets at once, and no workspace or change set at the cost of the others."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Never

import structlog

from rebaser_core.ids import WorkspaceId
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.errors import Cancelled, Resumed, SlotWanted
from rebaser_server.lifetimes import Wish

log: Final = structlog.get_logger()

LOOK_EVERY: Final = 0.25
"""Seconds between two looks whether tasks wait."""

SHORTEST_IDLE: Final = 0.25
"""Seconds that a change set is left its slot after its last request, whoever waits."""

BELIEVED: Final = 4
"""Looks in a row that must show tasks given back before room is made for them."""

RETURNS: Final = 50
"""Tasks a second that come back after they were put off: what a crowd may cost this process."""

LONGEST_PUT_OFF: Final = 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Fairness:
    """What a workspace and a change set may have while others want it, too."""

    share: float = 4.0
    """Slots a workspace may have for each one that is free afterwards. A single busy one then
    leaves 1 / (share + 1) of the slots free, k of them 1 / (k * share + 1), so whoever comes
    with little work finds one: dynamic thresholds, after Choudhury and Hahne (1998)."""
    weights: Mapping[WorkspaceId, float] = field(default_factory=dict)
    """By which the share of a workspace is multiplied; 1 for those not named."""
    turn: float = 30.0
    """Seconds of work after which a change set whose slot is wanted goes to the end of the line."""

    def admits(self, workspace: WorkspaceId, held: int, free: int) -> bool:
        """Whether a workspace that has `held` slots may have one of `free` ones; its first always.

        As long as any is free, that is.
        """
        share = self.share * self.weights.get(workspace, 1.0)
        return free > 0 and (held == 0 or held + 1 <= share * (free - 1))


class Turn(Wish):
    """A change set's stay in a slot."""

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(SlotWanted)
        self.workspace = workspace
        self.over = False
        """It had its time and others wait: to go after the request in hand, if more are in line."""
        self.paused = False
        """To go after what is in hand, whatever is in line (P4)."""
        self.resumes = Wish(Resumed)
        self.cancels = Wish(Cancelled)
        """Of the update in hand."""
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._idle_since: float | None = None

    def pause(self, *, paused: bool) -> None:
        """Say whether the change set is paused, as often as one likes."""
        self.paused = paused
        if paused:
            self.resumes.clear()
            self.ask()
        else:
            self.resumes.ask()

    @property
    def idle(self) -> float:
        """For how many seconds it has had nothing to do."""
        return 0.0 if self._idle_since is None else self._clock() - self._idle_since

    @property
    def age(self) -> float:
        """Seconds."""
        return self._clock() - self._since

    @asynccontextmanager
    async def waiting(self, *, has_work: bool) -> AsyncIterator[None]:
        """Wait for a request in the body; ended by `SlotWanted` unless there is other work."""
        if not self.paused:
            self.clear()
        self._idle_since = None if has_work else self._clock()
        try:
            async with self.interrupts():
                yield
        finally:
            self._idle_since = None


class Slots:
    """The slots of a process and who has them."""

    def __init__(
        self,
        js: JetStream,
        tasks_stream: str,
        count: int,
        fairness: Fairness,
        busy_elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`busy_elsewhere` counts the tasks in hand of other Rebasers; None if that is unknown."""
        self._js = js
        self._stream = tasks_stream
        self._count = count
        self._fairness = fairness
        self._turns: set[Turn] = set()
        self._held: Counter[WorkspaceId] = Counter()
        self._put_off: Counter[WorkspaceId] = Counter()
        """Tasks since the last look."""
        self._returns: dict[WorkspaceId, float] = {}
        """When the last task of each comes back, as far as that is not over."""
        self._busy_elsewhere = busy_elsewhere
        self._given_back: deque[int] = deque(maxlen=BELIEVED)
        self._freed = asyncio.Event()

    @property
    def busy(self) -> int:
        return len(self._turns)

    @property
    def free(self) -> int:
        return self._count - len(self._turns)

    async def one_free(self) -> None:
        """Return once a slot is free."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def take(self, workspace: WorkspaceId) -> Turn | None:
        """A slot for a change set of the workspace; None if that would be at others' cost."""
        if not self._fairness.admits(workspace, self._held[workspace], self.free):
            return None
        turn = Turn(workspace)
        self._turns.add(turn)
        self._held[workspace] += 1
        return turn

    def put_off(self, workspace: WorkspaceId) -> float:
        """For how many seconds a task that got no slot is given back.

        One after the other, however many, so that looking for what else there is in the
        stream is quick, and what comes back is no flood; and the workspaces in turns, so that
        none waits for another's crowd.
        """
        self._put_off[workspace] += 1
        now = asyncio.get_running_loop().time()
        last = max(self._returns.setdefault(workspace, now), now)
        soonest = max(last + len(self._returns) / RETURNS, now + LOOK_EVERY)
        self._returns[workspace] = min(soonest, now + LONGEST_PUT_OFF)
        return self._returns[workspace] - now

    def give_back(self, turn: Turn) -> None:
        if turn in self._turns:
            self._turns.discard(turn)
            self._held[turn.workspace] -= 1
            self._held += Counter()  # forgets who has none
        self._freed.set()

    async def make_room(self) -> Never:
        """Ask for slots that are wanted: within a workspace, or by anyone once all are taken.

        First those of the longest idle; then those of whoever has worked for a turn, and
        of these first the ones whose workspace has most.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = asyncio.get_running_loop().time()
            self._returns = {whose: at for whose, at in self._returns.items() if at > now}
            put_off, self._put_off = self._put_off, Counter()
            for workspace, count in put_off.items():
                self._ask((turn for turn in self._turns if turn.workspace == workspace), count)
            if self.free:
                self._given_back.clear()
                continue
            try:
                info = await self._js.consumer_info(self._stream, TASKS_CONSUMER)
            except JetStreamError as error:
                log.warning("waiting tasks not counted", error=str(error))
            else:
                self._ask(self._turns, info["num_pending"] + self._returned(info))

    def _returned(self, info: Mapping[str, Any]) -> int:
        """Tasks that wait though they were delivered once: given back, and nobody has them.

        The server counts them among those in hand. Others' counts of these are half a
        second old, so what was so for a while is believed, and no more.
        """
        elsewhere = self._busy_elsewhere()
        in_hand = self.busy + (elsewhere or 0)
        self._given_back.append(
            0 if elsewhere is None else max(0, info["num_ack_pending"] - in_hand)
        )
        return min(self._given_back) if len(self._given_back) == BELIEVED else 0

    def _ask(self, turns: Iterable[Turn], count: int) -> None:
        idle, tired = [], []
        for turn in turns:
            if turn.idle >= SHORTEST_IDLE:
                idle.append(turn)
            elif turn.age >= self._fairness.turn:
                tired.append(turn)
        idle.sort(key=lambda turn: turn.idle, reverse=True)
        for turn in idle[:count]:
            turn.ask()
        tired.sort(key=lambda turn: (self._held[turn.workspace], turn.age), reverse=True)
        for turn in tired[: max(0, count - len(idle))]:
            turn.over = True
