"""What is dropped is freed at once: garbage is collected rarely, and arrays may be gigabytes."""

import gc
from collections.abc import Callable, Iterator
from copy import deepcopy

import pyarrow as pa
import pytest

from rebaser_client.tables import read_updates
from rebaser_core.table_updates import TableUpdates
from rebaser_server.compute.plan import plan
from rebaser_server.store.checkpoints import take_changes
from rebaser_server.store.table_schema import rows_of
from rebaser_server.values.graph import Graph, GraphSnapshot
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.table_rows import graph_from_table

FUNC = ulid(0)
PUT_FUNC = {"putFunc": {"funcId": FUNC, "name": "sum", "runtime": "builtin", "code": "sum"}}
COUNT = 500


def batch() -> TableUpdates:
    """A source, and values that take it."""
    ids = [ulid(number) for number in range(1, COUNT + 1)]
    table = pa.table(
        {
            "id": ids,
            "value": pa.array([1] + [None] * (COUNT - 1), pa.int64()),
            "function": [None] + [FUNC] * (COUNT - 1),
            "inputs": [None] + [{"values": ids[:1]}] * (COUNT - 1),
        }
    )
    return TableUpdates.decode(*read_updates(table, [PUT_FUNC]).split())


def load() -> Graph:
    graph = Graph()
    rebase(graph, 1, batch())
    return graph


def load_from_checkpoint() -> Graph:
    return graph_from_table(rows_of(load(), {}, 1, whole=True))


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "use",
    [
        load,
        load_from_checkpoint,
        lambda: deepcopy(load()),
        lambda: GraphSnapshot(load()),
        lambda: plan(load(), 2).units,
        lambda: plan(GraphSnapshot(load()), 2).units,
        lambda: take_changes(load(), 1, {}, whole=False).sealed().reader().read_all(),
    ],
    ids=["rebase", "load", "copy", "snapshot", "plan", "plan of a snapshot", "checkpoint"],
)
@pytest.mark.usefixtures("_no_collection")
def test_nothing_waits_for_the_collector(use: Callable[[], object]) -> None:
    use()  # what is made once in a process
    gc.collect()

    use()

    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        assert [type(each).__name__ for each in gc.garbage] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
