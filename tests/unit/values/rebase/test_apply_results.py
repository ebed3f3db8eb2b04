"""Results as columns do to a graph what the same results do one by one."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from rebaser_core.ids import RequestId
from rebaser_core.messages import DvuResultInfo, ResultFile
from rebaser_core.updates import PutValue, RemoveValue, SetComputed
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.compute.results import SCHEMA, RunStore, UnitResult
from rebaser_server.compute.work_unit import BLOCKED, FAILED, OK
from rebaser_server.errors import MissingBatch
from rebaser_server.files import BatchFiles, SharedFiles
from rebaser_server.graph_application.content import read_results
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.rebase import apply_result_table, rebase
from tests.helpers.random_batches import batches, contents, examples, histories
from tests.helpers.replay import after
from tests.unit.values.rebase.test_late_results import DEFINITIONS, FIRST, SECOND, SOURCE, SUM

COMPUTED = DvuResultInfo(claim=RequestId(), covers=1, commit=1)


def table_of(results: list[SetComputed]) -> pa.Table:
    rows = [(r.value_id, *_status_and_text(r), place) for place, r in enumerate(results)]
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 4, schema=SCHEMA)


def _status_and_text(result: SetComputed) -> tuple[int, str]:
    if result.failed is not None:
        return FAILED, result.failed
    if result.blocked_by is not None:
        return BLOCKED, result.blocked_by
    return OK, dumps(result.value)


@given(histories, batches)
@examples(100)
def test_columns_do_what_updates_do(history, batch):
    results = list({u.value_id: u for u in batch if isinstance(u, SetComputed)}.values())
    for covers in (len(history) - 1, len(history)):
        one, other = after(history), after(history)

        by_updates = rebase(one, 99, results, covers)
        by_columns = apply_result_table(other, table_of(results), covers)

        assert contents(one) == contents(other)
        assert bool(by_updates.corrections) == bool(by_columns.corrections)
        assert not by_columns.dirty


@pytest.mark.parametrize(
    "edit",
    [RemoveValue(value_id=FIRST), PutValue(value_id=FIRST, value=7)],
    ids=["removed", "a source by now"],
)
def test_stale_results_are_dropped_and_reported_once(edit):
    graph = after([DEFINITIONS, [edit]])

    done = apply_result_table(
        graph, table_of([SetComputed(value_id=v, value=5) for v in (FIRST, SECOND)]), 2
    )

    assert [(c.index, c.code) for c in done.corrections] == [(0, "stale-result")]
    assert done.corrections[0].detail.startswith("1 value")
    assert done.updates == []


def test_a_value_with_a_result_is_a_root_until_the_update_is_committed():
    """Values that were defined anew stay as they are; roots that are cleared are saved."""
    graph = after([DEFINITIONS])
    graph.clear_roots(1)
    rebase(graph, 2, [PutValue(value_id=SECOND, func_id=SUM, inputs={"values": [SOURCE]})])
    results = [SetComputed(value_id=each, value=5) for each in (FIRST, SECOND)]

    done = apply_result_table(graph, table_of(results), 1)

    assert len(done.corrections) == 1
    assert (graph.values[FIRST].value, graph.values[SECOND].status) == (5, "pending")
    assert dict(graph.roots) == {FIRST: 1, SECOND: 2}
    graph.touched.clear()
    graph.clear_roots(1)
    assert [*graph.touched] == [FIRST]


def test_a_source_takes_no_result():
    graph = after([DEFINITIONS])

    done = rebase(graph, 2, [SetComputed(value_id=SOURCE, value=5)], 1)

    assert [each.code for each in done.corrections] == ["stale-result"]
    assert graph.values[SOURCE].value == 1


def test_a_value_that_is_due_again_has_no_message():
    graph = after([DEFINITIONS])
    rebase(graph, 2, [SetComputed(value_id=FIRST, failed="why")], 1)

    rebase(graph, 3, DEFINITIONS[2:3])

    assert graph.texts_of(np.array([graph.index_of(FIRST)])).to_pylist() == ["null"]


@pytest.fixture
def store(tmp_path):
    return BatchStore(None, BatchFiles(SharedFiles(str(tmp_path / "store"))))


async def placed(store, request_id):
    shelf = RunStore(store.files, "0" * 64)
    table = table_of([SetComputed(value_id=FIRST, value=5)])
    name = shelf.put_part("0", 0, 1, UnitResult(1, table))
    files = [ResultFile(name=name, values=1)]
    return shelf, await store.put_results(request_id, COMPUTED, shelf.key, files)


async def test_a_batch_leads_to_its_results_until_it_is_forgotten(store):
    request_id = RequestId()
    shelf, address = await placed(store, request_id)

    batch = await store.fetch(address, request_id)
    assert batch.computed == COMPUTED
    assert read_results(batch.results).to_pylist() == [{"id": FIRST, "status": 0, "text": "5"}]

    await store.delete_with_results(address)

    assert shelf.names() == []
    with pytest.raises(MissingBatch):
        await store.fetch(address, request_id)


async def test_results_that_are_gone_are_missed_only_when_they_are_read(store):
    """A stale batch is stale whether or not they are still there."""
    request_id = RequestId()
    shelf, address = await placed(store, request_id)
    for name in shelf.names():
        if name.count("-"):
            shelf.files.delete(f"results/{shelf.key}/{name}")

    batch = await store.fetch(address, request_id)

    with pytest.raises(MissingBatch):
        read_results(batch.results)


async def test_two_claims_lie_beside_each_other(store):
    first, second = RequestId(), RequestId()
    _, one = await placed(store, first)
    _, other = await placed(store, second)

    assert one != other
    assert (await store.fetch(one, first)).results != (await store.fetch(other, second)).results
