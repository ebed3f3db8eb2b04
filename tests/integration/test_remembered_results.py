"""An afternoon's work on one graph makes only those calls that are needed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import ChangeSetHandle, Draft, WorkspaceHandle, python
from rebaser_client.outcomes import watching
from rebaser_core.activities import ActivityKind
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Daemon, Deployment
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install
from tests.integration.test_ops_endpoint import get, started, status_of, url_of

NOTED = """
import os

def noted(*, value, place):
    with open({path!r}, "a") as file:
        file.write(f"{{value}} {{place}}\\n")
    return [value, place]

def impure(*, value):
    with open({path!r}, "a") as file:
        file.write("impure\\n")
    return os.urandom(4).hex()
"""
COUNT = 20


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls were made since it was last asked."""
    path, directory, seen = tmp_path / "calls", tmp_path / "functions", 0
    directory.mkdir()
    names = {name: f"noting:{name}" for name in ("noted", "impure")}
    install(directory, "noting", NOTED.format(path=str(path)), names)
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)

    def since() -> int:
        nonlocal seen
        count = len(path.read_text().splitlines()) if path.exists() else 0
        seen, before = count, seen
        return count - before

    return since


ON_SPARK = pytest.param("on Spark", marks=[pytest.mark.spark, pytest.mark.long])


@pytest.fixture(params=["beside the daemon", ON_SPARK])
async def daemon(
    deployment: Deployment, calls: Callable[[], int], request: pytest.FixtureRequest
) -> Daemon:
    where = {"SPARK__MIN_AFFECTED": "0"} if request.param == "on Spark" else {}
    return await deployment.start_with_lease(**where)


def noting(g: Draft, value: int, code: str = "noted") -> None:
    source = g.source("value", value)
    for n in range(COUNT):
        g.value(f"noted/{n}", python(code), value=source, place=g.source(f"place/{n}", n))


async def edit(change_set: ChangeSetHandle, value: int) -> None:
    async with change_set.edit() as g:
        noting(g, value)
    assert g.failed == ()
    values = await change_set.values()
    assert values["noted/7"].value == [value, 7]


async def test_an_afternoon_makes_only_the_calls_that_are_needed(
    deployment: Deployment, daemon: Daemon, calls: Callable[[], int]
) -> None:
    """Set and set back, branches, applied and reverted, and what says again what is there."""
    shop = await deployment.client.workspace("shop").create()
    await edit(shop, 1)
    assert calls() >= COUNT  # and a sample or two
    await edit(shop, 100)
    assert calls() == COUNT
    await edit(shop, 1)
    assert calls() == 0

    branch = await shop.fork("july")
    await edit(branch, 7)
    assert calls() == COUNT
    await branch.apply()
    assert (await shop.settled()).failed == ()
    assert (await shop.values())["noted/7"].value == [7, 7]
    applied = [entry.commit for entry in await shop.log() if not entry.computed][-1]
    undo = await shop.plan_revert(applied)
    await shop.enqueue(undo.updates, wait="computed")
    assert (await shop.values())["noted/7"].value == [1, 7]
    assert calls() == 0

    await say_again(deployment, shop)
    assert calls() == 0
    for name in ("one", "two", "three"):
        await edit(await shop.fork(name), 1_000)
    assert calls() == COUNT
    await deployment.client.workspace("other").create()
    await edit(deployment.client.workspace("other"), 1_000)
    assert calls() == COUNT


async def say_again(deployment: Deployment, change_set: WorkspaceHandle) -> None:
    """Send a function and inputs as they are."""
    ids = await change_set.ids()
    graph = await deployment.graph(ids)
    value = graph.values[graph.names["noted/7"]]
    func = graph.funcs[str(value.func_id)]
    names = {"name": func.name, "runtime": func.runtime, "code": func.code}
    again = [
        {"putFunc": {"funcId": func.id, **names}},
        {"setInputs": {"valueId": value.id, "inputs": value.inputs}},
    ]
    outcome = await change_set.enqueue(again, wait="computed")
    assert outcome.failed == ()


async def test_a_function_that_is_not_pure_is_found_and_named(
    deployment: Deployment, calls: Callable[[], int]
) -> None:
    """Watchers, the value's page and `dvu status` name it and both results; so after a restart.

    It takes less than 5,000 calls that are remembered.
    """
    daemon = await started(deployment)
    shop = await deployment.client.workspace("shop").create()
    ids = await shop.ids()
    found: dict[str, Any] = {}
    async with watching(deployment.streams, ids) as activities:
        for round_number in range(12):
            async with shop.edit() as g:
                source = g.source("value", round_number % 2)
                for n in range(500):
                    g.value(f"impure/{n}", python("impure"), value=source)
            async for activity in activities:
                if activity.kind is ActivityKind.FUNCTION_IMPURE:
                    found = dict(activity.details)
                if activity.kind is ActivityKind.DVU_FINISHED:
                    break
            if found:
                break
    assert found["function"] == "impure"
    assert found["before"] != found["now"]
    failures: list[dict[str, Any]] = []

    async def is_shown() -> bool:
        failures[:] = (await status_of(daemon))["rebasers"][0]["failures"]
        return bool(failures)

    await eventually(is_shown)
    (failure,) = failures
    assert (failure["what"], found["now"] in failure["reason"]) == ("function is not pure", True)
    assert found["value"] not in failure["reason"], "people know no ids"

    daemon.send(signal.SIGTERM)
    await daemon.ended()
    daemon = await started(deployment)
    where = f"workspace={ids.workspace_id}&changeSet={ids.change_set_id}&id={found['value']}"
    _, body = await get(f"{url_of(daemon)}change-set/value?{where}")
    noted_of_it = json.loads(body)["impure"]
    assert found.items() <= noted_of_it.items()
    assert noted_of_it["name"].startswith("impure/")

    async def is_named() -> bool:
        noted = (await Commands(deployment).read("dvu", "status", "shop"))["impure"]
        return any(found.items() <= each.items() for each in noted)

    await eventually(is_named)
