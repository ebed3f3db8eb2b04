"""An evaluator that ends costs the attempt of an update, never the updates of its change set."""

import os
from pathlib import Path

import pytest

from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install

CRASHING = '''"""For tests."""

import os
import signal


def crash(*, value, once_for):
    if os.path.exists(once_for):
        os.remove(once_for)
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return value
'''

ENDLESS = "x.map(a, x.map(b, x.exists(c, c == -1)))"


@pytest.fixture
async def daemon(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    functions = tmp_path / "functions"
    functions.mkdir()
    install(functions, "rebaser_crashing", CRASHING, {"crash": "rebaser_crashing:crash"})
    monkeypatch.setenv("PYTHONPATH", str(functions), prepend=os.pathsep)
    return await deployment.start(QUIET_PERIOD="60")


async def test_updates_that_break_down_in_one_run_are_repeated_until_one_computes_all(
    deployment: Deployment, daemon: Daemon, tmp_path: Path
) -> None:
    """D6: the wait for another attempt is in the task in which an update has just broken down."""
    marker = tmp_path / "broken"
    marker.touch()
    [change_set] = new_change_sets(1)
    source, path, crash, value = (new_id() for _ in range(4))
    inputs = {"value": source, "once_for": path}

    async def is_computed(expected: int) -> bool:
        found = (await deployment.graph(change_set)).values[value]
        return bool(found.value == expected) and found.status.value != "pending"

    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set,
        [
            {"putFunc": {"funcId": crash, "name": "c", "runtime": "python", "code": "crash"}},
            put(source, 1),
            put(path, str(marker)),
            {"putValue": {"valueId": value, "funcId": crash, "inputs": inputs}},
        ],
    )
    await reply
    await eventually(lambda: is_computed(1), within=60)
    marker.touch()
    await deployment.client.enqueue_updates(*change_set, [set_to(source, 2)])
    await eventually(lambda: is_computed(2), within=60)
    await deployment.client.enqueue_updates(*change_set, [set_to(source, 3)])
    await eventually(lambda: is_computed(3), within=60)
    assert [line["attempts"] for line in daemon.said("dvu postponed")] == [1, 1]
    assert daemon.said("dvu failed") == []
    assert len(daemon.said("taken")) == 1, "all in one run"
    assert daemon.said("work failed") == []


@pytest.mark.long
async def test_an_expression_that_ends_its_evaluator_fails_its_value_at_the_second_attempt(
    deployment: Deployment,
) -> None:
    """D6: at the first it is not known which value it was. The kernel's timer ends it after 31 s."""
    daemon = await deployment.start(QUIET_PERIOD="60", FUNCTIONS__TIMEOUT="1")
    [change_set] = new_change_sets(1)
    source, endless, value = (new_id() for _ in range(3))
    function = {"funcId": endless, "name": "e", "runtime": "cel", "code": ENDLESS}
    await deployment.client.enqueue_updates(
        *change_set,
        [
            {"putFunc": function},
            put(source, list(range(2000))),
            {"putValue": {"valueId": value, "funcId": endless, "inputs": {"x": source}}},
        ],
    )

    async def has_failed() -> bool:
        return (await deployment.graph(change_set)).values[value].status.value == "failed"

    await eventually(has_failed, within=180)
    assert [line["attempts"] for line in daemon.said("dvu postponed")] == [1]
    assert daemon.said("dvu failed") == []
