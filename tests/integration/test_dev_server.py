"""`rebaser up`, stopped and started again."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from rebaser_client.client import RebaserClient, connect
from rebaser_core.jetstream import ApiError
from rebaser_core.streams import Streams
from rebaser_server.cluster.nats_writes import refusal
from rebaser_server.service.dev_server import ANY_PORT, MOST_RESTARTS, NatsNotStarted, nats_server
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually
from tests.integration.test_command_line import REBASER
from tests.integration.test_full_disk import full, mounted
from tests.integration.test_ops_endpoint import get


@asynccontextmanager
async def upped(directory: Path) -> AsyncIterator[RebaserClient]:
    """A client of an `up` with its data there; at the end it is stopped as by Ctrl-C."""
    not_ours = ("REBASER_", "_RJEM_")  # Delta, where it is loaded, sets the latter
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
    own = {"REBASER_SPARK__WARM": "false", "REBASER_OPS__PORT": "0"}
    with (directory / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(REBASER, "up", "--data", directory, "--port", "-1", "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=inherited | own,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(180):
            told = json.loads(await process.stdout.readline())
        assert (told["data"], told["page"][:17]) == (str(directory), "http://127.0.0.1:")
        assert told["sync"] == "always"
        async with connect(told["nats"]) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def test_unfinished_work_resumes_when_the_dev_server_restarts(
    tmp_path: Path,
) -> None:
    """NATS forgets over its own stop that a task was given back, and waits for the lease."""
    [change_set], value = new_change_sets(1), new_id()
    async with upped(tmp_path) as client, asyncio.timeout(180):
        _, reply = await client.enqueue_updates_with_reply(*change_set, [put(value, 1)])
        await reply
    async with upped(tmp_path) as client, asyncio.timeout(100):  # the lease is of 120 s
        _, reply = await client.enqueue_updates_with_reply(*change_set, [set_to(value, 2)])
        assert (await reply).status.success.commit > 0


async def test_what_did_not_fit_on_a_full_disk_is_taken_once_there_is_room(
    tmp_path: Path,
) -> None:
    """NATS itself takes nothing more for a stream that it could not write, until a restart."""
    [change_set], value = new_change_sets(1), new_id()
    with mounted(tmp_path / "disk", 64 << 20) as disk:
        (disk / "data").mkdir()
        async with upped(disk / "data") as client, asyncio.timeout(180):
            _, reply = await client.enqueue_updates_with_reply(*change_set, [put(value, 1)])
            first = (await reply).status.success.commit
            with full(disk):
                sending = client.enqueue_updates_with_reply(
                    *change_set, [set_to(value, "x" * 9_999)]
                )
                waiting = asyncio.create_task(sending)
                await eventually(partial(_is_refused, client._streams), within=90)
            _, reply = await waiting
            assert (await reply).status.success.commit > first


async def _is_refused(streams: Streams) -> bool:
    return isinstance(await refusal(streams, streams.requests_stream), ApiError)


async def test_commands_of_its_folder_find_it(tmp_path: Path) -> None:
    """Its port does not matter; in another folder, commands ask the NATS of the settings."""
    data, elsewhere = tmp_path / "rebaser-data", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    own = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    address = re.compile(r'"url": ?"(nats://[^"]+)"')
    async with upped(data) as client:
        await client.workspace("shop").create()
        listed = await said("workspaces", "list", cwd=tmp_path, env=own)
        here = await said("settings", cwd=tmp_path, env=own)
        there = await said("settings", cwd=elsewhere, env=own)
        given = await said("settings", cwd=tmp_path, env=own | {"REBASER_NATS__URL": "nats://a:1"})

    assert "shop" in listed
    found = [address.search(each) for each in (here, there, given)]
    urls = [each[1] for each in found if each]
    assert urls[1:] == ["nats://127.0.0.1:4222", "nats://a:1"]
    assert urls[0] != urls[1]


@pytest.mark.parametrize("data", ["rebaser-data", "elsewhere"])
async def test_it_says_where_commands_find_it(tmp_path: Path, data: str) -> None:
    own = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    process = await asyncio.create_subprocess_exec(
        *(REBASER, "up", "--data", data, "--port", "-1"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
        env=own | {"REBASER_OPS__PORT": "0", "REBASER_SPARK__WARM": "false"},
    )
    assert process.stderr is not None
    line = ""
    async with asyncio.timeout(180):
        while "In another terminal" not in line:
            line = (await process.stderr.readline()).decode()
            assert line, "it has ended"
        listed = await asyncio.create_subprocess_exec(
            *(REBASER, "workspaces", "list"), cwd=tmp_path, env=own
        )
        code = await listed.wait()
        process.terminate()
        await process.communicate()

    assert ("in this folder" in line) == (code == 0)
    assert "`export REBASER_NATS__URL=nats://127.0.0.1:" in line


async def said(*command: str, cwd: Path, env: dict[str, str]) -> str:
    """What a command prints there."""
    process = await asyncio.create_subprocess_exec(
        REBASER, *command, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@pytest.mark.long
@pytest.mark.spark
async def test_it_says_when_spark_is_ready(tmp_path: Path) -> None:
    """One line says so, and the page."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    process = await asyncio.create_subprocess_exec(
        *(REBASER, "up", "--data", tmp_path, "--port", "-1"),
        stderr=asyncio.subprocess.PIPE,
        env=own | {"REBASER_OPS__PORT": "0"},
    )
    assert process.stderr is not None
    said = list[str]()
    try:
        async with asyncio.timeout(400):
            while "Spark is ready.\n" not in said:
                said.append((await process.stderr.readline()).decode())
                assert said[-1], said
        [url] = re.findall(r"page +(http\S+)", "".join(said))
        _, status = await get(url + "status")
    finally:
        process.terminate()
        await process.wait()

    assert said.count("Spark is ready.\n") == 1
    assert [each["sparkReady"] for each in json.loads(status)["rebasers"]] == [True]


async def test_it_sets_up_its_process_as_the_daemon_does(tmp_path: Path) -> None:
    """Children have what was set before the allocators of tables were loaded."""
    async with upped(tmp_path):
        [ports] = (tmp_path / "nats").glob("nats-server_*.ports")
        environment = Path(f"/proc/{ports.stem.rpartition('_')[2]}/environ")
        given = await asyncio.to_thread(environment.read_text)

    assert "_RJEM_MALLOC_CONF=background_thread:false" in given


async def test_a_nats_that_died_is_started_again_with_a_line_that_says_so(tmp_path: Path) -> None:
    """Clients find it at the same address."""
    [change_set], value = new_change_sets(1), new_id()
    async with upped(tmp_path) as client, asyncio.timeout(180):
        await client.change_set(*change_set).enqueue([put(value, 1)])
        [ports] = (tmp_path / "nats").glob("nats-server_*.ports")
        os.kill(int(ports.stem.rpartition("_")[2]), signal.SIGKILL)
        await client.change_set(*change_set).enqueue([set_to(value, 2)])

    said = (tmp_path / "up.log").read_text()
    assert "nats ended, starting it again" in said
    assert "signal 9" in said
    assert "nats is up again" in said


def kill_new(directory: Path, killed: set[int]) -> set[int]:
    """Kill each NATS server that listens there and is not among the killed."""
    for each in directory.glob("nats-server_*.ports"):
        pid = int(each.stem.rpartition("_")[2])
        if pid not in killed and each.read_text():
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return killed


async def test_a_nats_that_cannot_stay_up_ends_the_server_and_names_the_cause(
    tmp_path: Path,
) -> None:
    async def serve() -> None:
        async with nats_server(tmp_path, ANY_PORT):
            killed = set[int]()
            await eventually(lambda: len(kill_new(tmp_path, killed)) > MOST_RESTARTS, within=120)
            await asyncio.Event().wait()

    with pytest.raises(NatsNotStarted, match=r"signal 9\).*started again 3 times, in vain"):
        await serve()


async def test_a_second_server_on_the_same_data_is_refused_and_names_the_first(
    tmp_path: Path,
) -> None:
    """Two NATS servers in one directory overwrite each other's commits."""
    async with upped(tmp_path) as client, asyncio.timeout(180):
        process = await asyncio.create_subprocess_exec(
            *(REBASER, "up", "--data", tmp_path, "--port", "-1"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        [change_set], value = new_change_sets(1), new_id()
        _, reply = await client.enqueue_updates_with_reply(*change_set, [put(value, 1)])
        await reply

    assert process.returncode == 1
    assert f"{tmp_path} is in use by another `rebaser up` (pid " in said.decode()
    assert "NATS at nats://127.0.0.1:" in said.decode()
