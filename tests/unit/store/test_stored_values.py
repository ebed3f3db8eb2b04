"""Values read out of a table are those of the graph that is loaded from it."""

import random
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile

from rebaser_core.updates import (
    AnyUpdate,
    PlainUpdates,
    PutFunc,
    PutValue,
    RemoveValue,
    SetValue,
)
from rebaser_server.queries.values import row_of, row_of_stored
from rebaser_server.store.checkpoints import Checkpoints, take_changes, vacuum
from rebaser_server.store.compaction import drop_superseded
from rebaser_server.store.stored_values import OpenTables, StoredValues, find_values
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, ulid

SUM = ulid(1000)
NUMBERS = range(12)
NAMES = ["' OR true --", "it's", "back\\", "ä\n", "value-1", ulid(3)]
"""The last one is an id as well."""


def an_update(rng: random.Random) -> AnyUpdate:
    value_id = ulid(rng.choice(NUMBERS))
    name = rng.choice([None, *NAMES])
    match rng.randrange(4):
        case 0:
            return PutValue(value_id=value_id, name=name, value=rng.randrange(100))
        case 1:
            inputs = {"values": [ulid(rng.choice(NUMBERS)) for _ in range(2)]}
            return PutValue(value_id=value_id, name=name, func_id=SUM, inputs=inputs)
        case 2:
            return SetValue(value_id=value_id, value={"n": rng.randrange(100)})
        case _:
            return RemoveValue(value_id=value_id)


def find(tables: OpenTables, checkpoints: Checkpoints, asked: list[str]) -> StoredValues | None:
    return find_values(tables, checkpoints, CHANGE_SET, asked, min_rows=0)


@pytest.mark.parametrize("seed", range(8))
def test_values_are_found_as_the_graph_has_them(tmp_path: Path, seed: int) -> None:
    """Renamed, removed, defined anew, computed or not; asked for by id, by name, or by either.

    Between two questions the table is added to, compacted, vacuumed, or written anew.
    """
    rng, graph, checkpoints = random.Random(seed), Graph(), Checkpoints(str(tmp_path))
    warm = OpenTables()
    rebase(graph, 1, [PutFunc(func_id=SUM, name="sum", runtime="builtin", code="sum")])
    for commit in range(2, 9):
        rebase(graph, commit, [an_update(rng) for _ in range(6)])
        metadata = {"n": commit, "commitId": ulid(commit)}
        is_whole = rng.random() < 0.2
        checkpoints.save(CHANGE_SET, take_changes(graph, commit, metadata, whole=is_whole))
        if rng.random() < 0.3:
            drop_superseded(checkpoints.table(CHANGE_SET), commit)
        if rng.random() < 0.3:
            vacuum(checkpoints.table(CHANGE_SET), 0)
        asked = [*map(ulid, NUMBERS), *NAMES, "nothing"]
        rng.shuffle(asked)
        asked = asked[: rng.randrange(1, len(asked))]
        ids = {name: name if name in graph.values else graph.names.get(name) for name in asked}

        for tables in (OpenTables(), warm, warm):
            found = find(tables, checkpoints, asked)

            assert found is not None
            assert (found.commit, found.commit_id) == (commit, ulid(commit))
            assert {name: row_of_stored(value) for name, value in found.values.items()} == {
                name: row_of(graph, value_id) for name, value_id in ids.items() if value_id
            }


def test_only_a_large_table_is_looked_into(tmp_path: Path) -> None:
    """For a small one, and for none, there is no answer: it is loaded as soon."""
    graph, checkpoints, tables = Graph(), Checkpoints(str(tmp_path)), OpenTables()
    before = find_values(tables, checkpoints, CHANGE_SET, ["a"], min_rows=0)
    rebase(graph, 1, [PutValue(value_id=ulid(1), name="a", value=1)])
    checkpoints.save(CHANGE_SET, take_changes(graph, 1, {"n": 1}, whole=False))

    assert before is None
    assert find_values(tables, checkpoints, CHANGE_SET, ["a"], min_rows=3) is None
    assert find_values(tables, checkpoints, CHANGE_SET, ["a"], min_rows=2) is not None


def test_a_large_table_has_many_row_groups(tmp_path: Path) -> None:
    """Of them only those are read that may have what is looked for."""
    graph, checkpoints = Graph(), Checkpoints(str(tmp_path))
    puts = [{"putValue": {"valueId": ulid(n), "value": n}} for n in range(140_000)]
    many = PlainUpdates.read(puts)
    assert many is not None
    rebase(graph, 1, many)
    checkpoints.save(CHANGE_SET, take_changes(graph, 1, {"n": 1}, whole=False))

    found = find(OpenTables(), checkpoints, [ulid(139_000)])

    [file] = checkpoints.table(CHANGE_SET).file_uris()
    assert ParquetFile(file.removeprefix("file://")).num_row_groups == 2
    assert found is not None
    assert found.values[ulid(139_000)].value == "139000"
