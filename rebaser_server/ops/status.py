"""The status of a deployment: its Rebasers, its queues, its health, and who looks at it.

The page shows all Rebasers and the queues, in one JSON object. Rebasers ask each other over plain
NATS: an empty request gets a report; `onlookers` with a change set gets the names of those who look
at it there. `HealthMonitor` checks that this process's loop runs, NATS answers, the store takes
files, and Spark starts.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, Never
from uuid import uuid4

import nats.errors
from aiohttp import web
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError, StreamState
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.records import seconds_since
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.slots import SlotPool
from rebaser_server.files import TEMP_DIR, StoreFiles
from rebaser_server.ops.answers import STATUS, statuses
from rebaser_server.ops.auth import Guard
from rebaser_server.ops.dead_letters import latest_messages
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.queue_pages import NameCache, RarelyRead
from rebaser_server.processor.dead_letters import DIED_AT, REASON
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.settings.redaction import redact_url
from rebaser_server.telemetry import metrics
from rebaser_server.telemetry.work_stats import WorkStats

_ONLOOKERS: Final = "onlookers"

Report = dict[str, Any]


class Peers:
    """Replies with this Rebaser's status, and requests that of all Rebasers."""

    def __init__(self, streams: Streams, source: "DeploymentStatus") -> None:
        self._streams = streams
        self._source = source

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Reply to requests while the body runs."""
        async with subscribed(self._streams.js.nc, self._streams.join(STATUS), self._reply):
            yield

    async def _reply(self, request: Msg) -> None:
        if request.reply:
            with suppress(nats.errors.Error, OSError, ValueError):
                reply = json.dumps(self._status(request.data))
                await self._streams.js.nc.publish(request.reply, reply.encode())

    def _status(self, request: bytes) -> Report:
        if not request:
            return self._source.own()
        _, _, key = request.decode().rpartition(" ")
        workspace, _, change_set = key.partition(".")
        return {"onlookers": self._source.onlookers(ChangeSet.of(workspace, change_set))}

    async def reports(self, expected: int) -> list[Report]:
        """Reports of `expected` Rebasers, or of those that reply in time, in stable order."""
        reports = await statuses(self._streams, most=expected)
        return sorted(reports, key=lambda report: str(report.get("instance", "")))

    async def onlookers(self, change_set: ChangeSet, expected: int) -> set[str]:
        """Names of those who look at the change set on a page of any Rebaser.

        Older Rebasers send none.
        """
        request = f"{_ONLOOKERS} {change_set}".encode()
        answers = await statuses(self._streams, most=expected, request=request)
        return {str(name) for answer in answers for name in answer.get("onlookers", ())}


_SHOWN: Final = 20
"""Maximum number of change sets, and of dead letters, that are listed."""
_MOST_SUBJECTS: Final = 10_000
"""Maximum number of waiting change sets that are listed; of more, none is: a read must stay
cheap."""
_FRESH: Final = 1.0  # seconds for which a read is cached


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues at one moment; all ages in seconds."""

    requests: int = 0
    last_request: int = 0
    """Number of the latest request ever stored; 0 before the first."""
    oldest_age: float = 0.0
    change_sets_waiting: int = 0
    deepest: list[dict[str, Any]] = field(default_factory=list)
    tasks_waiting: int = 0
    tasks_in_hand: int = 0
    dead_letters: int = 0
    latest_dead: list[dict[str, Any]] = field(default_factory=list)


class QueueWatch:
    """Reads the queues from NATS at most once a second."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._queues = RarelyRead(self._read, _FRESH)
        self._dead = (0, 0)
        """Last number and count of the dead letters that are listed."""
        self._letters: list[dict[str, Any]] = []

    async def look(self) -> Queues:
        """The queues as of the last second.

        Raises:
            NatsUnreachable, ApiError: NATS does not answer.
        """
        return await self._queues.get()

    async def _read(self) -> Queues:
        streams = self._streams
        requests, consumer, dead = await asyncio.gather(
            streams.js.stream_info(streams.requests_stream),
            streams.js.consumer_info(streams.tasks_stream, TASKS_CONSUMER),
            streams.js.stream_info(streams.dead_letters_stream),
        )
        state = requests.state
        return Queues(
            requests=state.messages,
            last_request=state.last_seq,
            oldest_age=seconds_since(state.first_ts) if state.messages else 0.0,
            change_sets_waiting=state.num_subjects,
            deepest=await self._deepest(state.num_subjects),
            tasks_waiting=consumer.num_pending,
            tasks_in_hand=consumer.num_ack_pending,
            dead_letters=dead.state.messages,
            latest_dead=await self._latest_dead(dead.state),
        )

    async def _deepest(self, count: int) -> list[dict[str, Any]]:
        if not 0 < count <= _MOST_SUBJECTS:
            return []
        stream = self._streams.requests_stream
        depths = await self._streams.js.stream_subjects(stream)
        deepest = sorted(depths.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
        ages = await asyncio.gather(*(self._age_of(subject) for subject, _ in deepest))
        return [
            {**_ids_of(self._streams, subject), "requests": depth, "oldestSeconds": age}
            for (subject, depth), age in zip(deepest, ages, strict=True)
        ]

    async def _age_of(self, subject: str) -> float:
        message = await self._streams.js.get_message(
            self._streams.requests_stream, sequence=1, next_by_subject=subject
        )
        return 0.0 if message is None else seconds_since(message.time)

    async def _latest_dead(self, state: StreamState) -> list[dict[str, Any]]:
        if state.messages == 0:
            return []
        seen = (state.last_seq, state.messages)
        if seen == self._dead:
            return self._letters
        letters = await latest_messages(self._streams, _SHOWN)
        self._letters = [
            {
                **_ids_of(self._streams, letter.subject),
                "sequence": letter.sequence,
                "at": letter.headers.get(DIED_AT),
                "reason": letter.headers.get(REASON, ""),
            }
            for letter in letters
        ]
        self._dead = seen
        return self._letters


def _ids_of(subjects: Subjects, subject: str) -> dict[str, str]:
    try:
        return subjects.parse_change_set(subject).plain()
    except UnknownSubject:
        return {"workspace": "", "changeSet": subject}


_MEASURE_INTERVAL: Final = 0.5  # seconds
_ROUND_TRIP_TIMEOUT: Final = 2.0  # seconds, for the round trip to NATS
_STORE_TIMEOUT: Final = 3.0  # seconds
_STORE_INTERVAL: Final = 30.0
"""Seconds for which a store that took a file is not tried again."""
_TRIAL: Final = bytes(4096)
"""Content of a file that shows whether the store takes any: a full disk takes empty ones."""


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict and its reasons."""

    ok: bool
    reasons: dict[str, str]


class HealthMonitor:
    """Measures the lag of the event loop, and checks NATS and the store on request."""

    def __init__(self, nc: Client, shutdown: Shutdown, store: StoreFiles, stats: WorkStats) -> None:
        self._nc = nc
        self._shutdown = shutdown
        self._stats = stats
        self._store = store
        self._writing: asyncio.Task[None] | None = None
        self._written = -_STORE_INTERVAL
        self.lag = 0.0
        """Seconds by which the loop was late at the last measurement."""

    async def measure_lag(self) -> Never:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.monotonic() + _MEASURE_INTERVAL
            await asyncio.sleep(_MEASURE_INTERVAL)
            self.lag = max(0.0, time.monotonic() - due)
            metrics.LOOP_LAG.observe(self.lag)

    def alive(self) -> Health:
        """Whether the process is alive; the event loop is, since this returns.

        All parts of the daemon run in one task group: if one fails, the process ends. NATS does
        not count: a restart brings back neither NATS nor the connection any sooner.
        """
        return Health(ok=True, reasons={"eventLoop": f"late by {self.lag:.3f} s"})

    async def ready(self, *, with_reasons: bool) -> Health:
        """Whether the daemon takes tasks, and has not found that it could never compute any.

        Spark's own words are for visitors who may look on, `with_reasons`.

        A daemon whose Spark has gone stays ready, and says so: requests are handled without Spark.
        """
        if self._shutdown.is_set:
            return Health(ok=False, reasons={"shutdown": "requested"})
        answers, refusal = await asyncio.gather(self._nats_answers(), self._store_refusal())
        problem = self._stats.nats_problem() if answers else None
        if problem is not None:
            nats, remedy = problem
            nats = f"{nats}; {remedy}"
        else:
            nats = "answers" if answers else self._why_not()
        reasons = {"nats": nats, "store": refusal or "takes files"}
        absence = self._stats.spark_absence()
        if absence is not None:
            reasons["spark"] = str(absence) if with_reasons else absence.brief
        never_started = absence is not None and absence.is_first
        takes_work = answers and not self._stats.is_stopped()
        ok = takes_work and refusal is None and not never_started
        return Health(ok, reasons)

    def _why_not(self) -> str:
        error = None if self._nc.is_connected else self._nc.last_error
        return "does not answer" if error is None else f"does not answer: {error}"

    async def _nats_answers(self) -> bool:
        link = Connection.of(self._nc)
        return link.is_connected and await link.ping(_ROUND_TRIP_TIMEOUT)

    async def _store_refusal(self) -> str | None:
        """Reason why the store takes no file; None if it took one a moment ago."""
        if time.monotonic() < self._written + _STORE_INTERVAL:
            return None
        # one at a time for all that ask: a thread in a dead file system stays there
        writing = self._writing
        if writing is None or writing.done():
            writing = asyncio.create_task(asyncio.to_thread(self._write), name="store probe")
            self._writing = writing
        done, _ = await asyncio.wait([writing], timeout=_STORE_TIMEOUT)
        if not done:
            return f"{self._where}: no answer within {_STORE_TIMEOUT:g} s"
        error = writing.exception()
        if error is not None:
            return f"{self._where} cannot be written by uid {os.getuid()}: {error}"
        self._written = time.monotonic()
        return None

    def _write(self) -> None:
        # garbage collection looks there, should this process be killed in between
        trial = f"{TEMP_DIR}/{uuid4().hex}"
        self._store.put(trial, _TRIAL, durable=False)
        self._store.delete(trial)

    @property
    def _where(self) -> str:
        return redact_url(self._store.root)


EXPIRY: Final = 40.0
"""Seconds after which an open page has asked twice."""


class Onlookers:
    """Names of those who look at change sets.

    They are in memory: after a restart their pages tell them again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[ChangeSet, str], float] = {}

    def see(self, change_set: ChangeSet, name: str) -> None:
        """Note that the page of the visitor with that name has just asked."""
        now = self._clock()
        self._seen[change_set, name] = now
        for key in [key for key, at in self._seen.items() if now - at > EXPIRY]:
            del self._seen[key]

    def of(self, change_set: ChangeSet) -> list[str]:
        """Names of those who look at the change set."""
        since = self._clock() - EXPIRY
        return sorted(
            name for (seen, name), at in self._seen.items() if seen == change_set and at >= since
        )


@dataclass(frozen=True, slots=True)
class OpsContext:
    """Read by the endpoint; only actions change anything."""

    instance: str
    store: str
    """Location of the store, without secrets."""
    guard: Guard
    streams: Streams
    shutdown: Shutdown
    stats: WorkStats
    slots: SlotPool
    members: Membership
    queues: QueueWatch
    health: HealthMonitor
    registry: Registry
    names: NameCache
    onlookers: Onlookers
    presentation: Presentation
    routes: Sequence[web.RouteDef]
    """Paths of pages and actions, beside those of the endpoint itself."""


_HOLDINGS: Final = 30
"""Maximum number of change sets that each Rebaser lists; it sends the number of the others."""

_VERSION: Final = version("rebaser")


class DeploymentStatus:
    """Composes the status of the deployment at most once a second."""

    def __init__(self, context: OpsContext) -> None:
        self._context = context
        self.peers: Final = Peers(context.streams, self)
        self._status = RarelyRead(self._make, _FRESH)

    def own(self) -> Report:
        return {
            "instance": self._context.instance,
            "version": _VERSION,
            "store": self._context.store,
            "started": self._context.stats.started.isoformat(timespec="seconds"),
            "slots": {"busy": self._context.slots.busy, "free": self._context.slots.free},
            "lagSeconds": round(self._context.health.lag, 4),
            "holdings": self._context.stats.held_change_sets(_HOLDINGS),
            "rates": self._context.stats.rates(),
            "failures": list(self._context.stats.failures),
            "impure": self._context.presentation.impure,
            "durability": self._context.stats.durability(),
            "spark": str(self._context.stats.spark_absence() or "") or None,
            "sparkReady": self._context.stats.spark_is_ready(),
            "natsProblem": self._context.stats.nats_problem(),
        }

    def onlookers(self, change_set: ChangeSet) -> list[str]:
        """Names of those who look at the change set on a page of this Rebaser."""
        return self._context.onlookers.of(change_set)

    async def of_all(self) -> dict[str, Any]:
        """The status of the deployment; if NATS does not deliver all of it, with the `problem`."""
        return await self._status.get()

    async def _make(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "now": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "answering": self._context.instance,
            "connected": self._context.streams.js.nc.is_connected,
            "paused": self._context.stats.pauses(),
        }
        try:
            expected = max(1, self._context.members.alive())
            queues, rebasers = await asyncio.gather(
                self._context.queues.look(), self.peers.reports(expected)
            )
            rebasers = rebasers or [self.own()]
            names = await self._context.names.lookup(_named(status, queues, rebasers))
        except (JetStreamError, nats.errors.Error, OSError) as error:
            return {**status, "problem": f"NATS: {error}", "rebasers": [self.own()]}
        return {**status, "rebasers": rebasers, "queues": asdict(queues), "names": names}


def _named(
    status: dict[str, Any], queues: Queues, rebasers: list[Report]
) -> Iterator[dict[str, Any]]:
    """All rows of the page that name a change set or a workspace, the most urgent first."""
    holdings = [row for rebaser in rebasers for row in rebaser.get("holdings", ())]
    yield from (row for row in holdings if row.get("update"))
    yield from queues.latest_dead
    yield from status["paused"]
    yield from queues.deepest
    yield from holdings
    yield from (row for rebaser in rebasers for row in rebaser.get("failures", ()))
    yield from (row for rebaser in rebasers for row in rebaser.get("impure", ()))
