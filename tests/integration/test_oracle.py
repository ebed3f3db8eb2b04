"""Values of a service are what brute force says, through edits, reads, kills and upgrades.

`EXAMPLES` multiplies the graphs, each of which has `ROUNDS`: 10 make 300 rounds.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import ChangeSetHandle, ValueSet
from tests.helpers.deployment import Deployment
from tests.helpers.drawn_graphs import Drawing, Installed, told
from tests.helpers.reference_spreadsheet import Sheet

ROUNDS = 10
GRAPHS = max(1, round(3 * float(os.environ.get("EXAMPLES", "1"))))
SHAPES = [(6, 6, 3), (4, 10, 2), (8, 3, 6)]
"""Sources, layers above them and values of each."""
MEMO_BYTES = ["0", "4096", "1000000", "100000000"]


class World:
    """A workspace, its branches, and what both came to at commits of the past."""

    patience = 180.0
    """Seconds within which all comes to rest."""

    def __init__(
        self,
        seed: int,
        deployment: Deployment,
        installed: Installed,
        environment: pytest.MonkeyPatch,
    ) -> None:
        self.chance = random.Random(seed)
        self.drawing = Drawing(self.chance, *self.chance.choice(SHAPES))
        self._deployment = deployment
        self._installed = installed
        self._environment = environment
        self._path = os.environ.get("PYTHONPATH", "")
        self._forks = 0
        self.head = deployment.client.workspace("drawn")
        self.branches: list[ChangeSetHandle] = []
        self.past: list[tuple[ChangeSetHandle, int, dict[str, str]]] = []
        self.actions = {
            self.edit: 12, self.fork: 4, self.apply: 4, self.take_back: 4, self.look_back: 3,
            self.upgrade: 2, self.restart: 2, self.lose_memory: 2, self.compute_again: 1,
        }  # fmt: skip

    async def begin(self) -> None:
        await self.start()
        await self.head.create()
        await self.send(self.head, self.drawing.define())
        await self.require_right(self.head)

    async def round(self) -> None:
        line = self.chance.choice([self.head, *self.branches])
        [action] = self.chance.choices([*self.actions], [*self.actions.values()])
        await action(line)
        for each in [self.head, *self.branches]:
            await self.require_right(each)

    async def start(self) -> None:
        """Start a daemon, after the end of the one before."""
        path = os.pathsep.join(filter(None, [*self._installed.path, self._path]))
        self._environment.setenv("PYTHONPATH", path)
        memo = self.chance.choices(MEMO_BYTES, (1, 1, 3, 5))[0]
        await self._deployment.start(FUNCTIONS__MEMO_BYTES=memo)

    async def restart(self, line: ChangeSetHandle) -> None:
        """Kill the daemon, at times with a request in hand."""
        if self.chance.random() < 0.5:
            _, sheet, _ = await self.values(line)
            await line.enqueue(self.drawing.edits(sheet), wait="stored")
        self._deployment.daemons[-1].kill()
        await self.start()
        await self._deployment.at_rest(self.patience)

    async def upgrade(self, _: ChangeSetHandle) -> None:
        """Install other versions of some functions, and have their values computed again."""
        self._deployment.daemons[-1].kill()
        changed = self._installed.upgrade(self.chance)
        await self.start()
        for line in [self.head, *self.branches]:
            _, sheet, _ = await self.values(line)
            users = [v for v, (f, _) in sheet.formulas.items() if sheet.codes.get(f) in changed]
            if users:
                await line.recompute(users)

    async def lose_memory(self, line: ChangeSetHandle) -> None:
        shutil.rmtree(Path(self._deployment.settings.store.root, "memo"), ignore_errors=True)
        if self.chance.random() < 0.5:
            await self.restart(line)

    async def edit(self, line: ChangeSetHandle) -> None:
        _, sheet, _ = await self.values(line)
        await self.send(line, self.drawing.edits(sheet))

    async def fork(self, _: ChangeSetHandle) -> None:
        self._forks += 1
        self.branches.append(await self.head.fork(f"branch-{self._forks}"))
        await self.edit(self.branches[-1])

    async def apply(self, line: ChangeSetHandle) -> None:
        if line is self.head:
            await self.edit(line)
            return
        await line.apply()
        self.branches.remove(line)
        for branch in self.branches:
            await branch.refresh()

    async def take_back(self, line: ChangeSetHandle) -> None:
        commits = [e.commit for e in await line.log() if not e.computed and e.updates]
        if commits[1:]:
            plan = await line.plan_revert(self.chance.choice(commits[1:]), force=True)
            if plan.updates:
                await self.send(line, plan.updates)

    async def look_back(self, _: ChangeSetHandle) -> None:
        """Read what a change set was, as of a commit at which it was looked at."""
        line, commit, then = self.chance.choice(self.past)
        assert self.computed(await line.values(at=commit)) == then

    async def compute_again(self, line: ChangeSetHandle) -> None:
        _, sheet, _ = await self.values(line)
        await line.recompute([v for v in sheet.formulas if self.chance.random() < 0.3] or None)

    async def send(self, line: ChangeSetHandle, updates: list[Any]) -> None:
        wait = self.chance.choice(["stored", "committed", "computed"])
        await line.enqueue(updates, wait=wait)
        if wait == "stored":
            await self._deployment.at_rest(self.patience)

    async def values(self, line: ChangeSetHandle) -> tuple[int, Sheet, dict[str, str]]:
        """The commit of a change set, its definitions, and what it says of its values."""
        await line.settled()
        while (values := await line.values()).may_be_stale:
            await line.settled()
        functions = await line.functions()
        sheet = Sheet(self._installed.functions)
        sheet.codes = {str(func.id): func.code for func in functions}
        for value in values.values():
            if value.func_id is None:
                sheet.sources[str(value.id)] = value.value
            else:
                sheet.formulas[str(value.id)] = str(value.func_id), dict(value.inputs or {})
        return values.commit, sheet, self.computed(values)

    async def require_right(self, line: ChangeSetHandle) -> None:
        commit, sheet, here = await self.values(line)
        assert here == self.told(sheet.worked_out())
        self.past.append((line, commit, here))

    def computed(self, values: ValueSet) -> dict[str, str]:
        return self.told(
            {
                str(value.id): (
                    value.status,
                    value.message if value.status == "blocked" else value.value,
                )
                for value in values.values()
                if value.func_id is not None
            }
        )

    def told(self, state: dict[str, tuple[str, Any]]) -> dict[str, str]:
        return told(state)


@pytest.mark.parametrize("seed", range(GRAPHS))
async def test_values_are_what_brute_force_says(
    seed: int, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches, reverts, the past, upgrades, deaths; what is remembered is full, off or lost."""
    installed = Installed(tmp_path / "functions", seconds=0.005)
    world = World(seed, deployment, installed, monkeypatch)
    await world.begin()
    for _ in range(ROUNDS):
        await world.round()
