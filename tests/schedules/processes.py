"""Who takes part: Rebasers and clients, each a process that can be killed or stand still."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from rebaser_client import ClientError, RebaserClient
from rebaser_core.calls import key_of
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.messages import EnqueueUpdatesResponseV3, ErrorStatus
from rebaser_core.requests import publish_request
from rebaser_core.streams import Streams
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.results import UnitResult, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.composition import serve
from rebaser_server.settings.settings import Settings
from tests.chaos.bank import bank
from tests.chaos.history import History, Kind
from tests.schedules.applications import Kin
from tests.schedules.broker import Broker
from tests.schedules.example_batches import Sheet
from tests.schedules.loop import Loop, Process
from tests.schedules.scenario import MOMENTS, Ask

CUE_WITHIN = 4.0
"""Virtual seconds that a client waits for its cue."""


class Evaluator:
    """An `Executor` that evaluates inline, by the product's own code, after a while; or fails."""

    def __init__(
        self,
        rng: random.Random,
        seconds: float,
        fails: float,
        owner: Callable[[str], str],
    ) -> None:
        """`owner`: who a change set belongs to. What began for another one never ends by itself."""
        self._random = rng
        self._seconds = seconds
        self.fails = fails
        self._owner = owner

    async def run(self, blobs: Sequence[WorkUnit], run: Run) -> list[UnitResult]:
        outcomes = []
        change_set = structlog.contextvars.get_contextvars()["change_set"]
        began_for = self._owner(change_set)
        for blob in blobs:
            await asyncio.sleep(self._random.expovariate(1.0) * self._seconds)
            if self._owner(change_set) != began_for:
                await asyncio.Event().wait()
            if self._random.random() < self.fails:
                raise SessionFailed("as the seed wants it")
            outcomes.append(decode_result(await asyncio.to_thread(evaluate, blob.encode())))
            run.progress.record(run.progress.done + len(blob))
            run.ready(outcomes[-1:])
            if len(blob) % 2:  # so that results are committed in parts
                await asyncio.sleep(2)
        return outcomes


class Person:
    """A process with a connection."""

    def __init__(self, loop: Loop, broker: Broker, name: str) -> None:
        self.name = name
        self.dead = False
        self.stood_still = False
        self._loop = loop
        self._broker = broker
        self.process: Process = loop.process(name)

    @property
    def sessions(self) -> list[Any]:
        return [s for s in self._broker.sessions if s.owner.process is self.process]

    def kill(self, unnoticed: float) -> None:
        """End it as SIGKILL does; the server may notice late."""
        self.dead = True
        self.process.freeze()
        for session in self.sessions:
            session.sever()
            self._broker.later(unnoticed, session.end)

    async def freeze(self, seconds: float) -> None:
        if not self.process.frozen:
            self.stood_still = True
            self.process.freeze()
            await asyncio.sleep(seconds)
            if not self.dead:
                self.process.thaw()

    def cut(self, unnoticed_here: float, unnoticed_there: float) -> None:
        """Break its connection, of which each end may notice late."""
        for session in self.sessions:
            session.sever()
            self._broker.later(unnoticed_there, session.end)
            self._loop.call_later(
                unnoticed_here, session.owner.lost, session, context=session.owner.context
            )


class Rebaser(Person):
    """One run of the whole daemon, from its connection to its end."""

    def __init__(
        self,
        loop: Loop,
        broker: Broker,
        name: str,
        settings: dict[str, Any],
        kin: Kin,
        executor: Evaluator,
    ) -> None:
        super().__init__(loop, broker, name)
        self.shutdown: Shutdown | None = None
        self._leaving = False
        self._settings = settings
        self._kin = kin
        self._executor = executor
        self.task = self.process.start(self._serve())

    async def _serve(self) -> None:
        self.shutdown = Shutdown()
        settings = Settings.model_validate({"instance_id": self.name, **self._settings})
        await serve(
            settings,
            self._kin.maker(settings, self._executor),
            self.shutdown,
            make_presentation=self._kin.presentation,
        )

    @property
    def alive(self) -> bool:
        return not self.dead and not self.task.done()

    @property
    def fit(self) -> bool:
        """Whether it can be counted on."""
        return self.alive and not self._leaving

    def stop(self) -> None:
        """As SIGTERM."""
        self._leaving = True
        if self.shutdown is not None:
            self._loop.call_soon(self.shutdown.set, context=self.process.context)

    def cancel(self) -> None:
        """As the second signal."""
        self._loop.call_soon(self.task.cancel, context=self.process.context)


class Asker(Person):
    """A client that works off its list, and tells the history of it."""

    def __init__(
        self,
        loop: Loop,
        broker: Broker,
        name: str,
        asks: list[Ask],
        sheets: dict[ChangeSet, Sheet],
        history: History,
        rng: random.Random,
        *,
        at_a_time: bool = False,
    ) -> None:
        """`at_a_time`: it does not wait for the confirmation of one before it sends the next."""
        super().__init__(loop, broker, name)
        self._asks = asks
        self._at_a_time = at_a_time
        self._sheets = sheets
        self._history = history
        self._random = rng
        self.done = False
        self.waiting: dict[RequestId, asyncio.Task] = {}
        self.cues: dict[str, asyncio.Event] = {moment: asyncio.Event() for moment in MOMENTS}
        """Set whenever a Rebaser comes to such a moment."""
        self._leave = asyncio.Event()
        self._client: RebaserClient
        self._js: JetStream
        self.task = self.process.start(self._ask())

    def leave(self) -> None:
        self._loop.call_soon(self._leave.set, context=self.process.context)

    async def _ask(self) -> None:
        async with connected(ConnectOptions(name=self.name)) as nc:
            self._js = JetStream(nc)
            async with RebaserClient.on(nc, self._js) as self._client:
                await self._work()
                self.done = True
                await self._leave.wait()

    async def _work(self) -> None:
        sending = []
        for ask in self._asks:
            await asyncio.sleep(ask.pause)
            await self._cued(ask.cue)
            if self._at_a_time:
                sending.append(self.process.start(self._send(ask)))
            else:
                await self._send(ask)
        await asyncio.gather(*sending)

    async def _cued(self, moment: str) -> None:
        if moment and any(self._history.of(Kind.STORED)):
            cue = self.cues[moment]
            cue.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CUE_WITHIN):
                    await cue.wait()
            await asyncio.sleep(4 * self._random.random() * self._broker.weather.moment())

    async def _send(self, ask: Ask) -> None:
        change_set, request_id = list(self._sheets)[ask.change_set], RequestId()
        sheet = self._sheets[change_set]
        define = self._random.random() < 0.15 or not any(
            event.data["change_set"] == str(change_set) for event in self._history.of(Kind.SENT)
        )
        batch = sheet.define(self._random) if define else sheet.batch(self._random)
        self._history.add(
            Kind.SENT,
            request=str(request_id),
            change_set=str(change_set),
            batch=batch,
            expected=["dead" if ask.poison else "applied"],
            poison=ask.poison,
        )
        with suppress(ClientError):
            if ask.poison:
                headers = {MESSAGE_ID: str(request_id)}
                await publish_request(Streams(js=self._js), change_set, headers, b"nonsense")
            elif ask.reply:
                _, reply = await self._client.enqueue_updates_with_reply(
                    *change_set, batch, request_id=request_id
                )
                self.waiting[request_id] = self.process.start(self._hear(request_id, reply))
            else:
                await self._client.enqueue_updates(*change_set, batch, request_id=request_id)

    async def _hear(self, request_id: RequestId, reply: Any) -> None:
        response: EnqueueUpdatesResponseV3 = await reply
        ok = not isinstance(response.status, ErrorStatus)
        commit = response.status.success.commit if ok else None
        self._history.add(Kind.REPLY, request=str(request_id), ok=ok, commit=commit)
        del self.waiting[request_id]


class Payer(Asker):
    """A client that has accounts of a bank pay each other."""

    async def _send(self, ask: Ask) -> None:
        names: list[str] = list(self._sheets.values())
        payer, request_id, rng = names[ask.change_set], RequestId(), self._random
        amount, transfer, to = rng.randint(1, 40), str(request_id)[-4:], rng.choice(names)
        parts = rng.choice((2, 3)) if rng.random() < 0.3 else 1
        transfers = [transfer] if parts == 1 else [f"{transfer}/{part}" for part in range(parts)]
        call: tuple[Any, ...]
        if parts > 1:
            call = "spread", to, amount // 3, parts, transfer
        elif rng.random() < 0.3:
            call = "give", names, amount, transfer
        else:
            call = "pay", to, amount, transfer
        change_set = key_of(bank.name, payer)
        self._history.add(
            Kind.SENT,
            request=str(request_id),
            change_set=str(change_set),
            batch=[],
            transfers=transfers,
            expected=["dead"] if ask.poison else ["applied", "refused"],
            poison=ask.poison,
        )
        key = self._client.service(bank).key(payer)
        with suppress(ClientError):
            if ask.poison:
                headers = {MESSAGE_ID: str(request_id)}
                await publish_request(Streams(js=self._js), change_set, headers, b"nonsense")
            elif ask.reply:
                sender = self._client._sender
                encoded = await key._encode(request_id, call[0], call[1:], {}, None)
                reply = await sender.send_encoded_with_reply(change_set, request_id, *encoded)
                self.waiting[request_id] = self.process.start(self._hear(request_id, reply))
            else:
                await key.send(*call, request_id=request_id)
