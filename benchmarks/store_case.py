"""One change set whose owner is in this process, and what it costs to keep it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ulid import ULID

from rebaser_core.commits import Commit, CommitV1
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import Subjects
from rebaser_core.updates import AnyUpdate, PutValue, SetValue
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of, open_state_loader
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from rebaser_server.store.compaction import compact, drop_superseded
from rebaser_server.values.rebase import rebase
from tests.helpers.scripted_owner import Owner

KEEP_REPLACED: Final = 24 * 3600.0  # seconds, as by default


class Small(NamedTuple):
    seconds: float
    """Of the whole checkpoint."""
    held: float
    """In which nobody else could commit."""


class Busy(NamedTuple):
    commits: list[float]
    seconds: float
    """Of the work beside them."""


@dataclass(slots=True)
class Case:
    """Requests set one value of the change set each, to something new."""

    js: JetStream
    owner: Owner
    settings: Settings
    root: Path
    ids: list[str]
    commits: int = 0

    async def fill(self, count: int) -> None:
        """Give it so many values, by one commit."""
        self.ids = [str(ULID()) for _ in range(count)]
        values: list[AnyUpdate] = [
            PutValue(value_id=value_id, name=f"value {n}", value=n)
            for n, value_id in enumerate(self.ids)
        ]
        rebase(graph_of(self.owner.own.state), 1, values)
        await self.owner.own.write()

    async def commit(self) -> float:
        """Commit one request; seconds of what follows its rebase."""
        self.commits += 1
        value_id = self.ids[self.commits * 7919 % len(self.ids)]
        prepared = await self.owner.prepared([SetValue(value_id=value_id, value=self.commits)])
        started = time.perf_counter()
        await prepared()
        return time.perf_counter() - started

    async def raw(self) -> "Raw":
        """The same bytes as the next commits', without us."""
        return await Raw.of(self)

    async def loading(self) -> float:
        """Seconds in which the state is there, from store and log."""
        started = time.perf_counter()
        await self.owner.archive.load()
        return time.perf_counter() - started

    async def checkpointing(self) -> Small:
        """Write what changed; and for how long nobody else can have the lock meanwhile."""
        started = time.perf_counter()
        task = asyncio.create_task(self.owner.checkpoint())
        await asyncio.sleep(0)
        async with self.owner.own.lock:
            held = time.perf_counter() - started
        await task
        return Small(time.perf_counter() - started, held)

    async def tidy(self) -> None:
        own = self.owner.own
        start = own.state.checkpoints[0].commit if own.state.checkpoints else 0
        archive = self.owner.archive
        await asyncio.to_thread(
            compact, checkpoints_of(archive), archive.change_set, start, KEEP_REPLACED
        )

    async def commits_while_tidying(self) -> Busy:
        """Commit one by one for as long as all rows are looked through and written anew."""
        archive = self.owner.archive
        table = checkpoints_of(archive).open(archive.change_set)
        assert table is not None  # noqa: S101 - there is a checkpoint
        started = time.perf_counter()
        work = asyncio.create_task(
            asyncio.to_thread(drop_superseded, table, self.owner.own.state.checkpoint_commit)
        )
        commits = []
        while not work.done():
            commits.append(await self.commit())
        await work
        return Busy(commits, time.perf_counter() - started)

    async def log_size(self) -> tuple[int, int]:
        """Lines and octets, of the one change set there is."""
        state = (await self.js.stream_info(Subjects().commits_stream)).state
        return state.messages, state.bytes

    def stored(self) -> int:
        """Octets under the store's root."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def files(self) -> int:
        return sum(path.is_file() for path in self.root.rglob("*"))


class Raw:
    """Publishes a line's payload and headers with nats-py alone."""

    def __init__(
        self, js: JetStream, subject: str, payload: bytes, headers: dict[str, str]
    ) -> None:
        self._js = js.nc.jetstream()
        self._subject = subject
        self._payload = payload
        self._headers = headers
        self._last = 0

    @classmethod
    async def of(cls, case: Case) -> "Raw":
        """Of the same size as the last line, on a subject of its own in the same stream."""
        await case.commit()
        _, line = await case.owner.archive.log.last()
        assert isinstance(line, CommitV1)  # noqa: S101 - written just now
        headers, payload = Commit.encode(line)
        subject = Subjects().commits(ChangeSet(WorkspaceId(), ChangeSetId()))
        return cls(case.js, subject, payload, headers)

    async def publish(self, *, expect: bool) -> float:
        headers = {**self._headers, MESSAGE_ID: str(ULID())}
        if expect:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(self._last)
        started = time.perf_counter()
        ack = await self._js.publish(self._subject, self._payload, headers=headers)
        taken = time.perf_counter() - started
        self._last = ack.seq
        return taken


@asynccontextmanager
async def opened(url: str, root: Path) -> AsyncIterator[Case]:
    """A change set of its own, with the store at `root`."""
    settings = Settings.model_validate({"nats": {"url": url}, "store": {"root": str(root)}})
    async with connected(ConnectOptions(servers=(url,))) as nc:
        js = JetStream(nc)
        await prepare(js, settings)
        stream = Subjects().commits_stream
        await js.purge(stream)
        change_set = ChangeSet(WorkspaceId(), ChangeSetId())
        own = await acquire_ownership(open_state_loader(js, settings, change_set), "measured")
        owner = Owner(own, Retention.of(settings.history))
        case = Case(js, owner, settings, root, [])
        await case.fill(10)
        yield case
