"""What befalls whom: starts and stops the Rebasers, and strikes as the plan has it."""

import asyncio
import random
from pathlib import Path
from typing import Any

from rebaser_core.jetstream import JetStreamError
from rebaser_server.errors import GraceExceeded
from tests.schedules.applications import Kin
from tests.schedules.broker import Broker, Session
from tests.schedules.loop import Loop
from tests.schedules.processes import Asker, Evaluator, Rebaser
from tests.schedules.record import Record
from tests.schedules.scenario import ASLEEP, AWAKE, SLICES, STEP, Fault, Plan

CANCEL_WITHIN = 15.0
"""Virtual seconds within which a Rebaser ends that is told twice to."""
LONGEST_OUTAGE = 4.0
"""Virtual seconds that NATS does not answer: less than others try again for."""
RESTART_AFTER = 1.0
"""Virtual seconds until a supervisor starts another Rebaser."""


class Fates:
    """The Rebasers and clients of a schedule, and the faults that wait for them."""

    def __init__(
        self,
        plan: Plan,
        loop: Loop,
        broker: Broker,
        record: Record,
        kin: Kin,
        rng: random.Random,
        store: Path,
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._broker = broker
        self._record = record
        self._kin = kin
        self._random = rng
        self._settings = {
            **plan.settings,
            "store": {"root": str(store)},
            "nats": {"connect_timeout": 600.0},
            "ops": {"enabled": False},  # a page needs real sockets
        }
        dvu = random.Random(rng.random())
        owner = record.owner if plan.endless else str
        self.evaluator = Evaluator(dvu, plan.dvu_seconds, plan.dvu_fails, owner)
        self.rebasers: list[Rebaser] = []
        self.askers: list[Asker] = []
        self._starts = 0
        self._armed: list[Fault] = []
        self._orphans = 0
        self._relented = False

    @property
    def alive(self) -> list[Rebaser]:
        return [rebaser for rebaser in self.rebasers if rebaser.alive]

    @property
    def clients(self) -> list[Asker]:
        return [asker for asker in self.askers if not asker.dead]

    def start(self) -> None:
        """Another Rebaser."""
        if self._record.closed:
            return
        self._starts += 1
        name = f"rebaser-{self._starts}"
        self._record.note("start", name)
        rebaser = Rebaser(self._loop, self._broker, name, self._settings, self._kin, self.evaluator)
        self.rebasers.append(rebaser)
        rebaser.task.add_done_callback(
            lambda _: self._ended(rebaser), context=self._loop.outside.context
        )

    def _ended(self, rebaser: Rebaser) -> None:
        """As a supervisor does: have another one, if it failed."""
        if self._record.closed or rebaser.task.cancelled():
            return
        error = rebaser.task.exception()
        if error is not None:
            self._record.note(rebaser.name, "exits", repr(error))
            starting = isinstance(error, JetStreamError) and rebaser.name not in self._record.ready
            late = isinstance(error, GraceExceeded) and rebaser.stood_still
            if not (starting or late):
                self._record.violation(f"UNFORESEEN {rebaser.name} exits: {error!r}")
            self._later(RESTART_AFTER, self.start)

    async def strike(self) -> None:
        """Let happen what the plan has; return after the last of it."""
        began = self._loop.time()
        for fault in self._plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at - self._loop.time()))
            if fault.moment:
                self._armed.append(fault)
            elif alive := self.alive:
                self._strike(fault, alive[fault.target % len(alive)])

    async def starve(self, within: float) -> None:
        """Let each Rebaser have processor time in slices alone; return after the last."""
        async with asyncio.TaskGroup() as group:
            for rebaser in self.alive:
                group.create_task(self._starve(rebaser, self._random.random() * within))

    async def _starve(self, target: Rebaser, after: float) -> None:
        target.process.seconds_a_step = STEP
        await asyncio.sleep(after)
        for _ in range(SLICES):
            await target.freeze(ASLEEP)
            await asyncio.sleep(AWAKE)

    def relent(self) -> None:
        """Nothing goes wrong any more, and somebody is there."""
        self._relented = True
        self._armed.clear()
        self._orphans = 0
        self._broker.weather.clear_up()
        self.evaluator.fails = 0.0
        if not any(rebaser.fit for rebaser in self.rebasers):
            self.start()

    def asked(self, session: Session) -> None:
        """A request was stored: who is to die between its two publishes does so now."""
        asker = next((a for a in self.clients if a.process is session.owner.process), None)
        if self._orphans and asker is not None:
            self._orphans -= 1
            self._record.note("fault", "dies between its two publishes", asker.name)
            asker.kill(self._random.random() * 3)

    def moment(self, moment: str, session: Session) -> None:
        """A Rebaser has come to a moment that clients and faults may wait for."""
        for asker in self.askers:
            asker.cues[moment].set()
        target = next((r for r in self.alive if r.process is session.owner.process), None)
        if target is not None:
            for fault in [fault for fault in self._armed if fault.moment == moment]:
                self._armed.remove(fault)
                soon = self._random.choice((0.0, self._broker.weather.moment()))
                self._later(soon, self._strike, fault, target)

    def _strike(self, fault: Fault, target: Rebaser) -> None:
        if target.alive and not self._relented:
            self._record.verdict.faults[fault.kind] += 1
            self._record.note("fault", fault.kind, target.name, fault.seconds, fault.moment)
            getattr(self, f"_{fault.kind}")(fault, target)

    def _kill(self, fault: Fault, target: Rebaser) -> None:
        target.kill(fault.seconds if fault.target % 2 else 0.0)
        self._later(self._random.random() * 6, self.start)

    def _power(self, fault: Fault, target: Rebaser) -> None:
        """Its machine goes down with it, and what was not written to disk."""
        self._kill(fault, target)
        self._record.note("fault", "checkpoints lost", self._kin.lose(target.name))

    def _kill_client(self, fault: Fault, _: Rebaser) -> None:
        if self.clients:
            self.clients[fault.target % len(self.clients)].kill(0.0)

    def _orphan(self, *_: Any) -> None:
        self._orphans += 1

    def _stop(self, fault: Fault, target: Rebaser) -> None:
        target.stop()
        self._later(fault.seconds, self.start)

    def _cancel(self, fault: Fault, target: Rebaser) -> None:
        target.stop()
        self._later(fault.seconds / 2, target.cancel)
        self._later(fault.seconds / 2 + CANCEL_WITHIN, self._require_end, target)
        self._later(fault.seconds, self.start)

    def _require_end(self, target: Rebaser) -> None:
        if target.alive and not target.process.frozen:
            self._record.violation(f"S6 {target.name} does not end when told twice")

    def _freeze(self, fault: Fault, target: Rebaser) -> None:
        self._loop.outside.start(target.freeze(fault.seconds))

    def _cut(self, fault: Fault, target: Rebaser) -> None:
        self._hit(fault, target).cut(0.0, 0.0)

    def _half_cut(self, fault: Fault, target: Rebaser) -> None:
        late, soon = fault.seconds, self._random.random()
        here, there = (late, soon) if fault.target % 2 else (soon, late)
        self._hit(fault, target).cut(here, there)

    def _hit(self, fault: Fault, target: Rebaser) -> Rebaser | Asker:
        if fault.moment or not self.clients:
            return target
        return [target, *self.clients][fault.target % 2]

    def _leaderless(self, fault: Fault, _: Rebaser) -> None:
        seconds = min(fault.seconds, LONGEST_OUTAGE)
        self._broker.leaderless_until = self._loop.time() + seconds

    def _restart_nats(self, fault: Fault, _: Rebaser) -> None:
        self._broker.restart(min(fault.seconds, LONGEST_OUTAGE))

    def _later(self, seconds: float, call: Any, *args: Any) -> None:
        self._loop.call_later(seconds, call, *args, context=self._loop.outside.context)
