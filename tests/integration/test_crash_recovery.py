"""Killed at any step of commit, checkpoint, purge and tidying, nothing is lost or done twice.

Also if the store then turns out to have lost its last write, for want of an fsync.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.doctor.checks import check_history
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from tests.helpers.crashing_owner import KEPT, STEPS, VALUE, one_round
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.paths import ROOT
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import Owner


@pytest.fixture(scope="module")
def dying() -> Iterator[subprocess.Popen[str]]:
    """The program of that name: a line in is a process that dies."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.crashing_owner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    with process:
        yield process


def killed(
    dying: subprocess.Popen[str], deployment: Deployment, change_set: ChangeSet, *how: str
) -> int:
    """Let another process work on it until it dies; the last number it had committed."""
    assert dying.stdin is not None
    assert dying.stdout is not None
    what = (deployment.nats.url, deployment.settings.store.root, *map(str, change_set), *how)
    print(*what, sep="\t", file=dying.stdin, flush=True)
    said = []
    while not (line := dying.stdout.readline()).startswith("ended"):
        said.append(line)
    assert line == "ended by -9\n", said
    return int(said[-1])


def lose_last_write(deployment: Deployment, change_set: ChangeSet) -> None:
    """As if its rename had never reached the disk."""
    uri = checkpoints_of(deployment.archive(change_set)).uri(change_set)
    max((Path(uri) / "_delta_log").glob("*.json")).unlink()


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before", marks=pytest.mark.long),
        pytest.param("after", marks=pytest.mark.long),
        "after, and the store loses its last write",
    ],
)
@pytest.mark.parametrize("step", STEPS)
async def test_the_next_owner_finds_every_commit(
    dying: subprocess.Popen[str], deployment: Deployment, step: str, when: str
) -> None:
    [change_set] = new_change_sets(1)
    args = (dying, deployment, change_set, step, when)
    committed = await asyncio.to_thread(killed, *args)
    if "loses" in when:
        lose_last_write(deployment, change_set)

    owner = await Owner.of(deployment, change_set, KEPT)
    graph = graph_of(owner.own.state)
    assert graph.values[VALUE].value in (committed, committed + 1)
    others = {value.value for value in graph.values.values() if value.id != VALUE}
    assert len(others) == 1  # of a batch all or nothing
    assert others <= {committed, committed - 1}
    assert await check_history(owner.archive, deep=True) is None

    await one_round(owner, 1000)
    collector = deployment.collector()
    await collector.remove(await collector.find())

    known = contents(graph_of(owner.own.state))
    for at in (None, *(checkpoint.commit for checkpoint in owner.own.state.checkpoints)):
        restored = await owner.archive.load(at)
    assert contents(graph_of(await owner.archive.load())) == known
    assert restored.commit == owner.own.state.checkpoints[-1].commit
    assert (await collector.find()).counts() == {}
