"""A workspace that floods a daemon takes its turn like any other."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from rebaser_core.ids import ChangeSet
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, Recorder, new_change_sets, recording
from tests.helpers.eventually import eventually

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
        await eventually(lambda: _handled(recorder, [small]) == 1, within=30)
        before = _handled(recorder, crowd)

        await eventually(lambda: _handled(recorder, crowd) == 100, within=120)
    # It finds a slot free; were it in line behind all, it would come as the last.
    assert before < 50


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
            CONCURRENCY="1", FAIRNESS__MAX_HOLD="0.2", QUIET_PERIOD="60"
        )
        await eventually(lambda: _handled(recorder, [busy]) == 1)

        async with asyncio.timeout(60), asyncio.TaskGroup() as feeding:
            for _ in range(AT_ONCE):
                feeding.create_task(feed())
            while not daemon.said("turn over"):
                [other] = new_change_sets(1)
                await _send(deployment, other, [values.define()])
                await eventually(partial(_is_handled, recorder, other), within=60)
            is_over.set()
        await eventually(lambda: _handled(recorder, [busy]) == len(sent), within=60)

    assert sorted(recorder.handled(busy)) == sorted(sent)


def _is_handled(recorder: Recorder, change_set: ChangeSet) -> bool:
    return bool(recorder.handled(change_set))


def _handled(recorder: Recorder, change_sets: Sequence[ChangeSet]) -> int:
    return sum(len(recorder.handled(change_set)) for change_set in change_sets)


async def _send(
    deployment: Deployment, change_set: ChangeSet, batches: Sequence[list[dict[str, object]]]
) -> list[str]:
    return [str(await deployment.client.enqueue_updates(*change_set, batch)) for batch in batches]
