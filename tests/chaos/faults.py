"""What breaks, when and for how long: drawn from a seed, each fault one coroutine."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from rebaser_core.jetstream import JetStreamError
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from tests.chaos.deadly_steps import STEPS, TABLE_STEPS
from tests.chaos.history import History, Kind
from tests.chaos.processes import Seat
from tests.chaos.slow_files import NotPossible, slow_files
from tests.helpers.nats_process import NatsServer
from tests.helpers.s3_server import Spoiler

READY_WITHIN = 60.0  # seconds, for a daemon that was exchanged
STEP_WITHIN = 4.0  # seconds until a daemon is killed that did not come to the step
TABLE_STEP_WITHIN = 60.0  # seconds likewise: a query waits until Spark has started


@dataclass(slots=True)
class Target:
    """All that can be broken."""

    servers: Sequence[NatsServer]
    seats: Sequence[Seat]
    nats_turn: asyncio.Lock
    """Lock of a fault of NATS while it lasts: one at a time."""
    lease: float
    """Seconds after which what a silent daemon holds is another's."""
    streams: Streams
    spoiler: Spoiler | None = None
    """Spoiler of the answers of the object store; None: the store is a folder."""
    roll_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the exchange of a daemon: one after another, as operators do it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of a run's: `kind` names what is done to the `victim`, from `at` on, for `seconds`."""

    at: float
    kind: str
    victim: int
    seconds: float

    async def happen(self, target: Target, history: History) -> None:
        await asyncio.sleep(self.at)
        details = {"fault": self.kind, "victim": self.victim, "seconds": self.seconds}
        history.add(Kind.FAULT, phase="begins", **details)
        try:
            await _KINDS[self.kind](target, self)
        except NotPossible:
            details["not_possible"] = True
        history.add(Kind.FAULT, phase="over", **details)


def drawn(
    rng: random.Random,
    *,
    count: int,
    window: float,
    seats: int,
    lease: float,
    kinds: Sequence[str] = (),
    lacking: Sequence[str] = (),
) -> list[Fault]:
    """The faults of a run, by time. Each thing that a fault breaks is mended after the last fault.

    `kinds`: where not all are wanted; `lacking`: what the run has not, of `NEEDS`.
    """
    kinds = kinds or [kind for kind in _KINDS if NEEDS.get(kind) not in lacking]
    weights = [_WEIGHTS.get(kind, 2) for kind in kinds]
    faults = []
    for _ in range(count):
        [kind] = rng.choices(kinds, weights)
        seconds = rng.uniform(1.25, 2.5) * lease if kind in _PAST_THE_LEASE else rng.uniform(0, 2)
        at, victim = rng.uniform(0.2, window), rng.randrange(seats)
        faults.append(Fault(round(at, 2), kind, victim, round(seconds, 2)))
    return sorted(faults, key=lambda fault: fault.at)


def rolls(legs: int, *, window: float, seats: int) -> list[Fault]:
    """Each leg exchanges all daemons one by one: forwards, back, and so on."""
    kind, count = exchange_the_release_of_a_daemon.__name__, legs * seats
    return [
        Fault(round(window * (n + 1) / (count + 1), 2), kind, n % seats, 0.0) for n in range(count)
    ]


@asynccontextmanager
async def _seat(target: Target, fault: Fault) -> AsyncIterator[Seat]:
    seat = target.seats[fault.victim]
    async with seat.turn:
        yield seat


async def kill_a_daemon(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        seat.kill()
        await asyncio.sleep(fault.seconds)
        seat.again()


async def kill_a_daemon_at_a_step_to_its_commit(target: Target, fault: Fault) -> None:
    """Between what functions returned, what is remembered of it, and the commit."""
    async with _seat(target, fault) as seat:
        step = STEPS[round(100 * fault.seconds) % len(STEPS)]
        await seat.kill_at(step, within=STEP_WITHIN)
        seat.again()


async def kill_a_daemon_at_a_step_to_a_table(target: Target, fault: Fault) -> None:
    """Between the files of a table, its manifest, and the commit that names it."""
    async with _seat(target, fault) as seat:
        step = TABLE_STEPS[round(100 * fault.seconds) % len(TABLE_STEPS)]
        await seat.kill_at(step, within=TABLE_STEP_WITHIN)
        seat.again()


async def kill_all_daemons(target: Target, fault: Fault) -> None:
    for seat in target.seats:
        async with seat.turn:
            seat.kill()
            seat.again()


async def kill_a_daemon_for_longer_than_the_lease(target: Target, fault: Fault) -> None:
    await kill_a_daemon(target, fault)


async def stop_a_daemon(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        await seat.stop()
        seat.again()


async def stop_a_daemon_impatiently(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        await seat.stop(impatient=True)
        seat.again()


async def exchange_the_release_of_a_daemon(target: Target, fault: Fault) -> None:
    """An upgrade of one daemon, or the way back; the next one waits until it is ready."""
    async with target.roll_turn, _seat(target, fault) as seat:
        if seat.older is None:
            raise NotPossible
        await seat.stop()
        seat.is_older = not seat.is_older
        seat.again()
        assert seat.daemon is not None
        with suppress(AssertionError):  # it ends without NATS, and is started again
            await seat.daemon.ready(within=READY_WITHIN)


async def freeze_a_daemon(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        seat.freeze()
        await asyncio.sleep(fault.seconds)
        seat.thaw()


async def freeze_a_daemon_past_the_lease(target: Target, fault: Fault) -> None:
    await freeze_a_daemon(target, fault)


async def kill_an_evaluator(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        seat.kill_evaluator()


async def kill_the_jvm(target: Target, fault: Fault) -> None:
    """As the system does when memory is short: Spark is gone, and the daemon is not."""
    async with _seat(target, fault) as seat:
        if not seat.kill_jvm():
            raise NotPossible


async def cut_a_daemon_off(target: Target, fault: Fault) -> None:
    """Connections reset, and none made meanwhile."""
    async with _seat(target, fault) as seat:
        for proxy in seat.proxies:
            proxy.refusing = True
            proxy.cut()
        await asyncio.sleep(fault.seconds)
        for proxy in seat.proxies:
            proxy.heal()


async def cut_all_daemons_off(target: Target, fault: Fault) -> None:
    """All connections reset, and made again at once."""
    for seat in target.seats:
        for proxy in seat.proxies:
            proxy.cut()


async def black_hole_a_daemon_past_the_lease(target: Target, fault: Fault) -> None:
    """What was held back then arrives late, as if nothing had been."""
    async with _seat(target, fault) as seat:
        for proxy in seat.proxies:
            proxy.hold()
        await asyncio.sleep(fault.seconds)
        for proxy in seat.proxies:
            proxy.heal()


async def black_hole_all_daemons(target: Target, fault: Fault) -> None:
    """What was held back is lost in the end."""
    for seat in target.seats:
        for proxy in seat.proxies:
            proxy.hold()
    await asyncio.sleep(fault.seconds)
    for seat in target.seats:
        for proxy in seat.proxies:
            proxy.cut()
            proxy.heal()


async def deafen_a_daemon_past_the_lease(target: Target, fault: Fault) -> None:
    """What it says arrives; it hears nothing. Half-open."""
    async with _seat(target, fault) as seat:
        for proxy in seat.proxies:
            proxy.hold(up=False)
        await asyncio.sleep(fault.seconds)
        for proxy in seat.proxies:
            proxy.heal()


async def mute_a_daemon_past_the_lease(target: Target, fault: Fault) -> None:
    """It hears; what it says arrives late. Half-open the other way round."""
    async with _seat(target, fault) as seat:
        for proxy in seat.proxies:
            proxy.hold(down=False)
        await asyncio.sleep(fault.seconds)
        for proxy in seat.proxies:
            proxy.heal()


async def slow_a_daemon_down(target: Target, fault: Fault) -> None:
    async with _seat(target, fault) as seat:
        for proxy in seat.proxies:
            proxy.delay = 0.02 + fault.seconds / 10
        await asyncio.sleep(2 * fault.seconds)
        for proxy in seat.proxies:
            proxy.heal()


async def kill_nats(target: Target, fault: Fault) -> None:
    async with _nats(target, fault) as server:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(server.start)


async def kill_nats_for_longer_than_the_lease(target: Target, fault: Fault) -> None:
    await kill_nats(target, fault)


async def kill_most_of_nats(target: Target, fault: Fault) -> None:
    """Two servers of three, one after the other: meanwhile there is no majority."""
    async with _others(target, fault) as (server, other):
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds / 4)
        await asyncio.to_thread(other.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(other.start)
        await asyncio.to_thread(server.start)


async def kill_a_server_while_another_stands_still(target: Target, fault: Fault) -> None:
    """The third has no majority until the second goes on, with what it had not heard of."""
    async with _others(target, fault) as (server, other):
        other.freeze()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds)
        other.thaw()
        await asyncio.to_thread(server.start)


async def stop_nats(target: Target, fault: Fault) -> None:
    async with _nats(target, fault) as server:
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(server.start)


async def freeze_nats(target: Target, fault: Fault) -> None:
    async with _nats(target, fault) as server:
        server.freeze()
        await asyncio.sleep(fault.seconds)
        server.thaw()


async def slow_the_disk_of_nats(target: Target, fault: Fault) -> None:
    """From a busy one to one that all but hangs: 5 ms to 500 ms a call."""
    async with _nats(target, fault) as server:
        assert server.process is not None
        async with slow_files(server.process.pid, 0.005 * 10**fault.seconds):
            await asyncio.sleep(1 + 2 * fault.seconds)


async def slow_the_store_of_a_daemon(target: Target, fault: Fault) -> None:
    """Checkpoints, large results, and whatever else it has in files: 10 ms to 100 ms a call."""
    async with _seat(target, fault) as seat, slow_files(seat.pid, 0.01 * 10 ** (fault.seconds / 2)):
        await asyncio.sleep(1 + 2 * fault.seconds)


async def spoil_answers_of_the_store(target: Target, fault: Fault) -> None:
    """Spoil one in fifty to one in five answers of the object store: late, twice, cut or lost."""
    if target.spoiler is None:
        raise NotPossible
    target.spoiler.share = 0.02 * 10 ** (fault.seconds / 2)
    await asyncio.sleep(2 + 4 * fault.seconds)
    target.spoiler.share = 0.0


async def set_the_clock_of_a_daemon(target: Target, fault: Fault) -> None:
    """Forwards or back, by a second or by a year; and right again in the end."""
    async with _seat(target, fault) as seat:
        if not seat.clock.settable:
            raise NotPossible
        ahead = 3e7 ** (fault.seconds / 2)
        seat.clock.set(ahead if fault.victim % 2 else -ahead)
        await asyncio.sleep(1 + 2 * fault.seconds)
        seat.clock.set(0)


async def delete_the_tasks_consumer(target: Target, fault: Fault) -> None:
    """As an operator does by mistake. What is held is delivered to somebody else, too."""
    async with target.nats_turn:
        with suppress(JetStreamError):
            await target.streams.js.delete_consumer(target.streams.tasks_stream, TASKS_CONSUMER)


async def suspend_the_machine_past_the_lease(target: Target, fault: Fault) -> None:
    """Daemons and servers stand still together; those who are elsewhere, the clients, do not."""
    async with AsyncExitStack() as stack:
        for seat in target.seats:
            await stack.enter_async_context(seat.turn)
        await stack.enter_async_context(target.nats_turn)
        for server in target.servers:
            server.freeze()
        for seat in target.seats:
            seat.freeze()
        await asyncio.sleep(fault.seconds)
        for seat in target.seats:
            seat.thaw()
        for server in target.servers:
            server.thaw()


async def have_leaders_step_down(target: Target, fault: Fault) -> None:
    """Of the streams of requests, tasks and commits, one after another."""
    if len(target.servers) == 1:
        raise NotPossible
    streams = target.streams
    async with target.nats_turn:
        for stream in (streams.requests_stream, streams.tasks_stream, streams.commits_stream):
            with suppress(JetStreamError):
                await streams.js.request(f"STREAM.LEADER.STEPDOWN.{stream}")
            await asyncio.sleep(fault.seconds / 3)


@asynccontextmanager
async def _others(target: Target, fault: Fault) -> AsyncIterator[tuple[NatsServer, NatsServer]]:
    """Two servers of a cluster."""
    if len(target.servers) == 1:
        raise NotPossible
    async with target.nats_turn:
        count = len(target.servers)
        yield target.servers[fault.victim % count], target.servers[(fault.victim + 1) % count]


@asynccontextmanager
async def _nats(target: Target, fault: Fault) -> AsyncIterator[NatsServer]:
    async with target.nats_turn:
        yield target.servers[fault.victim % len(target.servers)]


_KINDS: dict[str, Callable[[Target, Fault], Awaitable[None]]] = {
    fault.__name__: fault
    for fault in (
        kill_a_daemon,
        kill_all_daemons,
        kill_a_daemon_for_longer_than_the_lease,
        stop_a_daemon,
        stop_a_daemon_impatiently,
        exchange_the_release_of_a_daemon,
        freeze_a_daemon,
        freeze_a_daemon_past_the_lease,
        kill_an_evaluator,
        kill_the_jvm,
        cut_a_daemon_off,
        cut_all_daemons_off,
        black_hole_a_daemon_past_the_lease,
        black_hole_all_daemons,
        deafen_a_daemon_past_the_lease,
        mute_a_daemon_past_the_lease,
        slow_a_daemon_down,
        kill_nats,
        kill_nats_for_longer_than_the_lease,
        kill_most_of_nats,
        kill_a_server_while_another_stands_still,
        stop_nats,
        freeze_nats,
        slow_the_disk_of_nats,
        slow_the_store_of_a_daemon,
        spoil_answers_of_the_store,
        set_the_clock_of_a_daemon,
        delete_the_tasks_consumer,
        suspend_the_machine_past_the_lease,
        have_leaders_step_down,
        kill_a_daemon_at_a_step_to_its_commit,
        kill_a_daemon_at_a_step_to_a_table,
    )
}
NEEDS = {
    "exchange_the_release_of_a_daemon": "a plan",
    "kill_the_jvm": "spark",
    "kill_a_daemon_at_a_step_to_a_table": "tables",
    "spoil_answers_of_the_store": "objects",
    "kill_most_of_nats": "cluster",
    "kill_a_server_while_another_stands_still": "cluster",
    "have_leaders_step_down": "cluster",
}
"""What a kind of fault is not possible without."""
_PAST_THE_LEASE = {kind for kind in _KINDS if "lease" in kind}
_WEIGHTS = {
    "kill_a_daemon": 4,
    "kill_a_daemon_at_a_step_to_its_commit": 4,
    "kill_a_daemon_at_a_step_to_a_table": 8,
    "spoil_answers_of_the_store": 12,
    "freeze_a_daemon_past_the_lease": 4,
    "kill_all_daemons": 1,
}
