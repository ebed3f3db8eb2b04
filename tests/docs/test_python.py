"""The Python that pages show for clients runs as it stands there."""

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import connect
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
        known |= {"RequestId": RequestId, "ChangeSetId": ChangeSetId}
        code = block.replace(LOCAL, up.nats.url).replace("at=1234", f"at={commit}")
        exec(f"async def shown():\n{textwrap.indent(code, '    ')}", known)  # noqa: S102 - ours
        await known["shown"]()
