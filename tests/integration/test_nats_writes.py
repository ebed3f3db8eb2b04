"""A NATS that cannot write is named by the log, the page, readiness, and commands that wait."""

import json
import re
import resource
from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_core.jetstream import StreamConfig
from tests.helpers.batches import new_id, put
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Daemon, Deployment, deployed, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.integration.test_nats_checks import OF_THE_ACCOUNT, fill
from tests.integration.test_ops_endpoint import get, started, status_of, url_of

KINDS = ("nats_cannot_write", "work_stopped", "requests_may_be_lost")


async def test_a_full_disk_of_nats_is_said_where_people_wait_and_look(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Once for each change of it; what was full stays silent until NATS is started again."""
    process, commands = deployment.nats.process, Commands(deployment)
    daemon = await started(deployment)
    await commands.tell("workspaces", "create", "shop")
    graph = tmp_path / "graph.yaml"
    graph.write_text("sources: {rate: 1}")
    await commands.tell("load", "shop", graph, "--yes")
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    waiting = await commands.give("values", "set", "shop", "rate", "2", "--wait", "--timeout", "15")

    assert waiting.code == 7
    assert "NATS cannot write: write " in waiting.err
    assert "make room on its disk, then restart the NATS server" in waiting.err
    await eventually(lambda: bool(daemon.said("nats cannot write")))
    status, said = await get(url_of(daemon) + "readyz")
    assert status == 503
    assert json.loads(said)["nats"].startswith("NATS cannot write: write ")
    assert await gauges_of(daemon) == {k: k == "nats_cannot_write" for k in KINDS}
    [rebaser] = (await status_of(daemon))["rebasers"]
    what, remedy = rebaser["natsProblem"]
    assert "(stream " in what
    assert remedy.startswith("make room on its disk")
    deployment.nats.stop()
    deployment.nats.start()

    await eventually(lambda: bool(daemon.said("nats writes again")), within=60)
    assert len(daemon.said("nats cannot write")) == 1
    await commands.tell("values", "set", "shop", "rate", "3", "--wait")


async def gauges_of(daemon: Daemon) -> dict[str, float]:
    """The kinds of problems of NATS that a daemon's metrics have, each with 1 while it lasts."""
    _, metrics = await get(url_of(daemon) + "metrics")
    found = re.findall(r'rebaser_nats_problem{kind="(\w+)"} (\S+)', metrics)
    return {kind: float(value) for kind, value in found}


@pytest.mark.parametrize("kind", ["work_stopped", "requests_may_be_lost"])
async def test_a_configuration_that_loses_messages_is_in_the_metrics_until_it_is_mended(
    deployment: Deployment, kind: str
) -> None:
    js, streams = deployment.js, deployment.streams
    stream = streams.commits_stream if kind == "work_stopped" else streams.requests_stream
    daemon = await started(deployment)
    sound = await js.stream_config(stream)
    before = await gauges_of(daemon)

    await js.update_stream(sound | StreamConfig(max_age=timedelta(days=9)))

    async def is_shown() -> bool:
        return (await gauges_of(daemon))[kind] == 1

    async def is_over() -> bool:
        return not any((await gauges_of(daemon)).values())

    await eventually(is_shown, within=60)
    assert sum((await gauges_of(daemon)).values()) == 1
    await js.update_stream(sound)
    await eventually(is_over, within=60)
    assert before == dict.fromkeys(KINDS, 0)


async def test_an_account_at_its_limit_is_in_the_metrics_though_nobody_works(
    tmp_path: Path,
) -> None:
    with running(NatsServer(tmp_path / "nats", OF_THE_ACCOUNT)) as nats:
        async with deployed(nats, tmp_path) as deployment:
            daemon = await started(deployment)

            async def fullness() -> float:
                _, metrics = await get(url_of(daemon) + "metrics")
                return float(re.findall(r"^rebaser_nats_fullness (\S+)", metrics, re.MULTILINE)[0])

            async def is_full() -> bool:
                return await fullness() > 0.9

            async def has_room() -> bool:
                return await fullness() < 0.5

            await eventually(has_room, within=60)
            await reach(deployment, "max_file")
            await eventually(is_full, within=60)
            await make_room(deployment, "max_file")
            await eventually(has_room, within=60)


FULL = {
    "max_file": "resource limits exceeded for account",
    "max_bytes": "maximum bytes exceeded",
}
"""What NATS says of a limit that is reached."""


async def reach(deployment: Deployment, limit: str) -> None:
    js, commits = deployment.js, deployment.streams.commits_stream
    if limit == "max_bytes":
        await js.update_stream(await js.stream_config(commits) | StreamConfig(max_bytes=1))
    else:
        await fill(js)


async def make_room(deployment: Deployment, limit: str) -> None:
    js, commits = deployment.js, deployment.streams.commits_stream
    if limit == "max_bytes":
        await js.update_stream(await js.stream_config(commits) | StreamConfig(max_bytes=-1))
    else:
        await js.delete_stream("OTHERS")


@pytest.mark.parametrize("limit", FULL)
async def test_a_limit_that_holds_work_up_is_named_where_people_wait_and_look(
    tmp_path: Path, limit: str
) -> None:
    """Of the account or of a stream: what is full, and what raises it. All is done then."""
    with running(NatsServer(tmp_path / "nats", OF_THE_ACCOUNT)) as nats:
        async with deployed(nats, tmp_path) as deployment:
            [change_set] = new_change_sets(1)
            for _ in range(2):
                await deployment.client.enqueue_updates(*change_set, [put(new_id(), 1)])
            await reach(deployment, limit)
            daemon = await started(deployment)

            await eventually(lambda: bool(daemon.said("nats cannot write")), within=60)
            [said] = daemon.said("nats cannot write")
            _, ready = await get(url_of(daemon) + "readyz")
            [rebaser] = (await status_of(daemon))["rebasers"]
            await make_room(deployment, limit)
            await deployment.at_rest()

    assert FULL[limit] in said["reason"]
    assert limit in said["remedy"]
    assert json.loads(ready)["nats"] == f"{said['reason']}; {said['remedy']}"
    assert rebaser["natsProblem"] == [said["reason"], said["remedy"]]
    assert daemon.said("work failed") == []
