"""What is looked at before a takeover and after a task is gone, and in which order."""

import pytest

from rebaser_core.commits import ClosedState, CommitV2, ControlState
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.records import ChangeSetStatus
from rebaser_core.registry import Registry
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.commit_log.log import UNSAVED
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.processor.run import find_work, initial_control, process, recheck_after_ack
from rebaser_server.runtime.tasks import Shutdown
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.services import services_of
from tests.integration.test_protocol import overheard

READS = "$JS.API.STREAM.MSG.GET."


async def released(deployment: Deployment, change_set: ChangeSet) -> None:
    """Have a log that says that nothing is to be done."""
    await (await acquire_ownership(deployment.archive(change_set), "former")).release()


async def test_after_its_task_is_gone_requests_are_looked_at_before_the_control_record(
    deployment: Deployment,
) -> None:
    """W12: one that is handled between the two reads is in the record that is read afterwards."""
    [change_set], services = new_change_sets(1), services_of(deployment)
    streams = deployment.streams
    await released(deployment, change_set)

    async with overheard(deployment, f"{READS}>") as heard:
        await recheck_after_ack(services, change_set)

    read = [subject.removeprefix(READS) for subject in heard]
    assert read == [streams.requests_stream, streams.commits_stream]
    assert await deployment.nothing_left()


async def test_where_no_request_waits_the_control_record_is_read_once_more(
    deployment: Deployment,
) -> None:
    """W2b: the first answer may be older than that there is no request."""
    [change_set], services = new_change_sets(1), services_of(deployment)
    streams = deployment.streams
    await released(deployment, change_set)

    async with overheard(deployment, f"{READS}>") as heard:
        assert await find_work(services, change_set) is None

    read = [subject.removeprefix(READS) for subject in heard]
    assert read[-1] == streams.commits_stream
    assert read.count(streams.commits_stream) == 2
    assert read.count(streams.requests_stream) > 0


@pytest.mark.parametrize(
    ("control", "headers"),
    [
        (ControlState(epoch=1, owner="former/1"), {}),
        (ControlState(epoch=1, dirty_sequence=1), {}),
        (ControlState(epoch=1), {UNSAVED: "1"}),
    ],
    ids=["an owner that died", "an update", "a checkpoint"],
)
async def test_what_a_run_left_undone_is_work_without_a_request(
    deployment: Deployment, control: ControlState, headers: dict[str, str]
) -> None:
    """W2b: and so is what one that died may have left, which its successor finds out."""
    [change_set], services = new_change_sets(1), services_of(deployment)
    last = CommitV2(id=RequestId(), previous=0, control=control)
    await deployment.archive(change_set).log.append([last], {last.id: headers})

    assert await find_work(services, change_set) is not None


async def test_a_branch_is_begun_though_it_has_no_request_and_no_log(
    deployment: Deployment,
) -> None:
    """W2b: it does not hear of its head's changes before."""
    services, workspaces = services_of(deployment), deployment.client.workspaces
    workspace = await workspaces.create("prices")
    workspace_id, head = workspace.record.workspace_id, workspace.record.head
    await released(deployment, ChangeSet(workspace_id, head))
    fork = await workspaces.fork(workspace_id, "branch")

    assert await find_work(services, ChangeSet(workspace_id, fork.change_set_id)) is not None
    assert await find_work(services, ChangeSet(workspace_id, head)) is None


async def test_a_branch_whose_owner_died_before_it_was_begun_is_begun(
    deployment: Deployment,
) -> None:
    """W2b: its log says that it is a branch, and not how far it has merged head."""
    services, workspaces = services_of(deployment), deployment.client.workspaces
    registry = Registry(deployment.streams)
    workspace_id = (await workspaces.create("prices")).record.workspace_id
    fork = await workspaces.fork(workspace_id, "branch")
    branch = ChangeSet(workspace_id, fork.change_set_id)
    own = await acquire_ownership(
        deployment.archive(branch), "former", lambda: initial_control(registry, branch)
    )
    await own.release()

    assert await find_work(services, branch) is not None


async def test_a_closing_that_the_registry_does_not_know_is_reported(
    deployment: Deployment,
) -> None:
    """W2b: the run that closed it died before it said so."""
    services, registry = services_of(deployment), Registry(deployment.streams)
    workspace = await deployment.client.workspaces.create("prices")
    head = ChangeSet(workspace.record.workspace_id, workspace.record.head)
    own = await acquire_ownership(deployment.archive(head), "former")
    await own.write(closing=ClosedState(status=ChangeSetStatus.DELETED, request=RequestId()))
    await own.release()
    assert await find_work(services, head) is not None

    await registry.update(head, lambda r: r.model_copy(update={"status": "deleted"}))

    assert await find_work(services, head) is None


async def test_a_turn_does_not_end_between_a_request_and_the_update_that_it_needs(
    deployment: Deployment,
) -> None:
    """W10c: without a request nothing would show soon that an update is due."""
    [change_set], services = new_change_sets(1), services_of(deployment)
    slots = SlotPool(deployment.streams, 1, Fairness())
    slot = slots.acquire(change_set)
    assert slot is not None
    slot.expired = True
    await deployment.client.enqueue_updates(*change_set, ExampleGraph().define())

    await process(services, change_set, Shutdown(), slot)

    _, last = await deployment.archive(change_set).log.last()
    assert last is not None
    assert (last.control.last_sequence, last.control.dvu_due) == (1, False)
