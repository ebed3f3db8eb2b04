"""The Python that pages show for clients runs as it stands there."""

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rebaser_client
from rebaser_client import Draft, connect
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from tests.docs.conftest import ROOT, Up
from tests.helpers.batches import new_id, put

LOCAL = "nats://127.0.0.1:4222"


FILE = re.compile(r'```\w+ title="([\w.]+)"\n(.*?)```', re.DOTALL)
BLOCK = re.compile(r"```python client\n(.*?)```", re.DOTALL)


def pages() -> list[Any]:
    texts = {page.name: page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))}
    return [pytest.param(text, id=name) for name, text in texts.items() if BLOCK.search(text)]


@pytest.mark.parametrize("page", pages())
async def test_a_client_does_as_the_page_shows(
    up: Up, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block after the other: later ones go on from earlier ones, and find the page's files."""
    for name, content in FILE.findall(page):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)

    for block in BLOCK.findall(page):
        await _run(up, block)


async def _run(up: Up, block: str) -> None:
    net, tax, gross, add = (new_id() for _ in range(4))
    inputs = {"values": [net, tax]}
    updates = [
        {"putFunc": {"funcId": add, "name": "add", "runtime": "builtin", "code": "sum"}},
        {"putValue": {"valueId": net, "name": "net", "value": 100}},
        put(tax, 19),
        {"putValue": {"valueId": gross, "name": "gross", "funcId": add, "inputs": inputs}},
    ]
    known = {"workspace": WorkspaceId(), "change_set": ChangeSetId(), "updates": updates}
    async with connect(up.nats.url) as client:
        _, reply = await client.enqueue_updates_with_reply(*list(known.values())[:2], updates)
        commit = (await reply).status.success.commit
        known |= {"asyncio": asyncio, "connect": connect, "client": client}
        known |= {"RequestId": RequestId, "ChangeSetId": ChangeSetId, "cel": rebaser_client.cel}
        code = block.replace(LOCAL, up.nats.url).replace("at=1234", f"at={commit}")
        exec(f"async def shown():\n{textwrap.indent(code, '    ')}", known)  # noqa: S102 - ours
        await known["shown"]()


OF_SERVICES = {"KeyHandle", "KeyState", "ServiceHandle"}
"""Names whose examples take a worker: `test_handlers.py`."""

EXAMPLE = re.compile(r"^ *Example:\n((?: +.*\n|\n)+)", re.MULTILINE)


def examples() -> dict[str, str]:
    """The example in the docstring of each public name that is no error."""
    found = {}
    for name in rebaser_client.__all__:
        its = getattr(rebaser_client, name)
        if isinstance(its, type) and issubclass(its, Exception):
            continue
        example = EXAMPLE.search(f"{its.__doc__ or ''}\n")
        assert example, f"{name} has no example"
        found[name] = textwrap.dedent(example[1])
    return found


async def test_the_example_of_each_public_name_runs_as_it_stands(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, beside a shop with a branch, where both have a table."""
    (tmp_path / "products.csv").write_text("sku,net\nA1,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REBASER_NATS__URL", up.nats.url)
    known: dict[str, Any] = {each: getattr(rebaser_client, each) for each in rebaser_client.__all__}
    async with connect() as client:
        shop = await client.workspace("shop").create(exist_ok=True)
        async with shop.edit() as g:
            net = g.source("net", 100)
            g.value("gross", rebaser_client.builtin("sum"), net)
            g.table("orders", pa.table({"id": [1, 2], "net": [1.5, 2.5]}))
        winter = await shop.fork("winter")
        async with winter.edit() as g:
            g.source("net", 90)
        known |= {"client": client, "shop": shop, "winter": winter, "draft": Draft()}
        known["draft"].source("net", 110)
        known |= {"workspace": WorkspaceId(), "updates": [put(new_id(), 1)]}
        for name, example in examples().items():
            if name == "function":  # what it marks would have to be installed
                continue
            if name in OF_SERVICES:
                continue
            exec(f"async def shown():\n{textwrap.indent(example, '    ')}", known)  # noqa: S102 - ours
            await known["shown"]()
