"""An evaluator that ends costs the attempt of an update, never the updates of its change set."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import children, install

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

SLOW = "x.map(a, x.exists(b, b == -1))"


@pytest.fixture
async def daemon(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    functions = tmp_path / "functions"
    functions.mkdir()
    install(functions, "rebaser_crashing", CRASHING, {"crash": "rebaser_crashing:crash"})
    monkeypatch.setenv("PYTHONPATH", str(functions), prepend=os.pathsep)
    return await deployment.start_with_lease(QUIET_PERIOD="60")


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
    await eventually(lambda: is_computed(1), within=120)
    marker.touch()
    await deployment.client.enqueue_updates(*change_set, [set_to(source, 2)])
    await eventually(lambda: is_computed(2), within=120)
    await deployment.client.enqueue_updates(*change_set, [set_to(source, 3)])
    await eventually(lambda: is_computed(3), within=120)
    assert [line["attempts"] for line in daemon.said("dvu postponed")] == [1, 1]
    assert daemon.said("dvu failed") == []
    assert len(daemon.said("taken")) == 1, "all in one run"
    assert daemon.said("work failed") == []


async def test_values_that_end_what_computes_them_are_found_at_the_second_attempt(
    deployment: Deployment, daemon: Daemon
) -> None:
    """D6: as the kernel ends it, say, each time that they take all memory.

    At the first it is not known which values they were: expressions are computed by the evaluator
    itself, and at the second by children of it.
    """
    [change_set] = new_change_sets(1)
    source, expression = new_id(), new_id()
    function = {"funcId": expression, "name": "e", "runtime": "cel", "code": SLOW}
    values = [
        {"putValue": {"valueId": new_id(), "funcId": expression, "inputs": {"x": source}}}
        for _ in range(2_000)
    ]
    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, [{"putFunc": function}, put(source, list(range(95))), *values]
    )
    await reply

    async def is_postponed() -> bool:
        kill(evaluators(daemon))
        return bool(daemon.said("dvu postponed"))

    def is_found() -> bool:
        kill([child for each in evaluators(daemon) for child in children(each)])
        return bool(daemon.said("dvu failed"))

    async def is_computed() -> bool:
        found = (await deployment.graph(change_set)).values.values()
        # One whose children were ended twice has failed.
        return {value.status.value for value in found} <= {"ok", "failed"}

    await eventually(is_postponed, within=120)
    await eventually(is_found, within=120)
    assert "values ended the evaluator: killed by SIGKILL" in daemon.said("dvu failed")[0]["reason"]
    await eventually(is_computed, within=300)


def evaluators(daemon: Daemon) -> list[int]:
    return [
        evaluator
        for template in children(daemon.process.pid)
        if b"local_worker" in command_line(template)
        for evaluator in children(template)
    ]


def command_line(pid: int) -> bytes:
    with suppress(OSError):  # it ends meanwhile
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
