"""Whatever is done to graphs drawn at random, their values are what brute force says.

`EXAMPLES` multiplies the graphs, each of which has `ROUNDS`: 10 make 3,000 rounds.
"""

import importlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rebaser_core.updates import AnyUpdate, SetComputed
from rebaser_server.compute import recall
from rebaser_server.compute.affected import Closure, LargeClosure, RoundSizes
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.functions import runtimes
from rebaser_server.compute.memo import Memo, WorkspaceMemo
from rebaser_server.compute.plan import Plan, Rounds, plan
from rebaser_server.compute.results import REMEMBERED, RunStore, UnitResult, decode_result
from rebaser_server.files import SharedFiles
from rebaser_server.values.edits import DefinitionView, value_definition
from rebaser_server.values.graph import Graph, GraphSnapshot
from rebaser_server.values.merge import changes_between
from rebaser_server.values.rebase import apply_result_table, rebase
from tests.helpers.drawn_graphs import SOURCES, Drawing, Installed, computed_in, told
from tests.helpers.graph_builder import due, state_of, text
from tests.helpers.in_memory_branch import Branch, Head
from tests.helpers.in_memory_change_set import as_update
from tests.helpers.reference_spreadsheet import Sheet

ROUNDS = 20
GRAPHS = max(1, round(15 * float(os.environ.get("EXAMPLES", "1"))))
SHAPES = [(6, 6, 3), (4, 10, 2), (8, 3, 6), (12, 2, 8), (40, 2, 70)]
"""Sources, layers above them and values of each; the last is computed many values at once."""
EVERYTHING = 1 << 40

Walk = Callable[[Graph, WorkspaceMemo | None, random.Random], list[UnitResult]]


def whole(graph: Graph, memo: WorkspaceMemo | None, chance: random.Random) -> list[UnitResult]:
    """All that may come out different is planned, then computed."""
    planned = plan(graph, chance.randint(1, 3), small=chance.choice([0, 256]), memo=memo)
    return [decode_result(evaluate(unit.encode())) for unit in planned.units]


def in_rounds(graph: Graph, memo: WorkspaceMemo | None, chance: random.Random) -> list[UnitResult]:
    """Only what early cutoff needs is planned, round by round, as a large update is."""
    sizes = RoundSizes(
        chance.choice([0, 2, 30]),
        growth=chance.choice([1, 2]),
        behind=chance.choice([0, 1_000]),
        steps=chance.choice([1, 4, 100]),
        values=chance.choice([0.2, 1.0]),
    )
    snapshot = GraphSnapshot(graph)
    large = LargeClosure(snapshot, sizes)

    def plan_round(affected: Closure | None) -> Plan:
        return plan(snapshot, 2, affected=affected, memo=memo)

    rounds, outcomes = Rounds(plan_round(large.next()), large, plan_round), list[UnitResult]()
    while rounds.units:
        of_round = [decode_result(evaluate(unit.encode())) for unit in rounds.units]
        rounds.record(of_round, UNUSED)
        outcomes += of_round
    return outcomes


UNUSED = RunStore(SharedFiles(tempfile.gettempdir()), "ab" * 32)
WALKS: list[Walk] = [whole, in_rounds]
"""Ways from a graph's roots to results; one is drawn for each update."""


class Line:
    """Head, or a branch of it: the product's graph, and the sheet that has all it was told."""

    def __init__(self, at: Head | Branch, sheet: Sheet) -> None:
        self.at = at
        self.sheet = sheet
        self.past: list[Graph] = []

    def request(self, updates: list[AnyUpdate]) -> Counter[str]:
        done = self.at.request(updates)
        self.sheet.take(done.updates)
        return Counter(correction.code for correction in done.corrections)


class World:
    """A head with branches, and results that are remembered, in one process or several."""

    def __init__(self, seed: int, root: Path, installed: Installed) -> None:
        self.chance = chance = random.Random(seed)
        self.installed = installed
        self.drawing = Drawing(chance, *chance.choice(SHAPES))
        self.head = Line(Head(), Sheet(installed.functions))
        self.branches: list[Line] = []
        self.seen: Counter[str] = Counter()
        self.actions: dict[Callable[[Line], None], int] = {
            self.edit: 12, self.fork: 4, self.merge: 2, self.apply: 4, self.take_back: 4,
            self.upgrade: 2, self.compute_again: 1,
        }  # fmt: skip
        """How often each is drawn."""
        self._root = root
        self.forget_processes()

    def forget_processes(self) -> None:
        """Have only the store remember; the processes differ in how much they may hold."""
        files = SharedFiles(str(self._root))
        rooms = self.chance.choices([0, 64 << 10, 512 << 10, 64 << 20], (1, 1, 2, 6), k=2)
        self.memos = [Memo(files, room).of("01J00000000000000000000000") for room in rooms]

    def act(self) -> None:
        line = self.chance.choice([self.head, *self.branches])
        [action] = self.chance.choices([*self.actions], [*self.actions.values()])
        action(line)

    def round(self) -> None:
        self.act()
        self.disturb_memory()
        for each in [self.head, *self.branches]:
            self.update(each)
            self.require_right(each)
            each.past.append(deepcopy(each.at.graph))

    def edit(self, line: Line) -> None:
        self.seen += line.request(self.drawing.edits(line.sheet))

    def fork(self, _: Line) -> None:
        sheet = deepcopy(self.head.sheet)
        sheet.functions = self.installed.functions
        self.branches.append(Line(Branch(self.head.at), sheet))
        self.edit(self.branches[-1])

    def merge(self, _: Line) -> None:
        for branch in self.branches:
            branch.sheet.take(branch.at.catch_up())

    def apply(self, line: Line) -> None:
        if line is self.head:
            self.edit(line)
            return
        self.seen += self.head.request(line.at.difference())
        self.branches.remove(line)
        self.seen["applied"] += 1

    def take_back(self, line: Line) -> None:
        """Make all definitions what they were some rounds ago."""
        if line.past:
            graph, was = line.at.graph, self.chance.choice(line.past)
            here = {*graph.values, *was.values}, {*graph.funcs, *was.funcs}
            line.request(changes_between(DefinitionView.of(graph), was, *here))

    def upgrade(self, _: Line) -> None:
        """Have another version of some functions installed, and their values due."""
        changed = self.installed.upgrade(self.chance)
        use(self.installed)
        for line in [self.head, *self.branches]:
            graph = line.at.graph
            users = [v.id for v in graph.values.values() if code_of(graph, v.func_id) in changed]
            rebase(graph, 1, [value_definition(graph, value_id) for value_id in users])

    def compute_again(self, line: Line) -> None:
        graph = line.at.graph
        some = [v.id for v in graph.values.values() if v.func_id and self.chance.random() < 0.3]
        for memo in filter(None, self.memos):
            memo.forget(some)
        rebase(graph, 1, [value_definition(graph, value_id) for value_id in some])

    def disturb_memory(self) -> None:
        match self.chance.randrange(10):
            case 0:
                shutil.rmtree(self._root / "memo", ignore_errors=True)
            case 1:
                self.forget_processes()
            case 2:
                for path in self._root.glob("memo/*/*"):
                    data = bytearray(path.read_bytes())
                    data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                    path.write_bytes(data)
            case 3:
                for memo in filter(None, self.memos):
                    memo.memo.tidy()

    def update(self, line: Line) -> None:
        """Compute what is due and no more; at times head is edited before the results are there."""
        graph, chance = line.at.graph, self.chance
        memo = chance.choice([*self.memos, None])
        before, roots = state_of(graph), set(graph.roots)
        if memo is not None and chance.random() < 0.5:
            memo.prepare(1.0)
        outcomes = chance.choice(WALKS)(graph, memo, chance)
        if memo is not None:
            results = pa.concat_tables(
                [REMEMBERED.empty_table(), *(each.remembered for each in outcomes)]
            )
            assert results.column("former").null_count == len(results)  # all are pure
            memo.record(results, chance.choice([0.0, 1.0]))
        if line is self.head and chance.random() < 0.2:
            covers = len(self.head.at.log)
            self.edit(line)
            fold(graph, outcomes, covers, chance)
            self.update(line)
        else:
            fold(graph, outcomes, EVERYTHING, chance)
            if memo is None:
                require_no_more(graph, outcomes, before, roots)

    def require_right(self, line: Line) -> None:
        here = computed_in(line.at.graph)
        assert here == told(line.sheet.worked_out())
        self.seen.update(json.loads(text)[0] for text in here.values())


def fold(graph: Graph, outcomes: list[UnitResult], covers: int, chance: random.Random) -> None:
    """Put results into the graph, one by one or as a table."""
    for outcome in outcomes:
        if chance.random() < 0.5:
            apply_result_table(graph, outcome.table, covers)
        else:
            updates: list[SetComputed] = [as_update(each) for each in outcome.value_results]
            rebase(graph, 1, updates, covers)
    graph.clear_roots(covers)


def require_no_more(
    graph: Graph, outcomes: list[UnitResult], before: dict[str, tuple[str, Any]], roots: set[str]
) -> None:
    """As many values were computed as early cutoff says, and only what changed is a result."""
    assert sum(outcome.recomputed for outcome in outcomes) == due(graph, before, roots)
    results = [result for outcome in outcomes for result in outcome.value_results]
    assert len({value_id for value_id, *_ in results}) == len(results)
    for value_id, *state in results:
        assert value_id in roots or text(before[value_id]) != text(state)


def code_of(graph: Graph, func_id: str | None) -> str | None:
    known = graph.funcs.get(func_id or "")
    return known.code if known else None


def use(installed: Installed) -> None:
    """Have this process be one that was started with these versions."""
    if sys.path[: len(SOURCES)] == installed.path:
        return
    sys.path[:] = [*installed.path, *(path for path in sys.path if "/drawn_" not in path)]
    for name in SOURCES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    for each in vars(runtimes).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
    runtimes._loaded.clear()


@pytest.fixture(scope="module")
def all_versions(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("functions"))


@pytest.fixture
def installed(all_versions: Installed, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """One remembered result of five is computed all the same."""
    monkeypatch.setattr(recall, "_CHECK_EVERY", 5)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return all_versions


def live(seed: int, root: Path, installed: Installed) -> World:
    installed.reset()
    use(installed)
    world = World(seed, root, installed)
    world.head.request(world.drawing.define())
    for _ in range(ROUNDS):
        world.round()
    return world


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_values_are_what_brute_force_says(seed: int, tmp_path: Path, installed: Installed) -> None:
    """Edits, branches, reverts, upgrades; what is remembered is full, lost, damaged or foreign."""
    live(seed, tmp_path / "store", installed)


def test_all_that_can_happen_does(tmp_path: Path, installed: Installed) -> None:
    """Else the rounds show less than they say."""
    seen, before = Counter[str](), recall._FOUND[0]
    for seed in (0, 1, 7):
        seen += live(seed, tmp_path / f"{seed}", installed).seen

    assert {"cycle", "missing-value", "applied", "ok", "failed", "blocked"} <= seen.keys()
    # How many results are remembered depends on how long the calls took.
    assert recall._FOUND[0] > before
