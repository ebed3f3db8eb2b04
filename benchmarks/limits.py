"""What the request path is compared with, on streams of its own on the same server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import nats

from benchmarks.bare import Chain, Publisher, Request, WorkerLane, worker
from benchmarks.commits import following
from benchmarks.deployment import Deployment
from benchmarks.replicas import provide
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
)
from rebaser_core.subjects import Subjects
from rebaser_core.updates import SetValue
from tests.helpers.deployment import new_change_sets

BARE, WORKER = Subjects("BARE"), Subjects("WORKER")
"""Streams configured as Rebaser's are: of what is only stored, and of what is deleted, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """As many change sets of each kind."""

    chains: list[Chain]
    workers: list[WorkerLane]
    worker_pid: int
    publishers: list[Publisher]
    """Only publish, to subjects that nobody reads."""
    bytes: tuple[int, int]
    """Of a request and of a commit, headers included."""
    js: JetStream

    async def tidy(self) -> None:
        """Drop the requests that nobody deletes."""
        await self.js.purge(BARE.requests_stream)


@asynccontextmanager
async def limits(deployment: Deployment) -> AsyncIterator[Limits]:
    """Everything that is compared with the lanes of `deployment`, connected and warm."""
    js, count = deployment.watching, len(deployment.lanes)
    for subjects in (BARE, WORKER):
        await provide(js, deployment.broker, subjects)
    lane = deployment.lanes[0]
    request, size = _request(lane.update()), _bytes_of(lane.commits.last[lane.subject])
    async with AsyncExitStack() as stack:
        client, other = [await nats.connect(deployment.broker.url) for _ in range(2)]
        stack.push_async_callback(client.close)
        stack.push_async_callback(other.close)

        def publishers(subjects: Subjects) -> dict[ChangeSet, Publisher]:
            change_sets = new_change_sets(count)
            return {cs: Publisher(client, subjects, cs, request) for cs in change_sets}

        seen = await stack.enter_async_context(following(js, WORKER.commits_stream))
        asked = publishers(WORKER)
        pid = stack.enter_context(worker(deployment.broker.url, WORKER, size, list(asked)))
        workers = [WorkerLane(one, seen, WORKER.commits(cs)) for cs, one in asked.items()]
        chains = [Chain(one, other, BARE, cs, size) for cs, one in publishers(BARE).items()]
        for asking in workers:
            await asking.open()
        for chain in chains:
            await chain.open()
        silent = [*publishers(BARE).values()]
        yield Limits(chains, workers, pid, silent, (_size(*request), size), js)


def _request(update: dict[str, dict[str, object]]) -> Request:
    """What the client sends to a change set for `update`."""
    [change_set] = new_change_sets(1)
    message = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(
            inline=InlineBatch(updates=[SetValue.from_wire(update["setValue"])])
        ),
    )
    return EnqueueUpdatesRequest.encode(message)


def _bytes_of(line: Delivery) -> int:
    return _size(line.headers, line.payload)


def _size(headers: Mapping[str, str], payload: bytes) -> int:
    return len(payload) + sum(len(name) + len(text) for name, text in headers.items())
