"""One round of chaos for a bank: accounts pay each other, under faults, until all is at rest."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from rebaser_client.client import RebaserClient
from rebaser_client.requests import Reply
from rebaser_core.calls import key_of
from rebaser_core.errors import NotConfirmed, QueueFull, Unreachable
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import connected
from rebaser_core.messages import EnqueueUpdatesResponseV3, ErrorStatus
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import PRESUMED_DEAD
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.checkpoints import content_of
from tests.chaos.access import WITNESS
from tests.chaos.bank import bank
from tests.chaos.clients import ANSWER_WITHIN, RETRY_FOR, Died, WitnessedJetStream
from tests.chaos.faults import NEEDS, Target, drawn
from tests.chaos.history import History, Kind
from tests.chaos.processes import nats_servers, seats
from tests.chaos.quiescence import Resting
from tests.chaos.recorder import recording
from tests.chaos.round import Size, provisioned, write_down_daemons
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually

ACCOUNTS: Final = 1_000
CLOCKS: Final = 10
"""Accounts that a timer calls, too, again and again."""
TICKS: Final = 8
TICK: Final = 0.5
"""Seconds between two calls of a timer."""
RUNG_WITHIN: Final = 120.0
"""Seconds, once all faults are over, within which a timer has made its calls."""
AT_ONCE: Final = 20
"""Calls of a client that are on their way at a time."""


@dataclass(slots=True)
class ChaosPayer:
    """A client: has accounts pay, loses answers, dies, asks once more."""

    js: WitnessedJetStream
    client: RebaserClient
    history: History
    rng: random.Random
    names: list[str]
    pause: float
    waiting: set[asyncio.Task[None]] = field(default_factory=set)
    unanswered: dict[RequestId, str] = field(default_factory=dict)
    sent: list[tuple[str, RequestId, tuple[Any, ...]]] = field(default_factory=list)

    async def ask(self, until: asyncio.Event) -> None:
        while not until.is_set():
            if len(self.waiting) < AT_ONCE:
                self._start(self._once())
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0, 2 * self.pause)):
                    await until.wait()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def _once(self) -> None:
        what = self.rng.random()
        if what < 0.05 and self.sent:
            await self.send(*self.rng.choice(self.sent[-20:]))
        elif what < 0.09:
            self.js.dying = asyncio.current_task()
            try:
                await self.send(*self._new())
            except Died:
                pass
            finally:
                self.js.dying = None
        elif what < 0.12:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0, 0.005)):
                    await self.send(*self._new())
        else:
            await self.send(*self._new())

    def _new(self) -> tuple[str, RequestId, tuple[Any, ...]]:
        payer, to = self.rng.choice(self.names), self.rng.choice(self.names)
        request, amount = RequestId(), self.rng.randint(1, 30)
        transfer = str(request)[-12:]
        match self.rng.randrange(10):
            case 0 | 1:
                call: tuple[Any, ...] = "spread", to, amount // 3, 3, transfer
                transfers = [f"{transfer}/{part}" for part in range(3)]
            case 2:
                call = "give", self.rng.sample(self.names, 5), amount, transfer
                transfers = [transfer]
            case _:
                call, transfers = ("pay", to, amount, transfer), [transfer]
        return self._noted(payer, request, call, transfers)

    def _noted(
        self, key: str, request: RequestId, call: tuple[Any, ...], transfers: list[str]
    ) -> tuple[str, RequestId, tuple[Any, ...]]:
        self.history.add(
            Kind.SENT,
            request=str(request),
            change_set=str(key_of(bank.name, key)),
            batch=[],
            transfers=transfers,
            expected=["applied", "refused"],
        )
        self.sent.append((key, request, call))
        return self.sent[-1]

    async def wind_up(self, key: str) -> None:
        """Have a timer call the account."""
        await self.send(*self._noted(key, RequestId(), ("tick", 0, TICKS, TICK), []))

    async def send(self, name: str, request: RequestId, call: tuple[Any, ...]) -> None:
        key = self.client.service(bank).key(name)
        try:
            if self.rng.random() < 0.5:
                self.unanswered[request] = name
                encoded = await key._encode(request, call[0], call[1:], {}, None)
                reply = await self.client._sender.send_encoded_with_reply(
                    key_of(bank.name, name), request, *encoded
                )
                self._start(self._await(request, reply))
            else:
                await key.send(*call, request_id=request)
        except (NotConfirmed, QueueFull) as error:
            self.unanswered.pop(request, None)
            change_set = str(key_of(bank.name, name))
            self.history.add(
                Kind.UNKNOWN, request=str(request), change_set=change_set, why=str(error)
            )

    async def _await(self, request: RequestId, reply: Reply) -> None:
        self._answered(request, await reply)

    def _answered(self, request: RequestId, response: EnqueueUpdatesResponseV3) -> None:
        name, status = self.unanswered.pop(request, None), response.status
        if name is None:  # asked twice
            return
        failed = isinstance(status, ErrorStatus)
        self.history.add(
            Kind.REPLY,
            request=str(request),
            change_set=str(key_of(bank.name, name)),
            ok=not failed,
            commit=None if failed else status.success.commit,
            message=status.error.message if failed else None,
        )

    async def settle(self) -> None:
        """Ask at rest what became of each call whose answer did not come."""
        self.js.calm = True
        for task in self.waiting:
            task.cancel()
        if self.waiting:
            await asyncio.wait(self.waiting)
        for request, name in [*self.unanswered.items()]:
            change_set, known = key_of(bank.name, name), None
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_WITHIN):
                    while known is None:
                        with suppress(Unreachable):
                            known = await self.client._sender.outcome(change_set, request)
            if known is not None and known.response is not None:
                self._answered(request, known.response)
            elif request in self._stored():
                self.history.add(Kind.NO_REPLY, request=str(request), change_set=str(change_set))

    def _stored(self) -> set[RequestId]:
        """Requests that were stored; one that a client gave up before may not be."""
        return {RequestId.from_str(event.data["request"]) for event in self.history.of(Kind.STORED)}


async def run_bank_round(
    seed: str, directory: Path, size: Size, history: History, tools: Path | None = None
) -> None:
    """Write one round down, as `run_round` does."""
    rng = random.Random(seed)
    names = [f"a-{number}" for number in range(ACCOUNTS)]
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            nats_servers(directory, cluster=size.cluster, config=size.access.config)
        )
        urls = tuple(server.url for server in servers)
        nc = await stack.enter_async_context(connected(size.access.options(WITNESS, urls)))
        deployment = await provisioned(stack, nc, directory, servers, size)
        recorder = await stack.enter_async_context(recording(nc, deployment.streams, history))
        places = await stack.enter_async_context(
            seats(size.daemons, directory, history, servers, tools)
        )
        payers = []
        for number in range(size.clients):
            chance = random.Random(f"{seed}/{number}")
            own = await stack.enter_async_context(connected(size.access.options("client", urls)))
            js = WitnessedJetStream(own, Subjects(), history, chance)
            client = await stack.enter_async_context(RebaserClient.on(own, js, retry_for=RETRY_FOR))
            payers.append(ChaosPayer(js, client, history, chance, names, size.pause / 2))
        for seat in places:
            seat.arguments = "--app", "tests.chaos.bank:bank"
            seat.start(
                size.own_variables(rng) | {"HISTORY__MAX_COMMITS": "1000", "MAX_ATTEMPTS": "100"}
            )
        for seat in places:
            if seat.daemon is not None:
                await seat.daemon.ready(within=120)
        lock = asyncio.Lock()
        target = Target(servers, places, lock, min(size.lease, PRESUMED_DEAD), deployment.streams)
        for name in names[:CLOCKS]:
            await payers[0].wind_up(name)
        await _break(size, rng, target, payers, history)
        patience = size.rest_within + 3 * size.lease
        resting = Resting(deployment, history, recorder, patience)
        rested_after = await resting.come()
        if not resting.stuck:
            with suppress(AssertionError):  # the judge counts the calls
                await eventually(lambda: _have_rung(deployment, names), within=RUNG_WITHIN)
            await resting.come()
            for payer in payers:
                await payer.settle()
            await resting.come()
        write_down_daemons(places, history)
        known = [key_of(bank.name, name) for name in names]
        first_lines = {str(each): await resting.first_line(each) for each in known}
        await resting.write_down(rested_after=rested_after, first_lines=first_lines)
        for number, name in enumerate(names):
            history.add(Kind.ACCOUNT, **await _account(deployment, name, number < CLOCKS))


async def _break(
    size: Size, rng: random.Random, target: Target, payers: list[ChaosPayer], history: History
) -> None:
    over = asyncio.Event()
    lacking = [need for need in NEEDS.values() if need != "cluster" or not size.cluster]
    faults = drawn(
        rng,
        count=size.faults,
        window=size.window,
        seats=size.daemons,
        lease=target.lease,
        kinds=size.kinds,
        lacking=lacking,
    )
    asking = [asyncio.create_task(payer.ask(over)) for payer in payers]
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(fault.happen(target, history))
        group.create_task(asyncio.sleep(size.window))
    over.set()
    await asyncio.gather(*asking)


async def _have_rung(deployment: Deployment, names: list[str]) -> bool:
    found = [await _account(deployment, name, True) for name in names[:CLOCKS]]
    return all(each["state"]["ticks"] >= TICKS and not each["sending"] for each in found)


async def _account(deployment: Deployment, name: str, is_clock: bool) -> Mapping[str, Any]:
    """State as checkpoint and log have it."""
    change_set: ChangeSet = key_of(bank.name, name)
    archive = deployment.archive(change_set)
    machine = HandlerApplication(deployment.streams, archive.batches, {bank.name: bank})
    loader = type(archive)(change_set, archive.log, archive.batches, machine)
    content = content_of(await loader.load())
    account = bank.new_state() if content.state is None else bank.read_state(content.state, 1)
    return {
        "change_set": str(change_set),
        "key": name,
        "state": orjson.loads(bank.dump_state(account)),
        "sending": len(content.outgoing),
        "ticks": TICKS if is_clock else 0,
    }
