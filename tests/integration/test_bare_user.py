"""Rebaser as a service manager may start it: a user without a name, a home or a terminal."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_client import python
from rebaser_client.client import connect
from tests.helpers.graph_builder import install
from tests.helpers.machine_requirements import lacking, program
from tests.integration.test_command_line import REBASER

USER = 12345
"""A user id without an entry in passwd."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of that user's own; where pytest's lie, only root may write."""
    if os.getuid():
        lacking("the rights to become another user", "run the tests as root")
    directory = Path(tempfile.mkdtemp())
    install(directory, "doubling", "def double(n): return 2 * n\n", {"double": "doubling:double"})
    for each in (directory, *directory.rglob("*")):
        os.chown(each, USER, USER)
    yield directory
    shutil.rmtree(directory)


async def bare(place: Path, *arguments: str, **env: str) -> Process:
    """The command by that user, who may read what root may, since Python may lie in root's home."""
    setpriv = program("setpriv", package="util-linux")
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    user = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *may_read)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return await asyncio.create_subprocess_exec(
        *("sh", "-c", 'umask 077; ulimit -n 256; exec "$@"', "sh"),
        *(setpriv, *user, REBASER, *arguments),
        cwd=place,
        stdin=DEVNULL,
        stdout=PIPE,
        start_new_session=True,
        env={"PATH": path, "LC_ALL": "C", "PYTHONPATH": str(place)} | env,
    )


async def ended(process: Process) -> str:
    async with asyncio.timeout(180):
        output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode()


@pytest.mark.long
async def test_a_user_without_name_home_and_terminal_computes(place: Path) -> None:
    assert (await ended(await bare(place, "--version"))).startswith("rebaser ")
    assert "doctor" in await ended(await bare(place, "--help"))
    own = {"REBASER_OPS__PORT": "0", "REBASER_SPARK__WARM": "false"}
    up = await bare(place, "up", "--data", str(place / "data"), "--port", "-1", "--json", **own)
    assert up.stdout is not None
    try:
        async with asyncio.timeout(240):
            nats = json.loads(await up.stdout.readline())["nats"]
            async with connect(nats) as client:
                shop = await client.workspace("shop").create()
                async with shop.edit() as g:
                    g.value("twice", python("double"), n=g.source("once", 21))
                assert g.failed == ()
                assert (await shop.values())["twice"].value == 42
        await ended(await bare(place, "doctor", REBASER_NATS__URL=nats))
    finally:
        up.terminate()
    await ended(up)
