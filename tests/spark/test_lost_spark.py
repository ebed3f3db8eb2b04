"""A daemon whose Spark dies, wherever it runs: each update ends right, and no value is blamed."""

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from rebaser_server.runtime.ports import free_port
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Daemon, Deployment, deployed, new_change_sets
from tests.helpers.graph_builder import children, eventually, install, pids_in
from tests.helpers.nats_process import NatsServer, running
from tests.spark.servers import (
    Cluster,
    cluster,
    connect_server,
    connect_url,
    driver_settings,
    listening,
)

pytestmark = pytest.mark.spark

SLOW = """
import os, time

def records(value, path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    if value < 0:
        os.abort()
    time.sleep(2)
    return value + 1
"""


class SlowValue:
    """A value by a function that takes two seconds and says that it has begun."""

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self._deployment = deployment
        self._path = directory / "begun"
        self._source, self._value, self._place = new_id(), new_id(), new_id()
        [self._change_set] = new_change_sets(1)
        self._seen = 0

    async def define(self) -> None:
        func, inputs = new_id(), {"value": self._source, "path": self._place}
        function = {"funcId": func, "name": "records", "runtime": "python", "code": "records"}
        await self._deployment.client.enqueue_updates(
            *self._change_set,
            [
                {"putFunc": function},
                put(self._source, 0),
                put(self._place, str(self._path)),
                {"putValue": {"valueId": self._value, "funcId": func, "inputs": inputs}},
            ],
        )

    async def set_to(self, number: int) -> None:
        await self._deployment.client.enqueue_updates(
            *self._change_set, [set_to(self._source, number)]
        )

    async def begun(self) -> None:
        """Return once the function runs again."""
        await eventually(lambda: len(pids_in(self._path)) > self._seen, within=300)
        self.forget()

    def forget(self) -> None:
        """Forget that it ran."""
        self._seen = len(pids_in(self._path))

    async def outcome(self) -> tuple[str, Any]:
        """What became of it, once there is nothing left to do."""
        await self._deployment.at_rest(within=300)
        return await self.now()

    async def now(self) -> tuple[str, Any]:
        value = (await self._deployment.graph(self._change_set)).values[self._value]
        return value.status.value, value.value if value.message is None else value.message


@pytest.fixture
async def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    functions = tmp_path / "functions"
    functions.mkdir()
    install(functions, "slow_function", SLOW, {"records": "slow_function:records"})
    monkeypatch.setenv("PYTHONPATH", str(functions), prepend=os.pathsep)
    with running(NatsServer(tmp_path / "nats")) as server:
        async with deployed(server, tmp_path) as made:
            yield made


IMPATIENT = """
from rebaser_server.__main__ import run
from rebaser_server.compute.spark import jvm

jvm._EXECUTORS_WITHIN = 20.0
run()
"""
"""A daemon that waits for an executor for 20 seconds, not for a minute."""


async def start(deployment: Deployment, **variables: str) -> Daemon:
    """A daemon with its updates on Spark, which would give one up after its first failure."""
    variables = {"SPARK__MIN_AFFECTED": "0", "DVU_MAX_ATTEMPTS": "1"} | variables
    return await deployment.start(command=(sys.executable, "-c", IMPATIENT), **variables)


async def on_cluster(deployment: Deployment, spark: Cluster, directory: Path) -> Daemon:
    return await start(
        deployment,
        SPARK__MASTER=spark.url,
        SPARK__CONF=json.dumps(driver_settings()),
        SPARK__STATE_DIRECTORY=str(directory),
    )


def kill_driver(daemon: Daemon) -> None:
    [pid] = [
        pid
        for pid in children(daemon.process.pid)
        if b"/java\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="rb") as directory:
        yield Path(directory)


async def test_a_spark_that_does_not_start_fails_no_value(
    deployment: Deployment, tmp_path: Path
) -> None:
    """It is tried again and again; log, page and metrics say why, and what to do.

    A probe without a token does not learn what Spark said.
    """
    own = {
        "SPARK__CONF": '{"spark.driver.memory": "much"}',
        "SPARK__WARM": "true",
        "OPS__TOKEN": "s3cret",
    }
    daemon = await start(deployment, **own)
    value = SlowValue(deployment, tmp_path)
    await value.define()
    await eventually(lambda: len(daemon.said("dvu postponed")) > 2)

    status, _ = await value.now()
    code, ready = await get(daemon, "readyz", "s3cret")
    probed, said = await get(daemon, "readyz")

    assert status == "pending"
    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    reason = json.loads(ready)["spark"]
    assert "Spark did not start: Invalid maximum heap size: -Xmxmuch" in reason
    assert "set spark.driver.memory in REBASER_SPARK__CONF" in reason
    assert probed == code
    assert re.fullmatch(r"away since [\d:.TZ+-]+", json.loads(said)["spark"]), said
    assert "rebaser_spark_up 0.0" in (await get(daemon, "metrics", "s3cret"))[1]


async def get(daemon: Daemon, path: str, token: str = "") -> tuple[int, str]:
    """What its ops endpoint answers."""
    [started] = daemon.said("ops endpoint started")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = started["url"] + path
    async with ClientSession(headers=headers) as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "cluster"])
async def test_a_driver_may_die_again_and_again(
    deployment: Deployment, tmp_path: Path, short: Path, master: str
) -> None:
    """Twice during one update, and between two."""
    async with AsyncExitStack() as stack:
        if master == "cluster":
            spark = stack.enter_context(cluster(tmp_path, free_port(), workers=1))
            daemon = await on_cluster(deployment, spark, short)
        else:
            daemon = await start(
                deployment, SPARK__MASTER=master, SPARK__STATE_DIRECTORY=str(short)
            )
        value = SlowValue(deployment, tmp_path)
        await value.define()
        for _ in range(2):
            await value.begun()
            kill_driver(daemon)
        assert await value.outcome() == ("ok", 1)

        kill_driver(daemon)
        await value.set_to(1)

        assert await value.outcome() == ("ok", 2)


VICTIMS = (("executor",), ("worker",), ("driver", "master"))
MORE_VICTIMS = (("master",), ("driver", "worker"), ("master", "worker"), ("master", "executor"))


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(VICTIMS, id="few", marks=pytest.mark.long),
        pytest.param(MORE_VICTIMS, id="more", marks=pytest.mark.slow),
    ],
)
async def test_whatever_of_a_cluster_dies_its_updates_end_right(
    deployment: Deployment, tmp_path: Path, short: Path, killed: tuple[tuple[str, ...], ...]
) -> None:
    """One at a time and two at once; master and worker are started again, as they would be."""
    with cluster(tmp_path, free_port(), workers=1) as spark:
        daemon = await on_cluster(deployment, spark, short)
        value = SlowValue(deployment, tmp_path)
        await value.define()
        for number, victims in enumerate(killed):
            await value.set_to(number)
            await value.begun()
            if "driver" in victims:
                kill_driver(daemon)
            if "executor" in victims:
                spark.kill_executors()
            ended = [jvm for name, jvm in spark.parts() if name in victims]
            for jvm in ended:
                jvm.kill()
            for jvm in ended:
                jvm.start()

            assert await value.outcome() == ("ok", number + 1), victims
            value.forget()


@pytest.mark.long
async def test_updates_wait_for_a_connect_server_that_dies(
    deployment: Deployment, tmp_path: Path
) -> None:
    """During an update, and between two; also once a value has ended its evaluator there."""
    port = free_port()
    with connect_server(tmp_path, port) as server:
        await listening(port)
        await start(deployment, SPARK__MASTER=connect_url(port))
        value = SlowValue(deployment, tmp_path)
        await value.define()
        await value.begun()
        server.kill()
        server.start()
        assert await value.outcome() == ("ok", 1)

        await value.set_to(-1)
        status, message = await value.outcome()
        assert status == "failed"
        assert message == "computing it ended the evaluator: killed by SIGABRT"

        server.kill()
        await value.set_to(1)
        server.start()

        assert await value.outcome() == ("ok", 2)
