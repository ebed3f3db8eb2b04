"""An update that cannot be computed is given up in the end (D6), and never holds up requests."""

import asyncio
import os
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.compute import plan
from rebaser_server.processor import dvu
from rebaser_server.processor.run import process
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.values.columns import ValueStatus
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import SCALED, Daemon, Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.failing_dvu import DYING, GATHERING, PLANNING, failing, raising
from tests.helpers.graph_builder import install
from tests.helpers.services import services_of

SLOW = """
import time

def slow(value, seconds):
    time.sleep(seconds)
    return value + 1
"""


async def outcome_of(deployment: Deployment, change_set: ChangeSet, value_id: str) -> Any:
    value = (await deployment.graph(change_set)).values[value_id]
    return value.status, value.value if value.status is ValueStatus.OK else value.message


@pytest.mark.parametrize(
    ("step", "reason"),
    [(PLANNING, "MemoryError: no room for a plan"), (GATHERING, "ArrowInvalid: too large")],
)
async def test_a_dvu_whose_step_fails_is_given_up_after_its_attempts(
    deployment: Deployment, step: str, reason: str
) -> None:
    daemon = await deployment.start(command=failing(step), DVU_MAX_ATTEMPTS="2")
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define())
    await eventually(lambda: is_there(daemon.said("dvu failed")), within=120)

    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, [set_to(values.net, 5)]
    )
    await asyncio.wait_for(reply, 120)
    await deployment.at_rest()

    status, message = await outcome_of(deployment, change_set, values.gross)
    assert status is ValueStatus.FAILED
    assert message == f"not computed, 2 updates failed: {reason}"
    assert not daemon.said("work failed")


@pytest.mark.parametrize(
    ("error", "failures"),
    [(MemoryError("no room for a plan"), 1), (OSError(ENOSPC, "no room in the store"), 0)],
    ids=["counted", "not counted"],
)
async def test_a_failed_update_waits_before_it_is_tried_again_unless_it_is_asked_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int
) -> None:
    """D6: a request that comes meanwhile neither waits for it nor hastens it."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    services, client = services_of(deployment), deployment.client
    slots = SlotPool(deployment.streams, 1, Fairness())
    slot = slots.acquire(change_set)
    assert slot is not None
    monkeypatch.setattr(dvu, "retry_delay", lambda _: 1e6)
    monkeypatch.setattr(dvu, "STORE_DELAY", 1e6)

    async with recording(deployment) as recorder:

        def claims() -> set[RequestId]:
            lines = recorder.lines[change_set]
            return {line.control.claim.id for line in lines if line.control.claim}

        await client.enqueue_updates(*change_set, values.define(1, 2))
        with monkeypatch.context() as patched, capture_logs() as said:
            patched.setattr(plan, "plan", raising(error))
            running = asyncio.create_task(process(services, change_set, Shutdown(), slot))
            ends = {"dvu failed", "dvu postponed"}
            await eventually(lambda: any(line["event"] in ends for line in said), within=120)
            _, reply = await client.enqueue_updates_with_reply(*change_set, [set_to(values.net, 5)])
            await asyncio.wait_for(reply, 120)
        await eventually(lambda: len(recorder.settled(change_set)) == 2)
        assert len(claims()) == 1

        await client.change_set(*change_set).recompute()
        await asyncio.wait_for(running, 120)

        await eventually(lambda: len(claims()) == 2)
    assert max(line.control.dvu_failures for line in recorder.lines[change_set]) == failures
    assert await outcome_of(deployment, change_set, values.gross) == (ValueStatus.OK, 7)


async def test_a_dvu_that_kills_each_process_is_given_up(
    deployment: Deployment,
) -> None:
    """As one whose plan takes more memory than there is: twice as often as another would be."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define())
    deaths = 0

    async def given_up() -> bool:
        nonlocal daemon, deaths
        if daemon.process.poll() is not None:
            deaths += 1
            daemon = start(deployment, f"deadly-{deaths}")
        graph = await deployment.graph(change_set)
        value = graph.values.get(values.gross)
        return value is not None and value.status is ValueStatus.FAILED

    daemon = start(deployment, "deadly")
    await eventually(given_up, within=120)
    await deployment.at_rest()

    _, message = await outcome_of(deployment, change_set, values.gross)
    assert "the processes ended that computed it" in message
    assert deaths == 2


def start(deployment: Deployment, name: str) -> Daemon:
    """Without waiting for it: it may end before it is ready."""
    variables = SCALED | {
        "NATS__URL": deployment.nats.url,
        "STORE__ROOT": deployment.settings.store.root,
        "SPARK__STATE_DIRECTORY": str(deployment.directory / "spark"),
        "DVU_MAX_ATTEMPTS": "1",
    }
    daemon = Daemon(name, deployment.directory, variables, failing(DYING))
    deployment.daemons.append(daemon)
    return daemon


async def is_there(what: object) -> bool:
    return bool(what)


class Chain:
    """Each value is the one before it and 1, after so many seconds."""

    def __init__(self, seconds: list[float]) -> None:
        self.values = [new_id() for _ in seconds]
        func, start, times = new_id(), new_id(), [new_id() for _ in seconds]
        self.batch: list[dict[str, Any]] = [
            {"putFunc": {"funcId": func, "name": "slow", "runtime": "python", "code": "slow-step"}},
            put(start, 0),
        ]
        for value, before, time, each in zip(
            self.values, [start, *self.values], times, seconds, strict=False
        ):
            inputs = {"value": before, "seconds": time}
            self.batch += [
                put(time, each),
                {"putValue": {"valueId": value, "funcId": func, "inputs": inputs}},
            ]


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "functions"
    directory.mkdir()
    install(directory, "slow_functions", SLOW, {"slow-step": "slow_functions:slow"})
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)


@pytest.mark.long
@pytest.mark.usefixtures("slow")
async def test_a_dvu_that_makes_progress_may_exceed_its_deadline(deployment: Deployment) -> None:
    daemon = await deployment.start(DVU_DEADLINE="8")
    [change_set], [another], chain = new_change_sets(1), new_change_sets(1), Chain([0.2] * 60)
    await deployment.client.enqueue_updates(*another, ExampleGraph().define())
    await deployment.at_rest()  # the evaluator has started
    await deployment.client.enqueue_updates(*change_set, chain.batch)
    await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert [graph.values[value].value for value in chain.values] == list(range(1, 61))
    assert not daemon.said("dvu failed")
