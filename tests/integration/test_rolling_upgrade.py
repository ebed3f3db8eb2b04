"""Daemons of two releases side by side, and one replaced by the other, under load."""

import asyncio
import itertools
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from rebaser_client.client import RebaserClient
from rebaser_client.requests import Reply
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import SuccessStatusV3
from rebaser_server.doctor.checks import check_history
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Daemon, Deployment, Recorder, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.next_release import NEXT, THIS, NextClient, next_lines

BUSY = 0.05  # seconds between two requests of a change set that never goes quiet
CALM = 1.0  # of one that goes quiet in between, and is then taken by either daemon


@pytest.fixture(autouse=True)
def _reads_either_release() -> Iterator[None]:
    with next_lines():
        yield


@dataclass
class Asking:
    """One client that keeps asking of one change set."""

    client: RebaserClient
    change_set: ChangeSet
    pause: float
    values: ExampleGraph = field(default_factory=ExampleGraph)
    sent: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    last: int = 0

    async def ask(self, over: asyncio.Event) -> None:
        await self._send(self.values.define(0, 0))
        for number in itertools.count(1):
            if over.is_set():
                return
            self.last = number
            await self._send([set_to(self.values.net, number)])
            await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=self.pause)

    async def _send(self, batch: list) -> None:
        request, reply = await self.client.enqueue_updates_with_reply(*self.change_set, batch)
        self.sent.append(str(request))
        self.replies.append(reply)


async def replaced(deployment: Deployment, old: Daemon) -> Daemon:
    """The next release in the place of `old`, which was asked to stop and did."""
    old.send(signal.SIGTERM)
    assert await old.ended() == 0
    return await deployment.start(f"{old.name}-next", NEXT)


def left_for_newer(daemon: Daemon, what: str) -> bool:
    return any(what in said["reason"] for said in daemon.said("retry scheduled"))


@pytest.mark.long
async def test_daemons_are_replaced_by_newer_ones_under_load_and_nothing_is_lost(
    deployment: Deployment,
) -> None:
    old = [await deployment.start(f"daemon-{n}", THIS) for n in range(2)]
    async with (
        RebaserClient.on(deployment.nc, deployment.js) as client,
        NextClient.on(deployment.nc, deployment.js) as next_client,
        recording(deployment) as recorder,
    ):
        change_sets = iter(new_change_sets(8))
        asking = [
            Asking(by, next(change_sets), pause)
            for by in (client, next_client)
            for pause in (BUSY, BUSY, CALM, CALM)
        ]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for each in asking:
                group.create_task(each.ask(over))
            await eventually(lambda: any(left_for_newer(d, "Request version 2") for d in old))
            first = await replaced(deployment, old[0])
            await eventually(lambda: left_for_newer(old[1], "Commit version 3"), within=60)
            second = await replaced(deployment, old[1])
            over.set()
        responses = [await asyncio.gather(*each.replies) for each in asking]
        await deployment.at_rest()
        await recorded(recorder, asking)

    assert all(isinstance(r.status, SuccessStatusV3) for each in responses for r in each)
    for each in asking:
        assert recorder.settled(each.change_set) == each.sent, "lost, repeated or overtaken"
        graph = await deployment.graph(each.change_set)
        assert graph.values[each.values.gross].value == each.last
        assert await check_history(deployment.archive(each.change_set), deep=True) is None
    for daemon in (*old, first, second):
        assert "Traceback" not in daemon.said_in_all()


async def recorded(recorder: Recorder, asking: Sequence[Asking]) -> None:
    """Return once the last lines were heard: those that let go of the change sets."""
    await eventually(
        lambda: all(not recorder.lines[a.change_set][-1].control.owner for a in asking)
    )
