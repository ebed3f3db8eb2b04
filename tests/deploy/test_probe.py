"""What a container's health check asks, against a daemon with each way to listen."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.deployment import SCALED, Daemon
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.security.identities import certificates

_PROXIES = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
"""Variables of a container that reaches the internet through a proxy, which is away here."""


async def health(directory: Path, variables: dict[str, str]) -> int:
    asked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "rebaser_server.ops.probe"],
        env=os.environ | _PROXIES | {f"REBASER_{name}": value for name, value in variables.items()},
        cwd=directory,
        capture_output=True,
        check=False,
    )
    return asked.returncode


@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
async def test_a_daemon_is_well_while_it_runs(tmp_path: Path, encrypted: bool) -> None:
    made = certificates(tmp_path / "pem")
    with running(NatsServer(tmp_path / "nats")) as server:
        variables = SCALED | {
            "NATS__URL": server.url,
            "OPS__HOST": "0.0.0.0",  # noqa: S104 - as in a container
            "OPS__PORT": "0",
            "OPS__TOKEN": "hush",
        }
        if encrypted:
            variables |= {"OPS__CERTIFICATE": str(made.server), "OPS__KEY": str(made.server)}
        daemon = Daemon("daemon", tmp_path, variables)
        try:
            await eventually(lambda: bool(daemon.said("ops endpoint started")), within=60)
            url = str(daemon.said("ops endpoint started")[0]["url"])
            variables["OPS__PORT"] = url.rstrip("/").rpartition(":")[2]

            assert await health(tmp_path, variables) == 0
        finally:
            daemon.kill()

        assert await health(tmp_path, variables) == 1
