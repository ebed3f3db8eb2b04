"""The store on S3, as a server on loopback speaks it."""

import asyncio
from collections.abc import Iterator

import pytest

from rebaser_core.updates import PutValue, RemoveValue, SetValue
from rebaser_server.files import BatchFiles, OrphanFiles, SharedFiles
from rebaser_server.store import compaction
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.values.rebase import rebase
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.checkpoint_writer import CHANGE_SET, graph_of, saved, ulid
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.random_batches import contents
from tests.helpers.s3_server import BUCKET, s3_running
from tests.integration.test_checkpoints import history


@pytest.fixture
def options() -> Iterator[dict[str, str]]:
    """What `REBASER_STORE__OPTIONS` would be, for an S3 with an empty bucket."""
    with s3_running() as options:
        yield options


@pytest.fixture
def root():
    """Of each test its own: the server keeps its buckets for as long as the process lives."""
    return f"s3://{BUCKET}/some/where/{new_id()}"


def test_checkpoints_are_kept_tidied_and_read_back(root, options, monkeypatch):
    monkeypatch.setattr(compaction, "MAX_FILES", 5)
    checkpoints, graph = Checkpoints(root, options), graph_of(1)
    saved(checkpoints, graph, 1)
    rebase(graph, 2, [RemoveValue(value_id=ulid(1)), SetValue(value_id=ulid(2), value="ä")])
    saved(checkpoints, graph, 2)
    earlier = contents(graph)
    for commit in range(3, 8):
        rebase(graph, commit, [PutValue(value_id=ulid(3), value=commit)])
        saved(checkpoints, graph, commit)

    done = compaction.compact(checkpoints, CHANGE_SET, 0, 0)

    assert done == "small files merged"
    assert contents(checkpoints.load(CHANGE_SET).graph) == contents(graph)
    assert contents(checkpoints.load(CHANGE_SET, 2).graph) == earlier


def test_of_two_writers_the_later_state_wins(root, options):
    """S3's conditional put is the fence: what was overtaken changes nothing."""
    known = history()
    checkpoints = Checkpoints(root, options)
    for changes, _ in known[:4]:
        checkpoints.save(CHANGE_SET, changes)

    checkpoints.save(CHANGE_SET, known[2][0])

    loaded = checkpoints.load(CHANGE_SET)
    assert loaded.commit == 4
    assert contents(loaded.graph) == known[3][1]


def test_results_lie_there_until_they_are_deleted(root, options):
    results = BatchFiles(SharedFiles(root, options))
    results.put("key", b"one")
    results.put("key", b"two")
    assert results.get("key") == b"two"
    leftovers = OrphanFiles(SharedFiles(root, options))
    found = leftovers.older_than(4e9)
    assert [file.key for file in found] == ["key"]

    leftovers.remove(found)
    leftovers.remove(found)

    with pytest.raises(FileNotFoundError):
        results.get("key")
    assert leftovers.older_than(4e9) == []


@pytest.mark.long
async def test_a_daemon_works_on_it(
    deployment: Deployment, root: str, options: dict[str, str]
) -> None:
    """From a batch too large for a message to the values, across a change of owner."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    store = {"STORE__ROOT": root, "STORE__OPTIONS": str(options).replace("'", '"')}
    daemon = await deployment.start(CHECKPOINT_EVERY="2", **store)
    many = [put(new_id(), number) for number in range(600)]

    await deployment.client.enqueue_updates(*change_set, [*many, *values.define(1, 2)])
    await deployment.at_rest()
    daemon.kill()
    await deployment.start(CHECKPOINT_EVERY="2", **store)
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 40)])
    await deployment.at_rest()

    checkpoint = await asyncio.to_thread(Checkpoints(root, options).load, change_set)
    assert checkpoint.graph.values[values.gross].value == 42
    assert len(checkpoint.graph.values) == 603
