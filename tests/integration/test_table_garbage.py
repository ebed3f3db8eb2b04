"""Tables stay for as long as anything can lead to them, and then go."""

import asyncio
import io
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_client import connect
from rebaser_client.requests import store_batch
from rebaser_core import codecs
from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ObjectNotFound, ObjectStore
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1, ObjectRef
from rebaser_core.records import ChangeSetRequestV1
from rebaser_core.table_schemas import PARTITION_BY
from rebaser_core.table_values import TableHandle, upload_of, upload_value
from rebaser_core.updates import PutValue
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.upkeep import DeletedDataJob
from rebaser_server.commit_log.garbage_collection import CONDEMNED
from rebaser_server.compute.results import SCHEMA, RunStore, UnitResult
from rebaser_server.doctor.checks import Severity, check_history
from rebaser_server.files import SharedFiles, table_directory
from rebaser_server.graph_application.commands import recompute
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import open_checkpoints
from rebaser_server.graph_application.tables import Tables
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles
from rebaser_server.values.canonical_json import dumps
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.scripted_owner import EVERYTHING, NOTHING, Owner
from tests.helpers.workspace import Team


def parquet(number: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [number]}), sink)
    return sink.getvalue()


def tables_of(deployment: Deployment) -> TableFiles:
    return TableFiles(SharedFiles(deployment.settings.store.root))


def adopted(deployment: Deployment, change_set: ChangeSet, number: int) -> dict[str, Any]:
    """A value that refers to an upload which a Rebaser has taken in."""
    payload = parquet(number)
    digest = blake3(payload).hexdigest()
    tables_of(deployment).adopt(str(change_set.workspace_id), digest, payload)
    return upload_value(digest)


async def placed(deployment: Deployment, change_set: ChangeSet, number: int) -> dict[str, Any]:
    """A value that refers to a file which a client has uploaded."""
    payload = parquet(number)
    digest = blake3(payload).hexdigest()
    await uploads_to(deployment, change_set).put_once(digest, payload)
    return upload_value(digest)


def bucket_of(deployment: Deployment) -> ObjectStore:
    return ObjectStore(deployment.js, deployment.streams.batches_bucket)


def uploads_to(deployment: Deployment, change_set: ChangeSet) -> ObjectStore:
    return bucket_of(deployment).part(str(change_set.workspace_id))


async def is_uploaded(deployment: Deployment, change_set: ChangeSet, value: dict[str, Any]) -> bool:
    try:
        await uploads_to(deployment, change_set).info(str(upload_of(value)))
    except ObjectNotFound:
        return False
    return True


def standing(deployment: Deployment, *values: dict[str, Any]) -> list[bool]:
    """Whether each is a table; one that is condemned is one, too."""
    keys = {table.key for table in tables_of(deployment).stored() if table.written}
    return [upload_of(value) in keys for value in values]


def spoil(uri: str) -> None:
    for path in Path(uri).rglob("*.parquet"):
        path.write_bytes(b"spoiled")


async def collect(deployment: Deployment, rounds: int = 2) -> dict[str, int]:
    """Do as a Rebaser does, with the grace over after each round; return the last's counts."""
    collector = deployment.collector()
    for _ in range(rounds):
        garbage = await collector.find()
        await collector.remove(garbage)
    return garbage.counts()


async def test_a_table_stays_until_no_kept_state_has_it(deployment: Deployment) -> None:
    """Commits name it, then checkpoints do; only then it is condemned, and then removed."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, NOTHING)
    first = adopted(deployment, change_set, 1)
    before = await owner.commit([put(value, first)])
    await collect(deployment)
    second = adopted(deployment, change_set, 2)
    await owner.commit([set_to(value, second)])
    await collect(deployment)
    assert standing(deployment, first, second) == [True, True]

    for _ in range(2):  # the log goes back to the checkpoint before the last
        await owner.checkpoint()
        await owner.commit([put(new_id(), 1)])
    assert graph_of(await owner.archive.load()).values[value].value == second
    assert await owner.archive.earliest_commit() > before
    collector = deployment.collector()
    garbage = await collector.find()
    assert [table.key for table in garbage.held[CONDEMNED]] == [upload_of(first)]
    assert garbage.held["tables"] == []
    await collector.remove(garbage)
    tables, workspace = tables_of(deployment), str(change_set.workspace_id)
    assert tables.find(workspace, str(upload_of(first))) is None
    assert tables.get(workspace, str(upload_of(first)))

    await collect(deployment, rounds=1)

    assert standing(deployment, first, second) == [False, True]
    assert await collect(deployment) == {}
    assert tables.find(workspace, str(upload_of(second))) is not None


async def test_parts_stay_for_as_long_as_a_table_has_them(deployment: Deployment) -> None:
    """Two tables share one, which outlives the first; at the end nothing is left of either."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, NOTHING)
    tables, workspace = tables_of(deployment), str(change_set.workspace_id)
    uploads = []
    for cells in ([1, 2], [2, 3]):
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, pa.schema({"id": pa.int64()})) as writer:
            writer.write_table(pa.table({"id": cells}))
            writer.add_key_value_metadata({PARTITION_BY: "id"})
        digest = blake3(sink.getvalue()).hexdigest()
        tables.adopt(workspace, digest, sink.getvalue())
        uploads.append(upload_value(digest))
    await owner.commit([put(value, uploads[0])])
    await owner.commit([set_to(value, uploads[1])])
    await collect(deployment)
    assert len([*tables.stored()]) == 5

    for _ in range(2):
        await owner.checkpoint()
        await owner.commit([put(new_id(), 1)])
    await collect(deployment, rounds=5)

    assert standing(deployment, *uploads) == [False, True]
    left = tables.get(workspace, str(upload_of(uploads[1])))
    assert {table.key for table in tables.stored()} - {upload_of(uploads[1])} == {
        part.key for part in left.parts
    }
    await owner.commit([set_to(value, 1)])
    for _ in range(2):
        await owner.checkpoint()
        await owner.commit([put(new_id(), 1)])
    await collect(deployment, rounds=5)
    assert [*tables.stored()] == []


async def test_a_checkpoint_alone_keeps_a_table(deployment: Deployment) -> None:
    """Also one that was loaded, and has not touched the value; those that are not kept do not."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set, NOTHING)
    table = adopted(deployment, change_set, 1)
    value = new_id()
    await owner.commit([put(value, table)])
    await owner.checkpoint()
    for number in range(4):
        owner = await Owner.of(deployment, change_set, NOTHING)
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
        assert await collect(deployment) == {}
    assert standing(deployment, table) == [True]

    await owner.commit([set_to(value, "another")])
    for number in range(3):
        await owner.checkpoint()
        await owner.commit([put(new_id(), number)])
    await collect(deployment)

    assert standing(deployment, table) == [False]


async def test_a_value_that_comes_to_have_a_condemned_table_keeps_it(
    deployment: Deployment,
) -> None:
    """Its commit was under way when the table was condemned."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    table = adopted(deployment, change_set, 1)
    await collect(deployment, rounds=1)
    assert tables_of(deployment).is_condemned(str(change_set.workspace_id), str(upload_of(table)))

    await owner.commit([put(new_id(), table)])

    assert await collect(deployment, rounds=3) == {}
    assert standing(deployment, table) == [True]


async def test_young_tables_and_young_sentences_stay(deployment: Deployment) -> None:
    """A job has written one a moment ago, or has found it a moment before it was condemned."""
    [change_set] = new_change_sets(1)
    table = adopted(deployment, change_set, 1)
    collector = deployment.collector(grace=60)
    assert (await collector.find()).counts() == {}
    tables, workspace = tables_of(deployment), str(change_set.workspace_id)
    directory = Path(tables.files.root) / table_directory(workspace, str(upload_of(table)))
    os.utime(directory / "manifest.json", (1000, 1000))

    for expected in ({"condemned": 1}, {}):
        garbage = await collector.find()
        await collector.remove(garbage)
        assert garbage.counts() == expected
    os.utime(directory / "condemned", (1000, 1000))

    assert (await collector.find()).counts() == {"tables": 1}


async def test_results_in_files_keep_tables(deployment: Deployment) -> None:
    """Those that a large batch or an update's run has, also before its commit."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    in_batch, in_run = (adopted(deployment, change_set, number) for number in (1, 2))
    await owner.commit([put(new_id(), n) for n in range(600)] + [put(new_id(), in_batch)])
    handle = TableHandle(str(upload_of(in_run)), "c" * 32, "d" * 32, 1, 1)
    columns = [[new_id()], [0], [dumps(handle.to_value())], [0]]
    result = UnitResult(1, pa.table(columns, schema=SCHEMA))
    RunStore(owner.archive.batches.files, "e" * 64).put_part("f" * 64, 0, 1, result)

    garbage = await deployment.collector().find()

    assert garbage.held[CONDEMNED] == []


async def test_what_waits_keeps_uploads_and_tables(deployment: Deployment) -> None:
    """Named in a request itself, or in the batch that it refers to."""
    [change_set] = new_change_sets(1)
    subject = deployment.streams.requests(change_set)
    inside, beside, unsent = [await placed(deployment, change_set, n) for n in (1, 2, 3)]
    adopted(deployment, change_set, 1)
    adopted(deployment, change_set, 2)
    request = RequestId()
    large = [PutValue(value_id=new_id(), value=n) for n in range(600)]
    address = await store_batch(
        bucket_of(deployment),
        request,
        [*large, PutValue(value_id=new_id(), value=beside)],
        codecs.CBOR,
    )
    assert isinstance(address, ObjectRef)
    small = {"inline": {"updates": [put(new_id(), inside)]}}
    for each, where in ((request, address), (RequestId(), small)):
        asked = EnqueueUpdatesRequestV1.model_validate(
            {
                "id": each,
                "workspace_id": change_set.workspace_id,
                "change_set_id": change_set.change_set_id,
                "updates_address": where,
            }
        )
        headers, payload = EnqueueUpdatesRequest.encode(asked, codecs.JSON)
        headers.pop(MESSAGE_ID)
        await deployment.js.publish(subject, payload, headers=headers)

    assert await collect(deployment, rounds=1) == {"objects": 1}

    assert await is_uploaded(deployment, change_set, inside)
    assert await is_uploaded(deployment, change_set, beside)
    assert not await is_uploaded(deployment, change_set, unsent)
    assert standing(deployment, inside, beside) == [True, True]


async def test_an_uploaded_file_goes_once_it_is_a_table(deployment: Deployment) -> None:
    """Commits name the table, and need the file no more; another workspace uploads it again."""
    await deployment.start()
    async with connect(deployment.nats.url) as client:
        shops = [await client.workspace(name).create() for name in ("one", "two")]
        for shop in shops:
            table = await placed(deployment, await shop.ids(), 1)
            async with shop.edit() as draft:
                draft.source("orders", table)
            await shop.settled()

            counts = await collect(deployment)

            assert not await is_uploaded(deployment, await shop.ids(), table)
            assert counts == {}
        found = [(await shop.values())["orders"].value for shop in shops]
    assert found == [table, table]
    assert len(list(tables_of(deployment).stored())) == 2


@pytest.mark.long
async def test_branches_and_the_past_keep_tables(deployment: Deployment) -> None:
    """Forked, applied, reverted: each state that can be shown has its tables."""
    await deployment.start(CHECKPOINT_EVERY="2")
    async with connect(deployment.nats.url) as client:
        shop = await client.workspace("shop").create()
        ids = await shop.ids()
        first, second, third = [await placed(deployment, ids, number) for number in (1, 2, 3)]
        async with shop.edit() as draft:
            draft.source("orders", first)
        one = (await shop.values()).commit
        branch, other = await shop.fork("branch"), await shop.fork("other")
        for change_set, table in ((branch, second), (other, third)):
            async with change_set.edit() as draft:
                draft.source("orders", table)
        await branch.apply()
        await shop.settled()
        await deployment.at_rest()
        await collect(deployment)
        assert standing(deployment, first, second, third) == [True, True, True]

        applied = [entry.commit for entry in await shop.log(last=50) if entry.updates]
        plan = await shop.plan_revert(max(applied))
        await shop.enqueue(plan.updates)
        await shop.settled()
        await collect(deployment)

        assert (await shop.values())["orders"].value == first
        assert (await shop.values(at=one))["orders"].value == first
        assert (await other.values())["orders"].value == third
        assert standing(deployment, first, second, third) == [True, True, True]


async def test_an_upload_that_was_condemned_is_used_again(deployment: Deployment) -> None:
    """Its file is gone from NATS; a revert, or a client, refers to it once more."""
    await deployment.start()
    team = await Team(deployment).begin()
    table = adopted(deployment, team.head, 1)
    await collect(deployment, rounds=1)

    await team.send(team.head, [set_to(team.sum.net, table)])

    assert await team.value(team.head, team.sum.net) == table
    workspace = str(team.id)
    assert tables_of(deployment).find(workspace, str(upload_of(table))) is not None


async def test_a_workspace_with_a_damaged_checkpoint_keeps_its_tables(
    deployment: Deployment,
) -> None:
    """What they name is known again once it is repaired; other workspaces' tables go."""
    [change_set], [other] = new_change_sets(1), new_change_sets(1)
    owner = await Owner.of(deployment, change_set, NOTHING)
    table, others = adopted(deployment, change_set, 1), adopted(deployment, other, 2)
    await owner.commit([put(new_id(), table)])
    await owner.checkpoint()
    for _ in range(2):
        await owner.commit([put(new_id(), 1)])
        await owner.checkpoint()
    spoil(open_checkpoints(deployment.settings.store).uri(change_set))

    await collect(deployment)

    assert standing(deployment, table, others) == [True, False]


async def test_the_tables_of_a_deleted_workspace_go_with_it(deployment: Deployment) -> None:
    """They need no collector; what is published of them goes, too."""
    await deployment.start()
    team = await Team(deployment).begin()
    table = await placed(deployment, team.head, 1)
    await team.send(team.head, [set_to(team.sum.net, table)])
    assert standing(deployment, table) == [True]
    await team.workspaces.delete_workspace(team.id)
    await deployment.at_rest()
    files = SharedFiles(deployment.settings.store.root)

    published = SharedFiles(str(deployment.directory / "published"))
    for workspace in (team.id, "other"):
        published.put(f"{workspace}/orders/_delta_log/{0:020d}.json", b"{}")

    members = Membership(deployment.streams, "me")
    job = DeletedDataJob(deployment.streams, files, members, keep=0, published=published)
    await job.purge()

    assert list(tables_of(deployment).stored()) == []
    assert not published.has(str(team.id))
    assert published.has("other")


async def test_values_that_are_to_be_computed_anew_condemn_their_tables(
    deployment: Deployment,
) -> None:
    """Those of queries alone: another function hands on a table of its input."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    workspace, graph = str(change_set.workspace_id), graph_of(owner.own.state)
    values, keys = {}, {}
    for number, runtime in enumerate(["sql", "cel", "sql"]):
        func, value = new_id(), new_id()
        await owner.commit(
            [
                {"putFunc": {"funcId": func, "name": func, "runtime": runtime, "code": "SELECT 1"}},
                {"putValue": {"valueId": value, "funcId": func}},
            ]
        )
        keys[value] = str(upload_of(adopted(deployment, change_set, number)))
        handle = TableHandle(keys[value], "a" * 32, "b" * 32, 1, 1)
        graph.assign(graph.values[value], handle.to_value())
        values[number] = value
    request = RequestId()
    asked = ChangeSetRequestV1.model_validate(
        {
            "id": request,
            "workspace_id": change_set.workspace_id,
            "change_set_id": change_set.change_set_id,
            "action": "recompute",
            "values": [values[0], values[1]],
        }
    )

    settled = SettledRequest(id=request, sequence=9, outcome=RequestOutcome.APPLIED)
    extension = Tables(owner.archive.batches, None, Sources(""))
    done, changes = await recompute(
        owner.own, asked, settled, partial(extension.forget, change_set)
    )

    tables = tables_of(deployment)
    assert (done.outcome, changes) == (RequestOutcome.APPLIED, {"dirty_sequence": 9})
    condemned = [tables.is_condemned(workspace, keys[values[number]]) for number in range(3)]
    assert condemned == [True, False, False]


async def test_a_table_that_is_lost_is_found_by_the_doctor(deployment: Deployment) -> None:
    """Of the present state; one that nothing names is none."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    kept, lost, unnamed = (adopted(deployment, change_set, number) for number in range(3))
    await owner.commit([put(new_id(), kept), put(new_id(), lost)])
    assert await check_history(owner.archive, deep=False) is None

    tables = tables_of(deployment)
    for table in (lost, unnamed):
        key = str(upload_of(table))
        tables.files.delete_directory(table_directory(str(change_set.workspace_id), key))
    finding = await check_history(owner.archive, deep=False)

    assert finding is not None
    assert (finding.severity, finding.repair) == (Severity.ERROR, None)
    assert f"1 table not whole in the store, first {str(upload_of(lost))[:12]}" in finding.what


async def test_a_bit_of_a_table_that_flipped_is_found_by_the_doctor(deployment: Deployment) -> None:
    """If it is to read all; it changes nothing, since it may be a cable that errs."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    table = adopted(deployment, change_set, 1)
    await owner.commit([put(new_id(), table)])
    tables, workspace = tables_of(deployment), str(change_set.workspace_id)
    [file] = tables.get(workspace, str(upload_of(table))).files
    path = Path(tables.files.root, "tables", workspace, file.path)
    damaged = await asyncio.to_thread(flip, path)

    seen = [await check_history(owner.archive, deep=deep) for deep in (False, True)]

    assert [finding is not None for finding in seen] == [False, True]
    assert "1 table not whole in the store" in str(seen[1])
    assert await asyncio.to_thread(path.read_bytes) == damaged


def flip(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[40] ^= 8
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]
)
async def test_whatever_happens_no_named_table_is_removed(
    deployment: Deployment, seed: int
) -> None:
    """Of each state that can be loaded, after each of many steps, and in the end no other is left.

    The collector runs at any moment, with all grace over, while two change sets use their tables.
    """
    draw = random.Random(seed)
    change_sets = new_change_sets(2)
    values, tables = [new_id() for _ in range(3)], tables_of(deployment)
    workspace = str(change_sets[0].workspace_id)
    owners = [await Owner.of(deployment, each, NOTHING) for each in change_sets]
    for step in range(30):
        place = draw.randrange(2)
        owner = owners[place]
        match draw.randrange(5):
            case 0 | 1:
                table = adopted(deployment, change_sets[place], draw.randrange(6))
                count = draw.choice([0, 0, 600])
                more = [put(new_id(), number) for number in range(count)]
                await owner.commit([put(draw.choice(values), table), *more])
            case 2:
                owner.checkpointing._retention = draw.choice([NOTHING, EVERYTHING])
                await owner.checkpoint()
            case 3:
                owners[place] = await Owner.of(deployment, change_sets[place], NOTHING)
            case _:
                await collect(deployment, rounds=draw.randrange(1, 3))
        if step % 5 == 4:
            named = [table for owner in owners for table in await named_in(owner)]
            for digest in named:
                assert tables.get(workspace, digest)

    left = {digest for owner in owners for digest in await named_in(owner)}
    await collect(deployment, rounds=3)
    assert {table.key for table in tables.stored()} == left


async def named_in(owner: Owner) -> set[str]:
    """The uploads that values have in any state that can be loaded."""
    begins, end = await owner.archive.earliest_commit(), owner.own.state.commit
    states = [await owner.archive.load(commit) for commit in range(max(begins, 1), end + 1)]
    found = [upload_of(each.value) for state in states for each in graph_of(state).values.values()]
    return {digest for digest in found if digest is not None}
