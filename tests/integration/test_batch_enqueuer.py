"""One call until a batch is committed, or until what depends on it is computed."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from rebaser_client import MalformedMessage, RequestRefused
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.blocking_function import Gate
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.workspace import Team


async def test_one_call_returns_what_the_batch_left_without_a_result(
    deployment: Deployment,
) -> None:
    """A failure of a value is no error of the batch; later calls tell old failures from new."""
    [change_set], values, other = new_change_sets(1), ExampleGraph(), ExampleGraph()
    await deployment.start()
    client = deployment.client
    due = new_id()
    inputs = {"values": [values.gross]}
    top = {"putValue": {"valueId": due, "funcId": values.add, "inputs": inputs}}

    stored = await client.change_set(*change_set).enqueue(values.define(), wait="stored")
    good = await client.change_set(*change_set).enqueue([*other.define(), top], wait="computed")
    bad = await client.change_set(*change_set).enqueue(
        [set_to(values.net, "text")], wait="computed"
    )
    unrelated = await client.change_set(*change_set).enqueue(
        [set_to(other.net, 5)], wait="computed"
    )

    assert (stored.commit, stored.settlement) == (None, None)
    assert (good.failed, good.blocked) == ((), ())
    assert [value.id for value in bad.failed] == [values.gross]
    assert "TypeError" in bad.failed[0].message
    assert [value.id for value in bad.blocked] == [due]
    assert unrelated.failed == ()
    assert [value.id for value in unrelated.settlement.failed_before] == [values.gross]
    assert (await client.change_set(*change_set).settled()).failed == bad.failed


async def test_settled_waits_for_the_commit_and_progress_ends_with_it(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end once the values of that commit are computed, and not before."""
    [change_set], gate = new_change_sets(1), Gate(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(gate.path), prepend=os.pathsep)
    await deployment.start()
    client = deployment.client
    gate.close()

    outcome = await client.change_set(*change_set).enqueue(gate.define(1))
    settled = asyncio.create_task(client.change_set(*change_set).settled(outcome.commit))
    async with aclosing(client.change_set(*change_set).progress(outcome.commit)) as steps:
        first = await anext(steps)
        await eventually(gate.seen, within=60)
        ended_early = settled.done()
        gate.open()
        following = [step async for step in steps]

    assert (first.done, first.total) == (0, None)
    assert not ended_early
    assert all(step.total in (None, 1) for step in following)
    settlement = await settled
    assert settlement.commit > outcome.commit
    values = await client.change_set(*change_set).values("gated")
    assert (values["gated"].value, values.may_be_stale) == (1, False)
    assert (await client.change_set(*change_set).settled()).failed == ()


async def test_a_change_set_without_a_log_has_nothing_to_wait_for(deployment: Deployment) -> None:
    """Progress comes once, and ends."""
    [change_set] = new_change_sets(1)
    await deployment.start()

    steps = [step async for step in deployment.client.change_set(*change_set).progress()]

    assert [(step.done, step.total) for step in steps] == [(0, None)]


async def test_a_batch_that_is_not_applied_raises(deployment: Deployment) -> None:
    """Nothing has to be matched to learn it."""
    await deployment.start()
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.client.change_set(*branch).abandon()

    with pytest.raises(RequestRefused, match="abandoned"):
        await deployment.client.change_set(*branch).enqueue([set_to(team.sum.net, 1)])
    with pytest.raises(MalformedMessage, match="putValeu"):
        await deployment.client.change_set(*branch).enqueue([{"putValeu": {}}])
