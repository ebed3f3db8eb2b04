"""A workspace that floods a daemon takes its turn like any other."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import PullConsumer
from rebaser_core.requests import ensure_task
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster import slots as cluster_slots
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.cluster.tasks import LeaseSettings, LeaseTerms, TaskRunner
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.composition import provisioner_of
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import (
    Deployment,
    Recorder,
    new_change_sets,
    rebaser_with,
    recording,
)
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install
from tests.helpers.services import services_of

GATES = """
import os, time

def waits(path):
    with open(f"{path}.{os.getpid()}", "w"):
        pass
    while not os.path.exists(path):
        time.sleep(0.01)
    return True
"""

AT_ONCE = 10
"""Requests under way at a time: so many that the change set is never idle between two."""


@pytest.mark.long
async def test_a_small_workspace_does_not_wait_for_a_flooding_one(deployment: Deployment) -> None:
    """100 change sets are in line for four slots before the small one's only request comes."""
    crowd, [small], values = new_change_sets(100), new_change_sets(1), ExampleGraph()
    await asyncio.gather(*(_send(deployment, each, [values.define()]) for each in crowd))
    async with recording(deployment) as recorder:
        await deployment.start(CONCURRENCY="4")
        await eventually(lambda: _handled(recorder, crowd) >= 3)

        await _send(deployment, small, [values.define()])
        await eventually(lambda: _handled(recorder, [small, *crowd]) == 101, within=240)
    # It finds a slot free; were it in line behind all, it would come as the last.
    assert list(recorder.lines).index(small) < 50  # in the order in which they were begun


async def test_a_task_that_would_be_too_many_of_its_workspace_is_given_back_for_a_while(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: it comes again where, or when, there is room, and leaves the others' slots free."""
    monkeypatch.setattr(cluster_slots, "MAX_WAIT", 0.1)
    [busy, another] = new_change_sets(2)
    js, streams = deployment.js, deployment.streams
    slots = SlotPool(streams, 2, Fairness())
    assert slots.acquire(busy) is not None
    runner = TaskRunner(
        services_of(deployment),
        LeaseTerms(LeaseSettings(2, 0.4)),
        Shutdown(),
        slots,
        PauseMonitor(streams),
        WriteWatch(provisioner_of(js, deployment.settings)),
    )
    await ensure_task(streams, another)
    async with PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks:
        task = await tasks.take(1)
        assert task is not None
        said = await deployment.nc.subscribe(task.reply)

        await runner.dispatch(task)

        assert (await said.next_msg(30)).data.startswith(b'-NAK {"delay": ')
    assert slots.free == 1


async def test_a_change_set_that_never_rests_gives_its_slot_up_after_a_turn(
    deployment: Deployment,
) -> None:
    """W10c: without turns the others would wait for as long as the first is fed. One slot.

    Should the machine stall so long that the first one rests, then it gives its slot up for that;
    so others come until its turn is over.
    """
    [busy], values = new_change_sets(1), ExampleGraph()
    sent, is_over = await _send(deployment, busy, [values.define()]), asyncio.Event()

    async def feed() -> None:
        while not is_over.is_set():
            request, reply = await deployment.client.enqueue_updates_with_reply(
                *busy, [set_to(values.net, len(sent))]
            )
            sent.append(str(request))
            await reply

    async with recording(deployment) as recorder:
        daemon = await deployment.start(
            command=rebaser_with("rebaser_server.cluster.slots:MAX_HOLD", "0.2"),
            CONCURRENCY="1", QUIET_PERIOD="60",
        )  # fmt: skip
        await eventually(lambda: _handled(recorder, [busy]) == 1)

        async with asyncio.timeout(180), asyncio.TaskGroup() as feeding:
            for _ in range(AT_ONCE):
                feeding.create_task(feed())
            while not daemon.said("turn over"):
                [other] = new_change_sets(1)
                await _send(deployment, other, [values.define()])
                await eventually(partial(_is_handled, recorder, other), within=120)
            is_over.set()
        await eventually(lambda: _handled(recorder, [busy]) == len(sent), within=120)

    assert sorted(recorder.settled(busy)) == sorted(sent)


def _is_handled(recorder: Recorder, change_set: ChangeSet) -> bool:
    return bool(recorder.settled(change_set))


def _handled(recorder: Recorder, change_sets: Sequence[ChangeSet]) -> int:
    return sum(len(recorder.settled(change_set)) for change_set in change_sets)


async def _send(
    deployment: Deployment, change_set: ChangeSet, batches: Sequence[list[dict[str, object]]]
) -> list[str]:
    return [str(await deployment.client.enqueue_updates(*change_set, batch)) for batch in batches]


@pytest.mark.long
async def test_a_small_update_passes_the_slow_values_of_other_workspaces(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than processes that may compute them."""
    install(tmp_path, "gates", GATES, {"waits": "gates:waits"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    gate, values = tmp_path / "gate", ExampleGraph()
    slow, [small] = [new_change_sets(1)[0] for _ in range(10)], new_change_sets(1)
    function, path, value = (new_id() for _ in range(3))
    await deployment.start()
    for each in slow:
        batch = [
            {"putFunc": {"funcId": function, "name": "w", "runtime": "python", "code": "waits"}},
            put(path, str(gate)),
            {"putValue": {"valueId": value, "funcId": function, "inputs": {"path": path}}},
        ]
        _, reply = await deployment.client.enqueue_updates_with_reply(*each, batch)
        await reply
    await eventually(lambda: len([*tmp_path.glob("gate.*")]) > 1, within=120)

    _, reply = await deployment.client.enqueue_updates_with_reply(*small, values.define(20, 22))
    await reply

    async def is_computed(change_set: ChangeSet, value: str, expected: object) -> bool:
        return bool((await deployment.graph(change_set)).values[value].value == expected)

    await eventually(lambda: is_computed(small, values.gross, 42), within=120)
    assert not any([await is_computed(each, value, True) for each in slow])
    gate.touch()
    for each in slow:
        await eventually(partial(is_computed, each, value, True), within=120)
