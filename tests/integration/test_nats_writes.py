"""A NATS that cannot write is named by the log, the page, readiness, and commands that wait."""

import json
import resource
from pathlib import Path

from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.integration.test_ops_endpoint import get, started, status_of, url_of


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

    waiting = await commands.give("values", "set", "shop", "rate", "2", "--wait", "--timeout", "9")

    assert waiting.code == 7
    assert "NATS cannot write: write " in waiting.err
    assert "make room on its disk, then restart the NATS server" in waiting.err
    await eventually(lambda: bool(daemon.said("nats cannot write")))
    status, said = await get(url_of(daemon) + "readyz")
    assert status == 503
    assert json.loads(said)["nats"].startswith("NATS cannot write: write ")
    [rebaser] = (await status_of(daemon))["rebasers"]
    what, remedy = rebaser["natsProblem"]
    assert "(stream " in what
    assert remedy.startswith("make room on its disk")
    deployment.nats.stop()
    deployment.nats.start()

    await eventually(lambda: bool(daemon.said("nats writes again")), within=30)
    assert len(daemon.said("nats cannot write")) == 1
    await commands.tell("values", "set", "shop", "rate", "3", "--wait")
