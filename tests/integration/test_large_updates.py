"""A large update is computed round by round, and only as far as values come out changed."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.outcomes import ActivityFeed, watching
from rebaser_core.activities import ActivityKind
from rebaser_server.values.columns import ValueStatus
from tests.helpers.batches import Batch, new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.graph_builder import install

LENGTH = 6_000
"""Values of a chain: more than an update that is planned at once has."""
CRASHING = """
import os

def crash_at_two(value):
    if value == 2:
        os.abort()
    return value
"""


def chain(source: str, ids: list[str], special: dict[int, str], most: str) -> Batch:
    """Each value takes the one before it; `special` ones have a function of their own."""
    updates: Batch = [put(source, 1)]
    for place, value_id in enumerate(ids):
        below = ids[place - 1] if place else source
        func, inputs = special.get(place, most), {"values": [below]}
        if func != most:
            inputs = {"value": below}
        updates.append({"putValue": {"valueId": value_id, "funcId": func, "inputs": inputs}})
    return updates


def func(func_id: str, code: str, runtime: str) -> Batch:
    return [{"putFunc": {"funcId": func_id, "name": code, "runtime": runtime, "code": code}}]


async def test_what_is_behind_an_unchanged_value_is_not_looked_at(deployment: Deployment) -> None:
    """Though it depends on what was set; and where all changes, all is computed."""
    [change_set] = new_change_sets(1)
    source, most, same = (new_id() for _ in range(3))
    ids = [new_id() for _ in range(LENGTH)]

    async def finished(feed: ActivityFeed) -> dict[str, Any]:
        async with asyncio.timeout(180):
            async for activity in feed:
                if activity.kind is ActivityKind.DVU_FINISHED:
                    return activity.details
        raise AssertionError("no feed ends")

    async with watching(deployment.streams, change_set) as feed:
        await deployment.start_with_lease()
        functions = [*func(most, "max", "builtin"), *func(same, "value > 0 ? 1 : 0", "cel")]
        await deployment.client.enqueue_updates(
            *change_set, [*functions, *chain(source, ids, {4: same}, most)]
        )
        await finished(feed)
        await deployment.client.enqueue_updates(*change_set, [set_to(source, 2)])
        early = await finished(feed)
        await deployment.client.enqueue_updates(*change_set, [set_to(source, 0)])
        late = await finished(feed)

    graph = await deployment.graph(change_set)
    assert (early["recomputed"], early["changed"]) == (5, 4)
    assert early["affected"] < LENGTH / 10
    assert (late["affected"], late["recomputed"], late["changed"]) == (LENGTH,) * 3
    assert graph.values[ids[-1]].value == 0


async def test_a_value_of_a_later_round_that_crashes_fails_alone(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "crashing_late", CRASHING, {"crash_at_two": "crashing_late:crash_at_two"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    [change_set] = new_change_sets(1)
    source, most, crash = (new_id() for _ in range(3))
    ids = [new_id() for _ in range(LENGTH)]
    daemon = await deployment.start()
    await deployment.client.enqueue_updates(
        *change_set,
        [
            *func(most, "max", "builtin"),
            *func(crash, "crash_at_two", "python"),
            *chain(source, ids, {LENGTH - 10: crash}, most),
        ],
    )
    await deployment.at_rest()

    await deployment.client.enqueue_updates(*change_set, [set_to(source, 2)])
    await deployment.at_rest()

    assert daemon.said("dvu postponed") == []
    values = (await deployment.graph(change_set)).values
    assert values[ids[LENGTH - 11]].value == 2
    assert values[ids[LENGTH - 10]].status is ValueStatus.FAILED
    assert "ended" in str(values[ids[LENGTH - 10]].message)
    assert values[ids[LENGTH - 9]].status is ValueStatus.BLOCKED
