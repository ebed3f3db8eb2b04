"""After an upgrade of a function its values are computed anew, by themselves, and no others."""

import os
import signal
from pathlib import Path

import pytest

from rebaser_client import ChangeSetHandle, Draft, python
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Daemon, Deployment
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import install

NOTED = """
import os, time

def {name}(*, value):
    with open({path!r}, "a") as file:
        file.write(f"{name} {version} {{value}}\\n")
    time.sleep(0.006)  # dear enough to be remembered in the store
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    return {result}
"""
COUNT = 20
"""So many that a daemon that measured nothing yet looks for their results in the store."""


class Site:
    """A directory with two distributions, and the calls of their functions."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.gate, self._calls = directory, directory / "gate", directory / "calls"
        self._seen = 0
        self.gate.touch()

    def install(self, name: str, version: str, result: str, at: Path | None = None) -> None:
        at = at or self.directory
        at.mkdir(exist_ok=True)
        paths = {"path": str(self._calls), "gate": str(self.gate)}
        source = NOTED.format(name=name, version=version, result=result, **paths)
        install(at, f"{name}_code", source, {name: f"{name}_code:{name}"}, version=version)

    def calls(self) -> set[str]:
        """The calls since it was last asked; a busy machine may make one twice."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        new, self._seen = lines[self._seen :], len(lines)
        return set(new)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    made.install("priced", "1.0", "value", tmp_path / "site")
    made.install("shipped", "2.0", "value", tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    return made


def shop(g: Draft) -> None:
    for n in range(COUNT):
        price = g.value(f"priced/{n}", python("priced"), value=g.source(f"net/{n}", n))
        g.value(f"shipped/{n}", python("shipped"), value=price)


async def values_of(change_set: ChangeSetHandle) -> list[int]:
    values = await change_set.values()
    return [values[f"shipped/{n}"].value for n in range(COUNT)]


async def replaced(deployment: Deployment, old: Daemon) -> Daemon:
    old.send(signal.SIGTERM)
    assert await old.ended() == 0
    new = await deployment.start()
    await new.ready()  # to answer what an edit asks
    return new


async def until(deployment: Deployment, change_set: ChangeSetHandle, expected: list[int]) -> None:
    await until_there(change_set, expected)
    await deployment.at_rest()


async def until_there(change_set: ChangeSetHandle, expected: list[int]) -> None:
    async def are_there() -> bool:
        return await values_of(change_set) == expected

    await eventually(are_there, within=180)


async def start_later(deployment: Deployment, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a daemon with an upgraded function, beside those with the earlier one."""
    later = site.directory / "later"
    site.install("priced", "1.1", "value + 100", later)
    site.install("shipped", "2.0", "value", later)
    path = os.environ["PYTHONPATH"].replace(str(site.directory / "site"), str(later))
    monkeypatch.setenv("PYTHONPATH", path)
    await deployment.start("later")


async def test_exactly_the_values_of_the_upgraded_function_are_computed_anew(
    deployment: Deployment, site: Site
) -> None:
    """And what they change: one of twenty. `rebaser dvu status` says why, and so does the log."""
    daemon = await deployment.start()
    change_set = await deployment.client.workspace("shop").create()
    async with change_set.edit() as g:
        shop(g)
    assert len(site.calls()) == 2 * COUNT
    await deployment.at_rest()

    site.gate.unlink()
    site.install("priced", "1.1", "value or 7", site.directory / "site")
    daemon = await replaced(deployment, daemon)
    commands = Commands(deployment)

    async def reason() -> str | None:
        rows = (await commands.read("dvu", "status", "shop"))["updates"]
        return rows[0]["why"] if rows else None

    await eventually(reason, within=60)
    assert await reason() == "new code: priced_code 1.0 → 1.1"
    site.gate.touch()

    await until(deployment, change_set, [7, *range(1, COUNT)])
    assert site.calls() == {*(f"priced 1.1 {n}" for n in range(COUNT)), "shipped 2.0 7"}
    assert await reason() is None
    authors = {entry.author for entry in await change_set.log()}
    assert "new code: priced_code 1.0 → 1.1" in authors

    await replaced(deployment, daemon)
    async with change_set.edit() as g:
        g.source("net/3", 30)
    assert site.calls() == {"priced 1.1 30", "shipped 2.0 30"}


@pytest.mark.long
async def test_while_two_codes_are_there_values_move_to_the_later_one_and_rest(
    deployment: Deployment, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier daemon computes some of them, and never asks for its own code."""
    await deployment.start("older")
    change_set = await deployment.client.workspace("shop").create()
    async with change_set.edit() as g:
        shop(g)
    branch = await change_set.fork("july")
    await deployment.at_rest()

    await start_later(deployment, site, monkeypatch)

    await until(deployment, change_set, [n + 100 for n in range(COUNT)])
    for number in range(5):  # either of them takes it
        async with change_set.edit() as g:
            g.source("net/0", number)
        await until(deployment, change_set, [number + 100, *range(101, 100 + COUNT)])

    async def branch_is_renewed() -> bool:
        first, *others = await values_of(branch)  # follows an edit only if a run is there
        return 100 <= first <= 104 and others == [*range(101, 100 + COUNT)]

    await eventually(branch_is_renewed, within=180)
    await branch.refresh()
    await until(deployment, branch, [104, *range(101, 100 + COUNT)])


async def test_a_daemon_with_earlier_code_lets_a_change_set_go_that_the_later_one_asks_for(
    deployment: Deployment, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the requests to compute anew come more often than it would be quiet."""
    older = await deployment.start("older", QUIET_PERIOD="600")
    change_set = await deployment.client.workspace("shop").create()
    async with change_set.edit() as g:
        shop(g)

    await start_later(deployment, site, monkeypatch)

    await until_there(change_set, [n + 100 for n in range(COUNT)])
    older.send(signal.SIGTERM)  # handed the task once more, it would keep it for so long
    await deployment.at_rest()
