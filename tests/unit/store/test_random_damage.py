"""A table of which any octets are damaged is never served as the truth, nor given up too early."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from rebaser_core.updates import PutValue, RemoveValue, SetComputed
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import Checkpoints, take_changes
from rebaser_server.store.compaction import drop_superseded
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, function, ulid
from tests.helpers.random_batches import contents

FEW, MANY = 48, 400
"""Random damages in each run, and in the long one."""

LAST = 7
"""Commits, each with a checkpoint. The log goes back to the checkpoint before the last."""


def edit(graph: Graph, commit: int) -> None:
    """Each commit has values of its own, computed ones, failures, and takes one away."""
    if commit == 1:
        values = [PutValue(value_id=ulid(n), name=f"n{n}", value=n / 7) for n in range(200)]
        computed = [
            PutValue(value_id=ulid(n + 500), func_id=ulid(0), inputs={"a": [ulid(n), ulid(n + 1)]})
            for n in range(50)
        ]
        rebase(graph, commit, [function(ulid(0), "sum"), *values, *computed])
        return
    new = [PutValue(value_id=ulid(commit * 1_000 + n), value=[commit, "x" * n]) for n in range(9)]
    changed = [PutValue(value_id=ulid(n), name=f"n{n}", value=commit) for n in range(0, 60, commit)]
    rebase(graph, commit, [*new, *changed, RemoveValue(value_id=ulid(100 + commit))])
    results = [SetComputed(value_id=ulid(500 + commit), failed="no")]
    rebase(graph, commit, results, covers=commit)


class World(NamedTuple):
    """A sound table, and what it holds."""

    root: Path
    known: dict[int, object]
    """By commit the content."""
    last_only: frozenset[str]
    """Files that the last checkpoint alone consists of: without them the one before is whole."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A table with all that a table has: appended and rewritten files, and a sum of its log."""
    root = tmp_path_factory.mktemp("sound")
    checkpoints, graph = Checkpoints(str(root)), Graph()
    known, before = {}, frozenset[str]()
    for commit in range(1, LAST + 1):
        before = files_of(root)
        edit(graph, commit)
        save(checkpoints, graph, commit)
        known[commit] = contents(graph)
        if commit == 3:
            drop_superseded(checkpoints.table(CHANGE_SET), 2)
        if commit == 4:
            DeltaTable(checkpoints.uri(CHANGE_SET)).create_checkpoint()
    return World(root, known, files_of(root) - before)


def files_of(root: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def save(checkpoints: Checkpoints, graph: Graph, commit: int) -> None:
    changes = take_changes(graph, commit, {"n": commit}, whole=commit == 1, base=commit - 1)
    checkpoints.save(CHANGE_SET, changes)


Damage = Callable[[random.Random, bytearray], None]


def flip(chance: random.Random, octets: bytearray) -> None:
    octets[chance.randrange(len(octets))] ^= 1 << chance.randrange(8)


def cut(chance: random.Random, octets: bytearray) -> None:
    first = chance.randrange(len(octets))
    del octets[first : first + chance.choice([1, 20, len(octets)])]


def double(chance: random.Random, octets: bytearray) -> None:
    first = chance.randrange(len(octets))
    octets[first:first] = octets[first : first + chance.choice([1, 20, 400])]


def overwrite(chance: random.Random, octets: bytearray) -> None:
    first, count = chance.randrange(len(octets)), chance.choice([1, 8, 64, 4_096])
    new = chance.choice([bytes(count), b"1" * count, chance.randbytes(count)])
    octets[first : first + count] = new[: len(octets) - first]


DAMAGES: tuple[Damage, ...] = (flip, cut, double, overwrite)


def require_right(world: World, root: Path, seed: int) -> str:
    """Damage a copy of the table; require what is right then, and return what that was."""
    chance = random.Random(seed)
    shutil.copytree(world.root, root)
    name = chance.choice(sorted(files_of(root)))
    octets = bytearray((root / name).read_bytes())
    before = bytes(octets)
    chance.choice(DAMAGES)(chance, octets)
    (root / name).write_bytes(octets)
    try:
        loaded = Checkpoints(str(root)).load(CHANGE_SET)
    except StoreDamaged:
        assert name not in world.last_only
        assert octets != before
        return "held"
    assert loaded is not None
    assert (loaded.commit, loaded.metadata) == (loaded.commit, {"n": loaded.commit})
    assert contents(loaded.graph) == world.known[loaded.commit]
    if loaded.commit < LAST - 1:
        assert name not in world.last_only
        assert loaded.damage
        return "held"
    go_on(root, loaded.graph, loaded.commit)
    return "read" if loaded.commit == LAST else "the one before"


def go_on(root: Path, graph: Graph, commit: int) -> None:
    """The owner that loaded this has the log, and writes another checkpoint: it can be read."""
    for later in range(commit + 1, LAST + 2):
        edit(graph, later)
    checkpoints, last = Checkpoints(str(root)), LAST + 1

    try:
        changes = take_changes(graph, last, {"n": last}, whole=False, base=commit)
        checkpoints.save(CHANGE_SET, changes)
    except StoreDamaged:  # then an owner's next one is whole
        last += 1
        edit(graph, last)
        checkpoints.save(CHANGE_SET, take_changes(graph, last, {"n": last}, whole=True))

    after = Checkpoints(str(root)).load(CHANGE_SET)
    assert after is not None
    assert (after.commit, after.damage) == (last, "")
    assert contents(after.graph) == contents(graph)


@pytest.mark.parametrize("seed", range(FEW))
def test_random_damage_is_never_served(world: World, tmp_path: Path, seed: int) -> None:
    require_right(world, tmp_path / "damaged", seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(FEW, FEW + MANY, 100))
def test_random_damage_is_never_served_however_often(
    world: World, tmp_path: Path, first: int
) -> None:
    """And most of it leaves the last checkpoint, or the one before."""
    found = {"read": 0, "the one before": 0, "held": 0}
    for seed in range(first, first + 100):
        found[require_right(world, tmp_path / "damaged", seed)] += 1
        shutil.rmtree(tmp_path / "damaged")

    assert found["held"] < found["read"] + found["the one before"]
