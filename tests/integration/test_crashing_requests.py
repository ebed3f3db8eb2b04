"""A request that kills its process in the middle of a run of others is blamed alone (L1)."""

import asyncio
import os
import subprocess
import sys

import pytest
from ulid import ULID

from tests.helpers.deployment import SCALED, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT

DEADLY = """
import os, signal, sys
from rebaser_server.graph_application.content import GraphContent
real = GraphContent.apply_now
def deadly(content, sequence, batch, *rest):
    if "deadly" in repr(batch.updates):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(content, sequence, batch, *rest)
GraphContent.apply_now = deadly
sys.argv = ["rebaser", "serve"]
from rebaser_server.__main__ import run
run()
"""


@pytest.mark.long
async def test_requests_around_a_crashing_one_are_applied(deployment: Deployment) -> None:
    """Lines are sent together, so those before it may be undone by its death: once."""
    [change_set] = new_change_sets(1)
    value = str(ULID())
    for number in range(60):
        what = "deadly" if number == 40 else number
        update = {"putValue": {"valueId": value, "value": what}}
        await deployment.client.enqueue_updates(*change_set, [update])
    variables = SCALED | {
        "NATS__URL": deployment.nats.url,
        "STORE__ROOT": deployment.settings.store.root,
        "SPARK__STATE_DIRECTORY": str(deployment.directory / "spark"),
        "MAX_ATTEMPTS": "1",
    }
    environment = os.environ | {f"REBASER_{name}": text for name, text in variables.items()}
    deaths = 0

    async def handled_without_dying() -> bool:
        nonlocal deaths
        if process.poll() is not None:
            deaths += 1
            start()
        graph = await deployment.graph(change_set)
        return value in graph.values and graph.values[value].value == 59

    def start() -> None:
        nonlocal process
        process = subprocess.Popen(
            [sys.executable, "-c", DEADLY], env=environment | {"PYTHONPATH": str(ROOT)}
        )

    process: subprocess.Popen[bytes]
    start()
    try:
        await eventually(handled_without_dying, within=120)
        await deployment.at_rest()
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)

    [letter] = await deployment.dead_letters(change_set)
    assert b"deadly" in letter.payload
    assert deaths <= 3, "two at the request, and the first, of which nobody knew where it was"
