"""One change set does not hold the event loop of a daemon, on which all others depend."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.log import CommitLog
from tests.chaos.operational_checks import HELD
from tests.helpers import loop_monitor
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually

LENGTH = 6_000
"""Values of a chain: so many ways of up to as many names lead to the last one."""


async def test_questions_about_a_long_chain_hold_no_event_loop(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do the batch, its update, its checkpoint, nor the undoing of all of it."""
    monkeypatch.setenv("PYTHONPATH", str(loop_monitor.install(tmp_path / "monitor")))
    daemon = await deployment.start(CHECKPOINT_EVERY="2")
    [change_set] = new_change_sets(1)
    updates, last = chain()

    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, updates)
    await reply
    await computed(deployment, change_set, last)
    reader = deployment.client.change_set(*change_set)
    log = CommitLog(deployment.streams, change_set)
    end, _ = await log.last()
    entries = [sequence async for sequence, entry in log.entries(0, end) if entry.settled]
    why, plan, values = await asyncio.gather(
        reader.why(last), reader.plan_revert(entries[0]), reader.values()
    )

    assert why.edits[0].omitted == LENGTH + 1 - len(why.edits[0].changes)
    assert len(plan.updates) == LENGTH + 1
    assert len(values) == LENGTH
    long = [turn for turn in loop_monitor.turns_in(daemon.said_in_all()) if turn[0] > HELD]
    assert not long


def chain() -> tuple[list[dict[str, Any]], str]:
    """A source, and values that each take the one before; the id of the last one."""
    ids, func = [str(ULID()) for _ in range(LENGTH)], str(ULID())
    put_func = {"funcId": func, "name": "sum", "runtime": "builtin", "code": "sum"}
    updates: list[dict[str, Any]] = [{"putFunc": put_func}]
    updates.append({"putValue": {"valueId": ids[0], "value": 1}})
    for before, value_id in pairwise(ids):
        put = {"valueId": value_id, "funcId": func, "inputs": {"values": [before]}}
        updates.append({"putValue": put})
    return updates, ids[-1]


async def computed(deployment: Deployment, change_set: ChangeSet, value: str) -> None:
    async def is_computed() -> bool:
        values = await deployment.client.change_set(*change_set).values(value)
        return not values.may_be_stale

    await eventually(is_computed, within=120)
