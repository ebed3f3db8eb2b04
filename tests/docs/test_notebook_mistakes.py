"""Mistakes that people type in a notebook, and the answers that it shows."""

from typing import Final

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.conftest import Up

SOUND: Final = """\
from rebaser_client import builtin, cel, connect, sql, sync
client = sync.connect()
shop = client.workspace("mistakes").create(exist_ok=True)
with shop.edit() as g:
    g.source("net", 100)
    g.source("rate", 0.19)
    g.value("gross", builtin("sum"), "net", "rate")
winter = shop.fork("winter", exist_ok=True)
values = shop.values()
"""
MISTAKES: Final = {
    'values["grss"]': "there is 'gross'",
    'shop.values("grss")': "there is 'gross'",
    'shop.set_value("gross", 3)': "set its inputs instead: net, rate",
    'shop.set_value("nett", 3)': "there is 'net'",
    'with shop.edit() as g:\n    g.value("tax", builtin("sum"), "net", "rat")': "rat",
    'with shop.edit() as g:\n    g.value("tax", builtin("smu"), "net", "rate")': "smu",
    'with shop.edit() as g:\n    g.value("tax", cel("net *"), net="net")': "net *",
    'with shop.edit() as g:\n    g.value("tax", cel("net * rat"), net="net", rate="rate")': "rat",
    'with shop.edit() as g:\n    g.value("tax", sql("SELEC 1"), "net")': "inputs by name: net=net",
    'with shop.edit() as g:\n    g.source("tax", object())': "object is not JSON",
    'with shop.edit() as g:\n    g.source("", 1)': "a value's name is a text that is not empty",
    'with shop.edit() as g:\n    g.value("net", builtin("sum"), "gross")': "net -> gross -> net",
    'def put(g):\n    g.source("a", {1})\nwith shop.edit() as g:\n    put(g)': "line 2: ",
    'client.workspace("mistake").values()': "mistakes",
    'client.change_set("mistakes/wintr").values()': "winter",
    'client.change_set("a/b/c").values()': "there is no workspace 'a'",
    'client.workspace("mistakes").create()': "exist_ok=True uses it",
    'shop.fork("winter")': "exist_ok=True uses it",
    'shop.values("nothing/*")': "no value 'nothing/*'",
    "shop.values(at=10**9)": "mistakes: the log ends at commit",
    "shop.values(at=-1)": "at: Input should be greater than or equal to 0",
    'shop.enqueue([{"setValu": {}}])': "setValu",
    'shop.enqueue([{"setValue": {"valueId": "net", "value": 1}}])': "Input should be a ULID",
    'shop.table("net")': "'net'",
    'shop.why("grss")': "there is 'gross'",
    'shop.outcome("x")': "an id is a ULID",
    "shop.apply()": "only a branch can be told to apply",
    "shop.difference()": "mistakes is no branch",
    'winter.apply(reviewed="x")': "not the one that was reviewed",
    "shop.plan_revert(10**9)": "the log ends at commit",
    'sync.connect("nats://127.0.0.1:1", connect_timeout=1)': "127.0.0.1:1",
    'sync.connect("http://127.0.0.1")': "as nats://127.0.0.1:4222",
    'connect().workspace("mistakes")': "async with",
    'client.service("shop").key("a").call("buy")': "no worker ever served a service 'shop'",
    "client.close()\nshop.values()": "closed",
}


@pytest.mark.long
async def test_a_mistake_in_a_notebook_is_answered_in_ten_lines(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REBASER_NATS__URL", up.nats.url)
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in (SOUND, *MISTAKES)]

    await NotebookClient(
        book, timeout=300, kernel_name="python3", allow_errors=True
    ).async_execute()

    sound, *mistaken = (
        [output for output in cell.outputs if output.output_type == "error"] for cell in book.cells
    )
    assert sound == []
    for cell, errors in zip(MISTAKES, mistaken, strict=True):
        [error] = errors
        shown = "\n".join(error.traceback)
        assert MISTAKES[cell] in f"{shown}\n{error.evalue}", cell
        assert shown.count("\n") < 10, cell
