"""The guide of handlers and the examples of services, run as they stand."""

import asyncio
import os
import re
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rebaser_client
from rebaser_client import connect
from tests.docs.conftest import javascript
from tests.docs.test_python import OF_SERVICES, examples
from tests.helpers.eventually import eventually
from tests.helpers.machine_requirements import program
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs" / "handlers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(NatsServer(tmp_path / "nats")) as server:
        yield server


@pytest.fixture
async def client(server: NatsServer, tmp_path: Path) -> AsyncIterator[rebaser_client.RebaserClient]:
    """A client beside a worker of the guide's `shop.py`, and of the example that counts."""
    (tmp_path / "shop.py").write_text(
        BLOCKS[0]
        + "\n\n@orders.handler\ndef remind(ctx: Context[Order]) -> None: ...\n"
        + "\n\n@orders.handler\ndef report(ctx: Context[Order]) -> None: ...\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}",
        "REBASER_NATS__URL": server.url,
        "REBASER_STORE__ROOT": str(tmp_path / "store"),
    }
    apps = "--app", "shop:orders", "--app", "counter:counters"
    command = sys.executable, "-m", "rebaser_server", "serve", *apps
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment)
    try:
        async with connect(server.url) as client:

            async def is_served() -> bool:
                return len(await client.workspaces.services()) == 2

            await eventually(is_served, within=120)
            yield client
    finally:
        worker.terminate()
        await worker.wait()


async def test_the_guide_runs_as_it_stands(
    client: rebaser_client.RebaserClient,
    server: NatsServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = BLOCKS[1].replace("nats://127.0.0.1:4222", server.url)
    exec(call.replace("asyncio.run(main())", ""), known := {})  # noqa: S102 - ours
    await known["main"]()
    assert capsys.readouterr().out == "1\n"

    order = client.service("orders").key("o-17")
    timers = next(block for block in BLOCKS if "order.timers()" in block)
    known = {"order": order, "UTC": UTC, "datetime": datetime, "timedelta": timedelta}
    exec(f"async def shown():\n{textwrap.indent(timers, '    ')}", known)  # noqa: S102 - ours
    await known["shown"]()
    assert [each.handler for each in await order.timers()] == ["remind", "remind"]

    shop: dict[str, Any] = {"__name__": "guide"}
    exec((tmp_path / "shop.py").read_text(), shop)  # noqa: S102 - ours
    test = next(block for block in BLOCKS if "orders.context(" in block)
    known = {**shop, "asyncio": asyncio}
    await asyncio.to_thread(exec, test, known)


async def test_examples_of_services_run_as_they_stand(client: rebaser_client.RebaserClient) -> None:
    order = client.service("orders").key("o-17")
    known: dict[str, Any] = {"client": client, "order": order}
    for name, example in examples().items():
        if name in OF_SERVICES:
            exec(f"async def shown():\n{textwrap.indent(example, '    ')}", known)  # noqa: S102
            await known["shown"]()


async def run(*command: str | Path) -> tuple[str, str]:
    """Output of the program, and its errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    return output.decode(), errors.decode()


CALLS = [
    (["add", '["cup"]'], "1"),
    (["add", '{"item": "saucer"}'], "2"),
    (["add", '["cup", "saucer"]'], "refused: "),
    (["ad", "[]"], "refused: orders has no handler ad"),
]
"""Words of a call, and what comes of it when they are made in this order."""


async def test_a_client_without_our_modules_calls_as_the_page_of_the_wire_says(
    client: rebaser_client.RebaserClient, server: NatsServer
) -> None:
    program = sys.executable, "-I", ROOT / "tests" / "wire" / "raw_call.py", server.url
    for words, result in CALLS:
        output, errors = await run(*program, "orders", "o-17", *words)
        assert result in output, errors
    timer = '{"name": "tomorrow", "after": 86400}'
    output, errors = await run(*program, "orders", "o-17", "remind", "[]", timer)
    assert '"timer": "tomorrow"' in output, errors

    order = client.service("orders").key("o-17")
    assert (await order.state()).value == {"items": ["cup", "saucer"], "paid": False}
    assert [each.name for each in await order.timers()] == ["tomorrow"]


async def test_a_client_in_javascript_calls(
    client: rebaser_client.RebaserClient,
    server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = javascript(tmp_path)
    monkeypatch.setenv("REBASER_NATS__URL", server.url)
    node = program("node", package="nodejs")
    code = (directory / "call.mjs").read_text().splitlines()

    for words, result in CALLS:
        output, errors = await run(node, directory / "call.mjs", "orders", "o-17", *words)
        assert result in output, errors

    order = client.service("orders").key("o-17")
    assert (await order.state()).value == {"items": ["cup", "saucer"], "paid": False}
    assert len([line for line in code if line.strip(" };") and line.strip()[0] != "/"]) <= 40


async def test_the_example_that_counts_counts(client: rebaser_client.RebaserClient) -> None:
    key = client.service("counters").key("clicks")

    assert [await key.call("add") for _ in range(3)] == [1, 2, 3]
    assert await key.call("add", 10) == 13
