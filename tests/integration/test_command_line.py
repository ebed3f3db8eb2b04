"""Exit codes, messages and signals of the `rebaser` command."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_core.jetstream import StreamConfig
from tests.helpers import fork_server
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.nats_process import NatsServer

REBASER = Path(sys.executable).parent / "rebaser"


def rebaser(
    *arguments: str, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which is a fork."""
    return fork_server.rebaser(*arguments, environment=_environment(variables), timeout=timeout)


def installed_rebaser(
    *arguments: str, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command, interpreter and all: a second or two more than a fork."""
    return subprocess.run(
        [REBASER, *arguments],
        env=_environment(variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _environment(variables: dict[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    return inherited | variables


def test_bad_settings_are_named_before_any_connection() -> None:
    done = installed_rebaser("serve", REBASER_CONCURRENCY="none", REBASER_ACK_WAIT="-3")

    assert done.returncode == 2
    assert "REBASER_CONCURRENCY: " in done.stderr
    assert "REBASER_ACK_WAIT: " in done.stderr


def test_the_content_of_a_file_in_place_of_its_path_is_refused_and_not_shown() -> None:
    """Content of a file is longer than a name may be."""
    done = rebaser("settings", REBASER_NATS__CREDS=f"-----BEGIN NATS USER JWT-----{'x' * 500}")

    assert done.returncode == 2
    assert "REBASER_NATS__CREDS: " in done.stderr
    assert "JWT" not in done.stderr


def test_a_duration_that_is_none_is_refused_with_one_that_is() -> None:
    done = rebaser("serve", REBASER_QUIET_PERIOD="5min")

    assert done.returncode == 2
    assert "REBASER_QUIET_PERIOD: not a duration; PT5M is five minutes" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REBASER_CONCURENCY", "REBASER_CONCURRENCY"),
        ("REBASER_NATS__URI", "REBASER_NATS__URL"),
        ("REBASER_NATS_URL", "REBASER_NATS__URL"),
        ("REBASER_LIMITS__VALUES_BYTES", "REBASER_LIMITS__VALUE_BYTES"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(name: str, meant: str) -> None:
    done = rebaser("serve", **{name: "1"})

    assert done.returncode == 2
    assert f"no such setting: {name}; there is '{meant}'" in done.stderr


def test_variables_of_a_service_are_known_by_its_address() -> None:
    """A setting that is misspelt so that it looks like one of them stays unknown."""
    link = {"REBASER_OSP_SERVICE_HOST": "10.0.0.1", "REBASER_OSP_PORT": "tcp://10.0.0.1:1"}

    taken = rebaser("settings", **link)
    refused = rebaser("settings", REBASER_OSP_PORT="7380")
    kept = rebaser("settings", **link, REBASER_OPS_SERVICE_HOST="::", REBASER_OPS__PORT="7381")

    assert (taken.returncode, refused.returncode) == (0, 2)
    assert json.loads(kept.stdout)["ops"]["port"] == 7381


def test_settings_show_what_is_in_force_without_secrets() -> None:
    done = installed_rebaser("settings", REBASER_QUIET_PERIOD="PT30S", REBASER_NATS__TOKEN="hush")

    assert done.returncode == 0
    assert json.loads(done.stdout)["quiet_period"] == "PT30S"
    assert "hush" not in done.stdout


def test_an_unreachable_nats_is_reported_within_the_deadline() -> None:
    done = rebaser(
        "queue", REBASER_NATS__URL="nats://127.0.0.1:9", REBASER_NATS__CONNECT_TIMEOUT="3600"
    )

    assert done.returncode == 69
    assert "127.0.0.1:9" in done.stderr
    assert "REBASER_NATS__URL" in done.stderr


async def test_sigterm_ends_the_daemon_with_success(deployment: Deployment) -> None:
    daemon = await deployment.start()

    daemon.send(signal.SIGTERM)

    assert await daemon.ended() == 0


async def test_a_stream_that_is_configured_otherwise_is_reported_at_the_start(
    nats_server: NatsServer, deployment: Deployment
) -> None:
    stream = deployment.streams.requests_stream
    config = await deployment.js.stream_config(stream)
    await deployment.js.update_stream(config | StreamConfig(max_age=timedelta(hours=1)))

    daemon = await deployment.start()

    [drift] = daemon.said("configuration differs")
    assert (drift["field"], drift["actual"]) == ("max_age", 3600 * 10**9)


async def test_the_values_of_a_change_set_are_shown(
    nats_server: NatsServer, deployment: Deployment
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, values.define(20, 22))
    await deployment.at_rest()

    done = await asyncio.to_thread(
        rebaser,
        "values",
        *map(str, change_set),
        values.gross,
        "--json",
        REBASER_NATS__URL=nats_server.url,
        REBASER_STORE__ROOT=str(deployment.directory / "store"),
    )

    [shown] = json.loads(done.stdout)
    assert (shown["value"], shown["status"]) == (42, "ok")


def test_an_id_that_is_none_is_refused() -> None:
    done = rebaser("enqueue", "shop", "batch.json", "--request-id", "here")

    assert done.returncode == 2
    assert "'here' is not a ULID" in done.stderr
