"""A table that is kept open answers as one that is opened anew, or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.updates import PutValue
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.store.checkpoints import Checkpoints, take_changes
from rebaser_server.store.stored_values import KEPT, OpenTables, find_values
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, ulid


def value_of(tables: OpenTables, checkpoints: Checkpoints) -> tuple[int, str]:
    """What value 1 is, after the commit as of which it is so."""
    found = find_values(tables, checkpoints, CHANGE_SET, [ulid(1)], min_rows=0)
    assert found is not None
    return found.commit, found.values[ulid(1)].value


def last_entry(table: Path) -> Path:
    return max(table.glob("_delta_log/*.json"))


def last_data(table: Path) -> Path:
    return max(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize("break_it", [cut, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("part", [last_data, last_entry])
def test_a_damaged_table_gives_no_answer(
    tmp_path: Path, part: Callable[[Path], Path], break_it: Callable[[Path], None]
) -> None:
    """It raises, or says what the open table or an earlier version has, as of its commit."""
    graph, checkpoints, warm = Graph(), Checkpoints(str(tmp_path)), OpenTables()
    for commit in (1, 2):
        rebase(graph, commit, [PutValue(value_id=ulid(1), name="a", value=commit)])
        checkpoints.save(CHANGE_SET, take_changes(graph, commit, {}, whole=False))
    before = value_of(warm, checkpoints)
    table = Path(checkpoints.uri(CHANGE_SET))
    file = part(table)
    octets = file.read_bytes()
    break_it(file)

    for tables in (warm, OpenTables()):
        try:
            found = value_of(tables, checkpoints)
        except StoreFailed:
            continue
        assert found[1] == str(found[0])

    file.write_bytes(octets)
    assert value_of(warm, checkpoints) == before


def test_few_tables_are_kept_open(tmp_path: Path) -> None:
    """Of those asked for last; the others are opened anew."""
    checkpoints, tables, graph = Checkpoints(str(tmp_path)), OpenTables(), Graph()
    rebase(graph, 1, [PutValue(value_id=ulid(1), value=1)])
    change_sets = [
        ChangeSet(WorkspaceId.from_int(1), ChangeSetId.from_int(n)) for n in range(KEPT + 2)
    ]
    changes = take_changes(graph, 1, {}, whole=True)
    for change_set in change_sets:
        checkpoints.save(change_set, changes)
    first = tables.table(checkpoints, change_sets[0], 0)
    for change_set in change_sets[:KEPT]:
        tables.table(checkpoints, change_set, 0)

    assert tables.table(checkpoints, change_sets[0], 0) is first
    kept = {tables.table(checkpoints, change_set, 0) for change_set in change_sets}
    assert tables.table(checkpoints, change_sets[-1], 0) in kept
    assert tables.table(checkpoints, change_sets[0], 0) not in kept | {first}


def test_a_table_whose_log_was_turned_back_is_opened_anew(tmp_path: Path) -> None:
    """Its last entry then has the same number, and other content."""
    checkpoints, tables = Checkpoints(str(tmp_path)), OpenTables()
    for value in (1, 2):
        graph = Graph()
        rebase(graph, value, [PutValue(value_id=ulid(1), value=value)])
        checkpoints.save(CHANGE_SET, take_changes(graph, value, {}, whole=True))
        assert value_of(tables, checkpoints) == (value, str(value))
        version = checkpoints.table(CHANGE_SET).version()
        checkpoints.set_aside(CHANGE_SET, version - 1)

    assert version == 1
