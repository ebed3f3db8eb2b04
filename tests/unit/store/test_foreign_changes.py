"""What another program changed in a table is not served; what it only rearranged is."""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rebaser_core.updates import PutValue
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store import compaction
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.stored_values import OpenTables, find_values
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, saved, ulid
from tests.helpers.random_batches import contents

LAST = 5
"""Commits, each with a checkpoint."""

Change = Callable[[DeltaTable], object]


def delete(table: DeltaTable) -> None:
    table.delete(f"id = '{ulid(2)}'")


def update(table: DeltaTable) -> None:
    table.update(updates={"value": "'4711'"}, predicate=f"id = '{ulid(2)}'")


def update_of_inputs(table: DeltaTable) -> None:
    table.update(updates={"inputs": "'{}'"}, predicate=f"id = '{ulid(2)}'")


def restore(table: DeltaTable) -> None:
    table.restore(table.version() - 2)


def delete_a_checkpoint(table: DeltaTable) -> None:
    table.delete("commit = 3")


CHANGES = (delete, update, update_of_inputs, restore, delete_a_checkpoint)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """What is in a table of five checkpoints."""
    graph, checkpoints = Graph(), Checkpoints(str(tmp_path))
    for commit in range(1, LAST + 1):
        rebase(graph, commit, [PutValue(value_id=ulid(n), value=commit) for n in (commit, 2)])
        saved(checkpoints, graph, commit)
    return graph


def table_of(root: Path) -> DeltaTable:
    return DeltaTable(Checkpoints(str(root)).uri(CHANGE_SET))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("summed_up", [False, True])
def test_the_checkpoint_before_a_change_by_others_counts(
    tmp_path: Path, graph: Graph, change: Change, summed_up: bool
) -> None:
    """And says what was found, also once no entry of the log is read that shows the change."""
    change(table_of(tmp_path))
    if summed_up:
        table_of(tmp_path).create_checkpoint()

    loaded = Checkpoints(str(tmp_path)).load(CHANGE_SET)

    assert loaded is not None
    assert loaded.commit == LAST
    assert contents(loaded.graph) == contents(graph)
    if change is not update_of_inputs or not summed_up:
        assert loaded.damage
    if not summed_up:
        operation = change.__name__.partition("_")[0].upper()
        assert f"{operation} by delta-rs" in loaded.damage


@pytest.mark.parametrize("change", CHANGES)
def test_an_owner_does_not_add_to_a_table_that_others_changed(
    tmp_path: Path, graph: Graph, change: Change
) -> None:
    """It turns the table back to before the change, and goes on."""
    owner = Checkpoints(str(tmp_path))
    owner.load(CHANGE_SET)
    change(table_of(tmp_path))
    rebase(graph, LAST + 1, [PutValue(value_id=ulid(9), value=9)])

    saved(owner, graph, LAST + 1)

    loaded = Checkpoints(str(tmp_path)).load(CHANGE_SET)
    assert loaded is not None
    assert (loaded.commit, loaded.damage) == (LAST + 1, "")
    assert contents(loaded.graph) == contents(graph)


@pytest.mark.parametrize("change", CHANGES)
def test_no_value_is_looked_up_in_a_table_that_others_changed(
    tmp_path: Path, graph: Graph, change: Change
) -> None:
    checkpoints, tables = Checkpoints(str(tmp_path)), OpenTables()
    assert find_values(tables, checkpoints, CHANGE_SET, [ulid(2)], 0) is not None

    change(table_of(tmp_path))

    with pytest.raises(StoreDamaged):
        find_values(tables, checkpoints, CHANGE_SET, [ulid(2)], 0)


def test_what_cannot_be_turned_back_is_refused(tmp_path: Path, graph: Graph) -> None:
    """The files from before the change are gone."""
    delete(table_of(tmp_path))
    table_of(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)

    with pytest.raises(StoreDamaged, match="DELETE by delta-rs"):
        Checkpoints(str(tmp_path)).load(CHANGE_SET)


@pytest.mark.parametrize("ours_as_well", [False, True])
def test_a_table_that_others_merged_sorted_and_vacuumed_is_sound(
    tmp_path: Path, graph: Graph, ours_as_well: bool
) -> None:
    table_of(tmp_path).optimize.compact()
    table_of(tmp_path).optimize.z_order(["value"])
    table_of(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    if ours_as_well:
        compaction.drop_superseded(table_of(tmp_path), LAST - 1)
        table_of(tmp_path).optimize.compact()

    checkpoints = Checkpoints(str(tmp_path))
    loaded = checkpoints.load(CHANGE_SET)

    assert loaded is not None
    assert (loaded.commit, loaded.damage) == (LAST, "")
    assert contents(loaded.graph) == contents(graph)
    saved(checkpoints, graph, LAST + 1)
    after = checkpoints.load(CHANGE_SET)
    assert after is not None
    assert (after.commit, after.damage) == (LAST + 1, "")


def test_rows_that_are_not_what_was_written_are_not_written_anew(
    tmp_path: Path, graph: Graph
) -> None:
    """Else what was damaged would have a digest that fits."""
    update(table_of(tmp_path))

    with pytest.raises(StoreDamaged, match="digest"):
        compaction.drop_superseded(table_of(tmp_path), LAST - 1)
