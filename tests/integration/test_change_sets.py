"""Branches of a workspace: forked, edited beside head, reached by it, reviewed, applied, closed."""

import asyncio
import shutil
from pathlib import Path

import pytest

from rebaser_client.client import RebaserClient
from rebaser_client.errors import RequestRefused
from rebaser_core.errors import NoSuchChangeSet, QuotaExceeded, TooLarge
from rebaser_core.ids import ChangeSet, ChangeSetId
from rebaser_core.records import ChangeSetRecordV1
from rebaser_core.registry import Registry
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.branches import BranchRunner
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.processor.run import initial_control
from rebaser_server.queries.comparisons import diff
from tests.helpers.batches import limits, new_id, put, set_to
from tests.helpers.deployment import Deployment, deployed, new_change_sets, rebaser_with
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.helpers.scripted_owner import NOTHING
from tests.helpers.workspace import Team


@pytest.fixture
async def team(deployment: Deployment) -> Team:
    await deployment.start()
    return await Team(deployment).begin()


async def test_a_branch_begins_as_head_is_and_its_edits_are_its_own(team: Team) -> None:
    branch = await team.fork()

    await team.send(branch, [set_to(team.sum.net, 40)])

    await team.becomes(branch, team.sum.gross, 42)
    assert await team.value(team.head, team.sum.net) == 1
    await team.becomes(team.head, team.sum.gross, 3)


async def test_heads_changes_reach_an_owned_branch(deployment: Deployment) -> None:
    await deployment.start(QUIET_PERIOD="60")  # however long the machine takes, it is owned
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])

    await team.send(team.head, [set_to(team.sum.tax, 60)])

    await team.becomes(branch, team.sum.gross, 100)


async def test_heads_changes_reach_an_idle_branch_at_its_next_run(team: Team) -> None:
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    await team.deployment.at_rest()
    for number in range(5):
        await team.send(team.head, [set_to(team.sum.tax, number)])
    await team.deployment.at_rest()
    assert await team.value(branch, team.sum.tax) == 2

    await team.client.change_set(*branch).refresh()

    await team.becomes(branch, team.sum.gross, 44)


async def test_heads_changes_reach_a_branch_although_heads_log_was_purged(
    deployment: Deployment,
) -> None:
    await deployment.start(CHECKPOINT_EVERY="2", HISTORY__RETENTION="0.001")
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    await deployment.at_rest()
    more, last = new_id(), 0
    log = deployment.archive(team.head).log
    cursor = (await deployment.archive(branch).load()).control.branch.cursor

    async def is_purged_behind_the_cursor() -> bool:
        nonlocal last
        last += 1
        await team.send(team.head, [set_to(team.sum.tax, last), put(more, last)])
        first = await log.oldest()
        return first is not None and first.previous > cursor

    await eventually(is_purged_behind_the_cursor, within=120)
    await deployment.at_rest()

    await team.client.change_set(*branch).refresh()

    await team.becomes(branch, team.sum.gross, 40 + last)
    assert await team.value(branch, more) == last


async def test_applied_head_is_what_the_branch_was(team: Team) -> None:
    branch, added = await team.fork(), new_id()
    await team.send(branch, [set_to(team.sum.net, 40), put(added, "new")])
    await team.send(team.head, [set_to(team.sum.tax, 60)])

    record = await team.client.change_set(*branch).apply()

    assert record.status == "applied"
    assert record.application is not None
    assert record.application.commit > 0
    await team.becomes(team.head, team.sum.gross, 100)
    assert await team.value(team.head, added) == "new"
    outcome = await team.client.change_set(*team.head).outcome(record.application.at_head)
    assert outcome.state == "settled"


async def authors(client: RebaserClient, change_set: ChangeSet) -> list[tuple[int, str | None]]:
    log = await client.change_set(*change_set).log()
    return [(entry.commit, entry.author) for entry in log if not entry.computed]


async def test_the_log_names_who_asked(team: Team) -> None:
    branch, deployment = await team.fork(), team.deployment
    async with RebaserClient.on(deployment.nc, deployment.js, author="Žofie Nováková") as client:
        _, reply = await client.enqueue_updates_with_reply(*branch, [set_to(team.sum.net, 7)])
        await reply
        record = await client.change_set(*branch).apply()
        fork = await client.workspaces.fork(team.id, "another")
    await team.send(team.head, [set_to(team.sum.net, 8)])

    [(_, edited), (_, applied)] = await authors(team.client, branch)
    *_, (_, by_branch), (_, unknown) = await authors(team.client, team.head)
    assert edited == applied == by_branch == fork.by == "Žofie Nováková"
    assert record.status == "applied"
    assert unknown is None


async def test_where_there_is_nothing_to_apply_it_is_applied_without_a_commit(team: Team) -> None:
    branch = await team.fork()

    record = await team.client.change_set(*branch).apply()

    assert (record.status, record.application.commit) == ("applied", None)


@pytest.mark.parametrize(
    ("how", "what"), [("apply", "applied"), ("abandon", "abandoned"), ("delete", "deleted")]
)
async def test_a_closed_branch_refuses_what_comes_after_and_says_why(
    team: Team, how: str, what: str
) -> None:
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])

    await getattr(team.client.change_set(*branch), how)()
    status = await team.send(branch, [set_to(team.sum.net, 50)])

    assert status.error.message == f"refused: change set is {what}"
    assert await team.deployment.dead_letters(branch) == []

    async def registered() -> bool:
        return (await team.client.change_set(*branch).describe()).status == what

    await eventually(registered)
    await team.deployment.at_rest()
    assert await team.value(team.head, team.sum.net) == (40 if how == "apply" else 1)


async def test_requests_stored_before_it_was_applied_are_in_and_those_after_are_refused(
    team: Team,
) -> None:
    """Sent without waiting: what counts is the order in which they were stored."""
    branch = await team.fork()
    before = [
        await team.client.enqueue_updates(*branch, [set_to(team.sum.net, n)]) for n in range(5)
    ]
    applying = asyncio.create_task(team.client.change_set(*branch).apply())

    async def waiting() -> bool:
        return applying.done()

    await eventually(waiting, within=120)
    await applying
    after = await team.send(branch, [set_to(team.sum.net, 99)])

    assert "refused" in after.error.message
    assert await team.value(team.head, team.sum.net) == 4
    for request in before:
        known = await team.client.change_set(*branch).outcome(request)
        assert known.response.status.success.commit > 0


async def test_another_difference_than_the_reviewed_one_is_not_applied(team: Team) -> None:
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])

    with pytest.raises(RequestRefused, match="not the one that was reviewed"):
        await team.client.change_set(*branch).apply(reviewed="0" * 64)

    status = await team.send(branch, [set_to(team.sum.net, 41)])
    assert status.success.commit > 0
    await team.client.change_set(*branch).apply()
    assert await team.value(team.head, team.sum.net) == 41


@pytest.mark.parametrize(("value", "reason"), [("x", "no value 'x'"), ("net", "set it instead")])
async def test_what_is_not_there_or_not_computed_is_not_computed_anew(
    team: Team, value: str, reason: str
) -> None:
    name = team.sum.net if value == "net" else value

    with pytest.raises(RequestRefused, match=reason):
        await team.client.change_set(*team.head).recompute([name])


async def test_a_branch_of_a_branch_begins_with_its_edits(team: Team) -> None:
    one = await team.fork("one")
    await team.send(one, [set_to(team.sum.net, 40)])
    two = await team.fork("two", base=one.change_set_id)
    await team.send(two, [set_to(team.sum.tax, 60)])

    await team.becomes(two, team.sum.gross, 100)
    await team.client.change_set(*two).apply()

    assert await team.value(team.head, team.sum.net) == 40
    await team.client.change_set(*one).refresh()  # it may be asleep by now
    await team.becomes(one, team.sum.tax, 60)


async def test_a_branch_can_begin_at_an_earlier_commit(team: Team) -> None:
    status = await team.send(team.head, [set_to(team.sum.net, 10)])
    await team.send(team.head, [set_to(team.sum.net, 20)])
    branch = await team.fork(commit=status.success.commit)
    await team.client.change_set(*branch).refresh()

    restored = await team.deployment.archive(branch).load(at=None)

    assert restored.control.branch.base.commit == status.success.commit
    await team.becomes(branch, team.sum.net, 20)  # and then it catches up


async def test_a_commit_that_is_not_kept_cannot_be_forked_and_the_branch_says_so(
    team: Team,
) -> None:
    with pytest.raises(RequestRefused, match="the log ends at commit"):
        await team.fork(commit=10**9)

    def have_it(record: ChangeSetRecordV1) -> ChangeSetRecordV1:  # as other clients may
        assert record.base is not None
        later = record.base.model_copy(update={"commit": 10**9})
        return record.model_copy(update={"base": later})

    branch = await team.fork()
    await team.workspaces.registry.update(branch, have_it)

    with pytest.raises(RequestRefused, match=r"base cannot be had any more.*the log ends at"):
        await team.client.change_set(*branch).refresh()

    assert (await team.client.change_set(*branch).describe()).status in ("open", "abandoned")


async def test_head_cannot_be_closed_and_strangers_are_not_registered(team: Team) -> None:
    with pytest.raises(RequestRefused, match="only a branch can be told to abandon"):
        await team.client.change_set(*team.head).abandon()
    with pytest.raises(NoSuchChangeSet):
        await team.client.change_set(team.id, ChangeSetId()).describe()


async def test_they_are_listed_found_by_name_and_renamed(team: Team) -> None:
    one, two = await team.fork("one"), await team.fork("two")
    await team.client.change_set(*two).abandon()
    await team.client.change_set(*one).rename("uno")

    async def listed() -> bool:
        records = await team.workspaces.change_sets(team.id)
        return [record.name for record in records] == ["head", "uno"]

    await eventually(listed)
    client = team.deployment.client
    assert (await client.change_set("prices/uno").ids()).change_set_id == one.change_set_id
    assert len(await team.workspaces.change_sets(team.id, closed=True)) == 3
    assert [record.name for record in await team.workspaces.all()] == ["prices"]
    with pytest.raises(NoSuchChangeSet, match="has no change set 'one'"):
        await client.change_set("prices/one").ids()


async def test_the_data_of_a_deleted_branch_is_gone_after_the_retention_time(
    deployment: Deployment,
) -> None:
    await deployment.start(RECONCILE_INTERVAL="0.05", CHANGE_SETS__DELETED_RETENTION="0.1")
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    await deployment.at_rest()
    directory = Path(checkpoints_of(deployment.archive(branch)).uri(branch))
    assert await asyncio.to_thread(directory.exists)

    await team.client.change_set(*branch).delete()

    async def gone() -> bool:
        try:
            await team.client.change_set(*branch).describe()
        except NoSuchChangeSet:
            return not await asyncio.to_thread(directory.exists)
        return False

    await eventually(gone, within=120)
    lines = await deployment.js.stream_subjects(deployment.streams.commits_stream)
    assert lines[deployment.streams.commits(branch)] == 1
    status = await team.send(branch, [set_to(team.sum.net, 41)])
    assert status.error.message == "refused: change set is deleted"


async def test_an_update_too_large_is_refused_by_client_and_server(
    deployment: Deployment,
) -> None:
    [change_set], small = new_change_sets(1), limits(value_bytes=10, inputs=2, name_depth=2)
    await deployment.start(LIMITS__VALUE_BYTES="10")
    many = {"values": [new_id() for _ in range(3)]}
    long, wide = new_id(), new_id()
    too_large = {
        f"'{long}': a value of more than 10 bytes": put(long, "0123456789"),
        f"'{wide}': 3 inputs": {"putValue": {"valueId": wide, "funcId": new_id(), "inputs": many}},
        "'a/b/c': a name of 3 parts": {"putValue": {"valueId": new_id(), "name": "a/b/c"}},
    }
    async with RebaserClient.on(deployment.nc, deployment.js, limits=small) as client:
        for complaint, update in too_large.items():
            with pytest.raises(TooLarge, match=f"update 0, {complaint}"):
                await client.enqueue_updates(*change_set, [update])

    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, [put(long, "0123456789")]
    )
    async with asyncio.timeout(120):
        status = (await reply).status

    says = f"refused: update 0, '{long}': a value of more than 10 bytes as JSON"
    assert status.error.message == says


async def test_a_workspace_has_no_more_change_sets_than_it_may(deployment: Deployment) -> None:
    """Said before anything is done; head counts."""
    small = limits(change_sets=3)
    async with RebaserClient.on(deployment.nc, deployment.js, limits=small) as client:
        workspace = (await client.workspaces.create("small")).record.workspace_id
        for name in ("one", "two"):
            await client.workspaces.fork(workspace, name)

        with pytest.raises(QuotaExceeded, match="has 3 change sets already"):
            await client.workspaces.fork(workspace, "three")

        assert len(await client.workspaces.change_sets(workspace)) == 3


async def test_branches_work_behind_a_prefix(nats_server: NatsServer, tmp_path: Path) -> None:
    async with deployed(nats_server, tmp_path, prefix="P") as deployment:
        await deployment.start()
        team = await Team(deployment).begin()
        branch = await team.fork()
        await team.send(branch, [set_to(team.sum.net, 40)])
        await team.client.change_set(*branch).apply()

        assert await team.value(team.head, team.sum.net) == 40
        assert "KV_P_REBASER_CHANGE_SETS" in await deployment.js.stream_names()


async def test_the_difference_shows_both_sides_where_both_changed(team: Team) -> None:
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    await team.becomes(branch, team.sum.gross, 42)
    await team.send(team.head, [set_to(team.sum.net, 7)])
    await team.becomes(team.head, team.sum.gross, 9)
    await team.deployment.at_rest()

    found = await diff(team.deployment.archive(branch), computed=True)

    [change] = found.changes
    assert (change.base, change.head, change.branch, change.both) == (1, 7, 40, True)
    assert [(c.head, c.branch) for c in found.computed] == [(9, 42)]
    record = await team.client.change_set(*branch).apply(reviewed=found.digest)
    assert record.status == "applied"
    assert (await diff(team.deployment.archive(branch))).updates == []


async def test_with_a_single_slot_a_branch_gives_way_to_the_head_it_waits_for(
    deployment: Deployment,
) -> None:
    """Or both would wait for the other."""
    await deployment.start(CONCURRENCY="1")
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])

    record = await team.client.change_set(*branch).apply()

    assert record.status == "applied"
    assert await team.value(team.head, team.sum.net) == 40


async def test_a_branch_that_lost_its_base_and_its_checkpoint_is_not_taken_for_empty(
    deployment: Deployment,
) -> None:
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    branch = await team.fork(commit=1)
    await deployment.at_rest()
    daemon.kill()
    archive, registry = deployment.archive(branch), Registry(deployment.streams)
    own = await acquire_ownership(archive, "mortal", lambda: initial_control(registry, branch))
    checkpointing = Checkpointer(own, 10**9, NOTHING)
    await BranchRunner(deployment.streams, own, None, checkpointing, 60).start()
    await asyncio.to_thread(shutil.rmtree, checkpoints_of(archive).uri(branch))
    head = deployment.archive(team.head).log
    last, _ = await head.last()

    await head.purge(last)

    with pytest.raises(HistoryInconsistent, match="lost its base"):
        await archive.load()


async def test_a_branch_that_head_refuses_stays_open_with_the_reason(
    deployment: Deployment,
) -> None:
    await deployment.start(
        command=rebaser_with("rebaser_core.updates:BatchLimits.batch_updates", "4")
    )
    team = await Team(deployment).begin()
    branch, added = await team.fork(), [new_id() for _ in range(6)]
    for some in (added[:3], added[3:]):
        await team.send(branch, [put(value, 1) for value in some])

    with pytest.raises(RequestRefused, match="a batch of 6 updates; at most 4 are allowed"):
        await team.client.change_set(*branch).apply()

    for value in added[:3]:
        status = await team.send(branch, [{"removeValue": {"valueId": value}}])
        assert status.success.commit > 0
    record = await team.client.change_set(*branch).apply()
    assert (record.status, record.problem) == ("applied", None)
    assert await team.value(team.head, added[5]) == 1
