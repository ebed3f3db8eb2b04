"""A typed client of a service: what is printed passes mypy, and calls a real worker."""

import asyncio
import importlib.util
import subprocess
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from rebaser_server.handlers import Context, Service
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.helpers.workers import Working


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    name: str
    size: Size = Size.SMALL
    parts: list["Item"] = []


@dataclass
class Basket:
    items: list[Item] = field(default_factory=list)
    notes: dict[str, float | None] = field(default_factory=dict)


def baskets() -> Service:
    """A service with arguments of all kinds, and names that Python or the client has itself."""
    service = Service("my baskets")
    service.state(Basket)

    @service.handler
    def add(ctx: Context[Basket], item: Item, count: int = 1) -> Basket:
        "Adds '''it''' \"\"\"often\"\"\"."
        ctx.state.items += [item] * count
        return ctx.state

    @service.handler
    def note(ctx: Context[Basket], /, *words: str) -> tuple[int, str] | None:
        return None if not words else (len(words), words[0])

    @service.handler
    def wait(ctx: Context[Basket], timeout: float) -> float:
        return timeout

    @service.handler
    def anything(ctx: Context[Basket], what: Any) -> Any:
        return what

    for name in ("class", "list"):
        service.handler(name=name)(anything)
    return service


USE = """
from rebaser_client import RebaserClient
from printed import MyBasketsKey

async def use(client: RebaserClient) -> None:
    basket = MyBasketsKey(client, "b-1")
    found = await basket.add({"name": "cup", "size": "large"}, count=2)
    print(found["items"][0]["name"].upper(), await basket.wait(1.5) + 1, await basket.note("a"))
    await basket.add(7)  # wrong
    await basket.add({"name": "cup", "size": "huge"})  # wrong
    await basket.add({"name": "cup"}, count="two")  # wrong
    await basket.add()  # wrong
    (await basket.wait(1)).upper()  # wrong
    await basket.remove()  # wrong
"""


async def test_a_printed_client_is_typed_and_calls_a_real_worker(
    deployment: Deployment, tmp_path: Path
) -> None:
    working = Working(deployment)
    async with working.worker(baskets()):
        pass  # its description stays
    printed = await Commands(deployment).tell("services", "--stub", "my baskets")
    (tmp_path / "printed.py").write_text(printed)
    (tmp_path / "use.py").write_text(USE)
    async with working.worker(baskets()):
        basket = loaded(tmp_path / "printed.py").MyBasketsKey(deployment.client, "b-1")
        cup = {"name": "cup", "size": "large", "parts": []}
        assert await basket.add({"name": "cup", "size": "large"}, count=2) == {
            "items": [cup, cup],
            "notes": {},
        }
        assert await basket.note("one", "two") == [2, "one"]
        assert await basket.wait(1.5) == 1.5
        assert await basket.class_(1) == await basket.list_(1) == 1
        assert await basket.anything({"a": [1]}) == {"a": [1]}

    found = await asyncio.to_thread(errors, tmp_path)
    wrong = [number for number, line in enumerate(USE.splitlines(), 1) if line.endswith("# wrong")]
    assert [each.split(":")[:2] for each in found] == [["use.py", str(each)] for each in wrong]


async def test_a_printed_client_calls_as_the_version_that_it_was_printed_of(
    deployment: Deployment, tmp_path: Path
) -> None:
    working, newer = Working(deployment), Service("my baskets", version=2)

    @newer.upgrade_call(1)
    def by_seconds(handler: str, arguments: Any) -> tuple[str, Any]:
        return handler, {"milliseconds": 1000 * arguments["seconds"]}

    @newer.handler
    def rest(ctx: Context[Any], milliseconds: float) -> float:
        return milliseconds

    older = baskets()

    @older.handler(name="rest")
    def rest_seconds(ctx: Context[Basket], seconds: float) -> float:
        return seconds

    async with working.worker(older):
        printed = await Commands(deployment).tell("services", "--stub", "my baskets")
        (tmp_path / "printed.py").write_text(printed)
    async with working.worker(newer):
        basket = loaded(tmp_path / "printed.py").MyBasketsKey(deployment.client, "b-1")
        assert await basket.rest(seconds=1.5) == 1500


def errors(folder: Path) -> list[str]:
    words = ["mypy", "--strict", "--config-file=", "printed.py", "use.py"]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("printed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
