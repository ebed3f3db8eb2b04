"""Checkpoints of a newer release: an older Rebaser reads what it can, and harms nothing else."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.state_machine import checkpoints_of
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import NOTHING, Owner
from tests.helpers.table_rows import overwrite
from tests.integration.test_doctor import doctor

Rewrite = Callable[[pa.Table], pa.Table]


def of_metadata(change: Callable[[dict[str, Any]], object]) -> Rewrite:
    def rewrite(rows: pa.Table) -> pa.Table:
        changed = []
        for row in rows.to_pylist():
            if row["kind"] == "head":
                metadata = json.loads(row["value"])
                change(metadata)
                row["value"] = json.dumps(metadata)
            changed.append(row)
        return pa.Table.from_pylist(changed, rows.schema)

    return rewrite


def with_a_status(rows: pa.Table) -> pa.Table:
    changed = [
        row | {"status": "stale"} if row["kind"] == "value" else row for row in rows.to_pylist()
    ]
    return pa.Table.from_pylist(changed, rows.schema)


def with_a_column_and_a_kind(rows: pa.Table) -> pa.Table:
    more = pa.Table.from_pylist(
        [{"kind": "note", "id": "x", "commit": 1, "removed": False}], rows.schema
    )
    rows = pa.concat_tables([rows, more])
    return rows.append_column("shard", pa.nulls(len(rows), pa.int64()))


UNREADABLE: dict[str, Rewrite] = {
    "more of the control record": of_metadata(lambda metadata: metadata["control"].update(shard=3)),
    "another control record": of_metadata(lambda metadata: metadata.pop("control")),
    "a status": with_a_status,
}
said_to_be_newer = of_metadata(lambda metadata: metadata.update(format=2))


async def with_checkpoint(deployment: Deployment, change_set: ChangeSet, rewrite: Rewrite) -> None:
    """A change set whose last checkpoint a newer release has written."""
    owner = await Owner.of(deployment, change_set, NOTHING)
    requests = deployment.streams.requests_stream
    for number in range(2):
        await deployment.js.publish(deployment.streams.requests(change_set))
        await deployment.js.purge(requests)  # as what `owner` handles
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
    table = checkpoints_of(owner.archive).table(change_set)
    rows = rewrite(table.to_pyarrow_table())
    overwrite(table, rows)


async def test_what_a_newer_release_adds_is_passed_over(deployment: Deployment) -> None:
    """Metadata, a column and a kind of rows; the next checkpoint goes into that table."""
    [change_set] = new_change_sets(1)
    more_metadata = of_metadata(lambda metadata: metadata.update(lines={"1": 2}))
    await with_checkpoint(
        deployment, change_set, lambda rows: with_a_column_and_a_kind(more_metadata(rows))
    )
    daemon = await deployment.start(CHECKPOINT_EVERY="1")

    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [put(new_id(), 3)])
    async with asyncio.timeout(60):
        commit = (await reply).status.success.commit

    def is_saved() -> bool:
        return checkpoints_of(deployment.archive(change_set)).last_commit(change_set) >= commit

    await eventually(is_saved, within=60)
    assert daemon.said("checkpoint failed") == []
    assert len((await deployment.graph(change_set)).values) == 3


async def test_what_only_a_newer_release_can_read_is_left_to_it(
    deployment: Deployment, capsys: Any
) -> None:
    """Its requests wait, none of them counts as tried, and other change sets go on."""
    change_set, other = new_change_sets(2)
    graph = ExampleGraph()
    await with_checkpoint(
        deployment, change_set, lambda rows: said_to_be_newer(with_a_status(rows))
    )
    daemon = await deployment.start(MAX_ATTEMPTS="1")

    await deployment.client.enqueue_updates(*change_set, graph.define())
    _, reply = await deployment.client.enqueue_updates_with_reply(*other, graph.define())
    async with asyncio.timeout(60):
        assert (await reply).status

    await eventually(lambda: bool(daemon.said("retry scheduled")), within=60)
    [line, *_] = daemon.said("retry scheduled")
    assert "left for a newer server: checkpoint of format 2" in line["reason"]
    subject = deployment.streams.requests(change_set)
    assert await deployment.js.stream_subjects(deployment.streams.requests_stream, subject) == {
        subject: 1
    }
    assert await deployment.dead_letters(change_set) == []
    assert daemon.process.poll() is None
    _, found = await doctor(deployment, capsys, repair=True)
    [history] = [row for row in found if row["check"] == "history"]
    assert "newest release" in history["remedy"]
    assert not history["repairable"]


@pytest.mark.parametrize("rewrite", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_does_not_say_that_it_is_newer_is_refused(
    deployment: Deployment, rewrite: Rewrite
) -> None:
    [change_set] = new_change_sets(1)
    await with_checkpoint(deployment, change_set, rewrite)

    with pytest.raises(HistoryInconsistent, match="the checkpoint cannot be read: "):
        await deployment.archive(change_set).load()
