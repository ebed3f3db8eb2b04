"""Results that are too many for a message lie in files, and survive whoever computed them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never

import pytest

from rebaser_client.outcomes import watching
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import StoreRef
from rebaser_server.files import run_of_key
from rebaser_server.runtime.tasks import background
from tests.helpers.batches import Batch, new_id, put
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install

NOTING = """
import time
from pathlib import Path

def noting(value, path):
    with open(path, "a") as file:
        file.write(f"{value}\\n")
    time.sleep(0.01 + 0.0005 * value * (not Path(path + ".hurry").exists()))
    return value + 1
"""
"""Slower from value to value, so that no turn is long enough for all, until it shall hurry."""


def ids(count: int) -> list[str]:
    return [new_id() for _ in range(count)]


def func(func_id: str, code: str, runtime: str = "builtin") -> Batch:
    return [{"putFunc": {"funcId": func_id, "name": code, "runtime": runtime, "code": code}}]


def computed(value_id: str, func_id: str, inputs: dict[str, str | list[str]]) -> Batch:
    return [{"putValue": {"valueId": value_id, "funcId": func_id, "inputs": inputs}}]


def shelves(deployment: Deployment) -> list[Path]:
    results = Path(deployment.settings.store.root) / "results"
    return [path for path in results.glob("*") if path.is_dir()]


async def test_many_results_are_folded_from_files(deployment: Deployment) -> None:
    """What the log then says is what anybody restores from it, and is no million of objects."""
    [change_set] = new_change_sets(1)
    (source, add), dependents = ids(2), ids(3000)
    batch = [
        *func(add, "sum"),
        put(source, 1),
        *(
            update
            for value in dependents
            for update in computed(value, add, {"values": [source, source]})
        ),
    ]
    async with recording(deployment) as log:
        await deployment.start()
        await deployment.client.enqueue_updates(*change_set, batch)
        await deployment.at_rest()

        await eventually(lambda: any(map(_is_result, log.lines[change_set])))
        graph = await deployment.graph(change_set)
        addresses = [line.settled.updates for line in log.lines[change_set] if _is_result(line)]
    assert {graph.values[value].value for value in dependents} == {2}
    assert not graph.roots
    assert [
        isinstance(address, StoreRef) and run_of_key(address.store) for address in addresses
    ] == [shelf.name for shelf in shelves(deployment)]
    [shelf] = shelves(deployment)
    [settled] = [line.settled for line in log.lines[change_set] if _is_result(line)]
    batch = await deployment.archive(change_set).batches.fetch(settled.updates, settled.id)
    left = {path.name for path in shelf.iterdir()}
    assert {name for name in left if not name.endswith(".batch")} == set(batch.results.names)
    assert len(left) == len(batch.results.names) + 1


def _is_result(line: CommitV2) -> bool:
    return line.settled is not None and line.settled.covers is not None


@pytest.mark.long
async def test_results_of_a_killed_daemon_are_reused(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long component, killed in its middle: its successor goes on from what was saved.

    How far it is it tells while it goes on.
    """
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "noting", NOTING, {"noting": "noting:noting"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    calls = tmp_path / "calls"
    [change_set] = new_change_sets(1)
    values = 800  # so many that most are left when it is killed, and told of while they go on
    (source, path, count), dependents = ids(3), ids(values)
    batch = [
        *func(count, "noting", "python"),
        put(source, 0),
        put(path, str(calls)),
        *(
            update
            for before, value in zip([source, *dependents], dependents, strict=False)
            for update in computed(value, count, {"value": before, "path": path})
        ),
    ]
    first = await deployment.start()
    await deployment.client.enqueue_updates(*change_set, batch)

    await eventually(lambda: _is_saved(deployment), within=60)
    first.kill()
    await asyncio.to_thread(first.process.wait)
    saved = max(int(path.name.split("-")[2]) for path in _saved(deployment))
    (tmp_path / "calls.hurry").touch()
    async with _progress(deployment, change_set) as told:
        await deployment.start()
        await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert [graph.values[value].value for value in dependents] == list(range(1, values + 1))
    noted = [int(line) for line in calls.read_text().split()]
    assert set(noted) == set(range(values))
    assert [noted.count(value) for value in range(1, saved)] == [1] * (saved - 1)
    assert noted.count(0) <= 3, "once, and once by each daemon to learn what the function costs"
    assert len(noted) < 2 * values - saved + 1
    assert {each["of"] for each in told} == {values}
    assert [each for each in told if saved < each["done"] < values] != []


@asynccontextmanager
async def _progress(
    deployment: Deployment, change_set: ChangeSet
) -> AsyncIterator[list[dict[str, Any]]]:
    """What is told of the progress of the change set's updates while the body runs."""
    told: list[ActivityV1] = []
    progress: list[dict[str, Any]] = []

    async def listen() -> Never:
        while True:
            told.append(await anext(activities))

    async with (
        watching(deployment.streams, change_set) as activities,
        background(listen()),
    ):
        yield progress
    progress += [each.details for each in told if each.kind is ActivityKind.DVU_PROGRESS]


def _saved(deployment: Deployment) -> list[Path]:
    files = [path for shelf in shelves(deployment) for path in shelf.iterdir()]
    return [path for path in files if path.name.count("-") == 3]


async def _is_saved(deployment: Deployment) -> bool:
    return bool(_saved(deployment))
