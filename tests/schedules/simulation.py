"""One schedule: a deployment in virtual time, from its first connection to its last."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from rebaser_core.calls import CallRequestV1
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    ConnectOptions,
    Delivery,
    JetStream,
    ObjectStore,
    connect,
    connected,
)
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log import log as commit_log
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import NEVER, CommitLog
from rebaser_server.commit_log.state import RecentRequests, State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.files import BatchFiles, SharedFiles
from rebaser_server.processor import requests
from rebaser_server.processor.context import RunContext
from rebaser_server.service import composition
from tests.chaos.checker import judge
from tests.chaos.history import Kind
from tests.schedules.applications import Bank, Kin, ValueGraphs
from tests.schedules.branch_client import Lead
from tests.schedules.broker import Broker
from tests.schedules.connection import Client
from tests.schedules.fake_delta import STORE_FAILS, Lake
from tests.schedules.fault_injector import Fates
from tests.schedules.loop import Loop, Stuck
from tests.schedules.network import Weather
from tests.schedules.operators import Operator, resume
from tests.schedules.processes import Asker, Payer
from tests.schedules.quiescence import Left, left_in, write_down
from tests.schedules.record import Record
from tests.schedules.result import Verdict
from tests.schedules.scenario import plan_of, starved_plan_of
from tests.schedules.seeded_random import settled, told
from tests.schedules.stream_made_anew import LOOKED_AT_WITHIN, StreamMadeAnew

PATIENCE = 240.0
"""Virtual seconds after the last fault within which all must be at rest."""
MOST_VIOLATIONS = 100
"""Violations after which the rest of a schedule is of no interest: its Rebasers may always fail."""
MOST_STEPS = 1_000_000
"""Callbacks after which a schedule is going round in circles; a long one has 10,000."""
CHECKED = 0.25
"""Share of the schedules in which presence checks reach the Rebasers."""
LONG_DETOURS = 0.25
"""Share of the schedules with late receipts in which they come very late."""
FORGETFUL = 0.5
"""Share of the schedules of a bank in which ids of calls between keys are not remembered."""
LOOK_EVERY = 0.25
REPLY_WITHIN = 45.0
STOP_WITHIN = 30.0
CONSUMERS_GONE = 10.0
"""Virtual seconds, all of them."""


class World:
    """Composes a schedule from its seed and runs it, once."""

    def __init__(
        self,
        seed: object,
        store: Path,
        *,
        delta: bool = False,
        bank: bool = False,
        starved: bool = False,
    ) -> None:
        """`store`: an empty directory.

        `delta`: Delta tables are really written (default: they are simulated).

        `bank`: change sets are accounts of a bank (default: graphs of values).

        `starved`: Rebasers have too little processor time, and nothing else goes wrong.
        """
        self._seed = seed
        self._store = store
        self._delta = delta
        self._plan = plan = starved_plan_of(seed) if starved else plan_of(seed)
        self._random = random.Random(f"world {seed}")
        self._loop = Loop(seed)
        self._subjects = Subjects()
        self.record = Record(self._loop, self._subjects, Verdict(seed, plan))
        chance = random.Random(f"weather {seed}")
        detours = random.Random(f"detours {seed}") if plan.at_a_time and plan.lag else None
        weather = Weather(chance, plan.delay, plan.spikes, 0.3, plan.loss, plan.lag, detours)
        if random.Random(f"late {seed}").random() < LONG_DETOURS:
            weather.detour_seconds = 2.1  # a run may end meanwhile
        self._broker = Broker(self._loop, weather, self.record.note)
        self._broker.on_stored, self._broker.moment = self.record.stored, self.record.done
        self._broker.on_word = self.record.settled
        self._lake = Lake()
        self._lake.fails = lambda: self._random.random() < plan.store_fails
        self._kin: Kin = (
            Bank(seed, self._lake.fails) if bank else ValueGraphs(str(store), self._lake)
        )
        self._forgets = bank and random.Random(f"forgets {seed}").random() < FORGETFUL
        self._fates = Fates(
            plan, self._loop, self._broker, self.record, self._kin, self._random, store
        )
        self.record.moment, self.record.asked = self._fates.moment, self._fates.asked
        self.record.waiting = self._waiting
        self._sheets: dict[ChangeSet, Any] = {}
        self._lead: Lead | None = None

    def run(self) -> Verdict:
        """Run it to its end, judge it, and leave nothing behind."""
        with ExitStack() as stack:
            stack.enter_context(settled(self._seed, self._loop))
            stack.enter_context(told(self.record.logged))
            stack.enter_context(
                mock.patch.object(connect, "SecureClient", partial(Client, self._broker))
            )
            # However many lines go out at once: nothing depends on nobody else writing.
            at_once = random.Random(f"at once {self._seed}").choice((1, 2, 8))
            together = random.Random(f"together {self._seed}").choice((2, NEVER))
            ahead = 1 if together == 2 else at_once
            stack.enter_context(mock.patch.object(CommitLog, "pipeline_depth", ahead))
            stack.enter_context(mock.patch.object(commit_log, "ON_ONE_SERVER", together))
            # In a fourth of the schedules Rebasers check each other, in others they may not: it is
            # many steps.
            if random.Random(f"each other {self._seed}").random() >= CHECKED:
                stack.enter_context(mock.patch.object(composition, "present", _not_permitted))
            stack.enter_context(self._kin.installed())
            if self._forgets:
                stack.enter_context(self._forgetting())
            if not self._delta:
                stack.enter_context(self._lake.installed())
            if self._plan.put_off:
                stack.enter_context(self._putting_off())
            try:
                self._loop.run(self._main(), at_most=MOST_STEPS)
            except Stuck as error:
                self.record.violation(f"STUCK {error}")
            finally:
                self._loop.run(self._bury())
        return self.record.verdict

    async def _main(self) -> None:
        self._sheets |= self._kin.change_sets(self._plan.change_sets, self._random)
        for _ in range(self._plan.rebasers):
            self._fates.start()
        await self._until(self._prepared)
        if self._forgets:  # NATS knows ids of messages for ten minutes
            self._broker.streams[self._subjects.requests_stream].window = 0.0
        if self._plan.starved is not None:
            await self._starve(self._plan.starved)
        else:
            self._send_clients()
            await self._fates.strike()
        await self._until(lambda: all(asker.done for asker in self._fates.clients))
        self._plan.store_fails = self._plan.put_off = 0.0
        await self._until(self._nats_is_well)
        self._fates.relent()
        self.record.note("well")
        await self._at_last(resume)
        await self._rest()
        if self._lead is not None:
            await self._at_last(self._lead.refresh)
        await self._answers()
        left = await self._rest()
        if not left:
            await self._at_last(self._audit)
        write_down(self.record.history, self._broker, self._subjects, left)
        for violation in judge(self.record.history):
            self.record.violation(str(violation))
        if self._plan.made_anew and self._kin.has_branches and not left:
            await self._make_requests_anew()
        await self._stop()

    async def _starve(self, within: float) -> None:
        """Each half of the time without enough processor time has requests that are handled.

        Shorter spans may have none: runs that lost their leases end in them.
        """
        await self._until(lambda: {r.name for r in self._fates.alive} <= self.record.ready)
        began = self._loop.time()
        self._send_clients()
        await self._fates.starve(within)
        handled, half = [0, 0], (self._loop.time() - began) / 2
        for event in self.record.history.of(Kind.COMMIT):
            if (event.data["commit"].get("settled") or {}).get("sequence"):
                handled[min(1, int((event.at - began) / half))] += 1
        self.record.note("starved", handled, self._plan.requests)
        if not all(handled):
            self.record.violation(f"PROGRESS of requests, in halves of the time: {handled}")

    def _putting_off(self) -> AbstractContextManager[Any]:
        """Now and then a request cannot be handled: what it needs does not answer."""
        real, chance = requests.read_request, random.Random(f"put off {self._seed}")

        def read(application: Any, change_set: ChangeSet, request: Any) -> Any:
            if chance.random() < self._plan.put_off:
                raise OSError(STORE_FAILS)
            return real(application, change_set, request)

        return mock.patch.object(requests, "read_request", read)

    def _forgetting(self) -> AbstractContextManager[Any]:
        """The id of a call between keys is forgotten when it comes, as if hours had gone by."""
        real = requests.apply_request

        async def apply(run: RunContext, request: Delivery, message: Any) -> Any:
            state = run.ownership.state
            known = state.recent
            if isinstance(message, CallRequestV1) and message.origin is not None:
                state.recent = RecentRequests()
            try:
                return await real(run, request, message)
            finally:
                state.recent = known

        return mock.patch.object(requests, "apply_request", apply)

    async def _until(self, holds: Callable[[], bool], within: float = float("inf")) -> bool:
        """Whether it holds in the end."""
        end = self._loop.time() + within
        while not holds():
            if len(self.record.verdict.violations) > MOST_VIOLATIONS:
                raise Stuck("one violation after another, and no end")
            if self._loop.time() >= end:
                return False
            await asyncio.sleep(LOOK_EVERY)
        return True

    def _prepared(self) -> bool:
        """Whether there is something that clients can come to, as operators see to."""
        streams = self._broker.streams
        tasks = streams.get(self._subjects.tasks_stream)
        registry = f"KV_{self._subjects.change_sets_bucket}"
        return tasks is not None and bool(tasks.consumers) and registry in streams

    def _send_clients(self) -> None:
        for number, asks in enumerate(self._plan.asks):
            chance = random.Random(f"client {number} {self._seed}")
            name = f"client-{number}"
            history = self.record.history
            self._fates.askers.append(
                (Asker if self._kin.has_branches else Payer)(
                    self._loop,
                    self._broker,
                    name,
                    asks,
                    self._sheets,
                    history,
                    chance,
                    at_a_time=self._plan.at_a_time,
                )
            )
        if self._plan.acts and self._kin.has_branches:
            chance, acts = random.Random(f"lead {self._seed}"), self._plan.acts
            self._lead = Lead(self._loop, self._broker, "lead", acts, self._sheets, history, chance)
            self._fates.askers.append(self._lead)
        if self._plan.pausings:
            chance, pausings = random.Random(f"operator {self._seed}"), self._plan.pausings
            operator = "operator", pausings, self._sheets, self.record.history, chance
            self._fates.askers.append(Operator(self._loop, self._broker, *operator))

    def _nats_is_well(self) -> bool:
        return not self._broker.down and self._broker.leaderless_until <= self._loop.time()

    def _waiting(self, change_set: ChangeSet) -> Iterable[int]:
        stream = self._broker.streams[self._subjects.requests_stream]
        return stream.by_subject.get(self._subjects.requests(change_set), ())

    async def _make_requests_anew(self) -> None:
        chance = random.Random(f"anew {self._seed}")
        anew = StreamMadeAnew(self._broker, self.record, self._sheets, chance)
        await self._at_last(anew.ask)
        await asyncio.sleep(LOOKED_AT_WITHIN)
        anew.judge()
        anew.repair()
        await self._rest()

    def _left(self) -> Left:
        left = left_in(self._broker, self._subjects)
        busy = [r.name for r in self._fates.alive if self.record.busy[r.name]]
        return {**left, "busy": busy} if busy else left

    async def _rest(self) -> Left:
        """Wait until nothing is left to be done; what is, after all the time there is."""
        if await self._until(lambda: not self._left(), PATIENCE):
            return {}
        left = self._left()
        self.record.violation(f"S6 not at rest after {PATIENCE:g} s: {left}")
        return left

    async def _answers(self) -> None:
        """Whoever waits for a reply gets one, or hears of it when asking again."""
        clients = self._fates.clients
        await self._until(lambda: not any(asker.waiting for asker in clients), REPLY_WITHIN)
        for asker in clients:
            for request_id in asker.waiting:
                self.record.history.add(Kind.NO_REPLY, request=str(request_id))
            asker.leave()

    @property
    def _branches(self) -> list[ChangeSet]:
        return self._lead.branches if self._lead else []

    async def _at_last(self, what: Callable[[JetStream], Awaitable[None]]) -> None:
        """Have it done by a process of its own."""

        async def work() -> None:
            async with connected(ConnectOptions(name=what.__name__)) as nc:
                await what(JetStream(nc))

        working = self._loop.process(what.__name__).start(work())
        await asyncio.wait([working])
        working.result()

    async def _audit(self, js: JetStream) -> None:
        """The values and records as any process would find them, read by the product's own code."""
        history = self.record.history
        for branch in self._branches:
            record = await Registry(Streams(js=js)).change_set(branch)
            history.add(Kind.RECORD, change_set=str(branch), record=record.to_wire())
        for change_set in (*self._sheets, *self._branches):
            try:
                state = await self._state(js, change_set)
            except HistoryInconsistent as error:
                self.record.violation(f"S1 {change_set}: no state can be made of its log: {error}")
            else:
                self._kin.audit(change_set, state, self.record)

    async def _state(self, js: JetStream, change_set: ChangeSet) -> State:
        root = str(self._store)
        batches = BatchStore(
            ObjectStore(js, self._subjects.batches_bucket), BatchFiles(SharedFiles(root))
        )
        log = CommitLog(Streams(js=js), change_set)
        _, last = await log.last()
        machine = self._kin.machine()
        if last is None:
            return State(machine.empty())
        return await StateLoader(change_set, log, batches, machine).load()

    async def _stop(self) -> None:
        """Stop everybody: they end in time, hold nothing, and nobody dropped an error."""
        alive = self._fates.alive
        for rebaser in alive:
            rebaser.stop()
        await self._until(lambda: not self._fates.alive, STOP_WITHIN)
        for rebaser in alive:
            if not rebaser.task.done():
                self.record.violation(f"S6 {rebaser.name} does not stop")
        if not await self._until(lambda: not self._held(), CONSUMERS_GONE):
            self.record.violation(f"S6 left after the stop: {self._held()}")
        for process, what in self._loop.errors:
            self.record.violation(f"UNFORESEEN {process}: {what}")

    def _held(self) -> Left:
        """What nobody holds who has stopped in order. A task too many may be waiting."""
        left = self._left()
        return {what: left[what] for what in ("requests", "consumers", "held") if what in left}

    async def _bury(self) -> None:
        """End what was killed, orderly this time: coroutines thrown away complain."""
        self.record.close()
        self._broker.down = True
        for session in list(self._broker.sessions):
            session.end()
        for process in self._loop.processes:
            process.thaw()
        await _ended(person.task for person in [*self._fates.rebasers, *self._fates.askers])
        there = [p for p in self._loop.processes if p is not self._loop.outside]
        await _ended(task for process in there for task in process.tasks)
        self._fates.rebasers.clear()
        self._fates.askers.clear()
        self._loop.forget()
        gc.collect()
        await asyncio.sleep(1)


@asynccontextmanager
async def _not_permitted(streams: Streams, name: str) -> AsyncIterator[str]:
    """In place of `present`, for a Rebaser that no check reaches."""
    del streams
    yield name


async def _ended(tasks: Iterable[asyncio.Task]) -> None:
    """Cancel those that have not ended; return once they have, and look at no error."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        done, _ = await asyncio.wait(running, timeout=60)
        for task in done:
            if not task.cancelled():
                task.exception()


def run(seed: object, **kind: bool) -> Verdict:
    """The verdict on one schedule: the same, to the last line of its trace, for the same seed.

    `kind`: as of a `World`.
    """
    with TemporaryDirectory() as store:
        return World(seed, Path(store), **kind).run()
