"""Whatever breaks: each request applied once, in order, none left, the dependent values right."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import pytest
from nats.aio.msg import Msg

from rebaser_core.commits import (
    CommitV2,
    ControlState,
    FailedAttempts,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    ObjectRef,
)
from rebaser_core.requests import ensure_task
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.processor.dead_letters import ATTEMPTS, REASON
from rebaser_server.processor.ownership import acquire_ownership
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import restart

Fault = Callable[[Deployment], Awaitable[None]]


async def nothing(deployment: Deployment) -> None:
    """The control: if this fails, the harness is at fault and not the Rebaser."""


async def kill_and_start_again(deployment: Deployment) -> None:
    for daemon in deployment.daemons:
        daemon.kill()
    await deployment.start("second")


async def stop_and_start_again(deployment: Deployment) -> None:
    for daemon in deployment.daemons:
        daemon.send(signal.SIGTERM)
        assert await daemon.ended() == 0
    await deployment.start("second")


async def freeze_past_the_lease_beside_another(deployment: Deployment) -> None:
    frozen = deployment.daemons[0]
    frozen.send(signal.SIGSTOP)
    await deployment.start("second")
    await asyncio.sleep(3)  # its tasks are redelivered meanwhile
    frozen.send(signal.SIGCONT)


async def kill_nats_and_start_it_again(deployment: Deployment) -> None:
    await restart(deployment.nats, deployment.js.connection)


async def lose_nats_for_longer_than_the_lease(deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.nats.kill)
    await asyncio.sleep(3)  # for longer than SCALED's ACK_WAIT
    await asyncio.to_thread(deployment.nats.start)


FAULTS = [
    pytest.param(nothing, marks=pytest.mark.long),
    kill_and_start_again,
    pytest.param(stop_and_start_again, marks=pytest.mark.long),
    pytest.param(freeze_past_the_lease_beside_another, marks=pytest.mark.long),
    pytest.param(kill_nats_and_start_it_again, marks=pytest.mark.long),
    lose_nats_for_longer_than_the_lease,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_200_requests_on_5_change_sets_are_applied_once_and_in_order(
    deployment: Deployment, fault: Fault
) -> None:
    """Break something in the middle; the log must show each request once, in the order sent."""
    change_sets, values = new_change_sets(5), ExampleGraph()
    async with recording(deployment) as recorder:
        await deployment.start("first")
        sent = await _enqueue(deployment, change_sets, values, range(20), first=True)

        async def half_way() -> bool:
            return sum(len(recorder.settled(c)) for c in change_sets) >= 60

        await eventually(half_way, within=120)
        later = asyncio.create_task(_enqueue(deployment, change_sets, values, range(20, 40)))
        await fault(deployment)
        for change_set, ids in (await later).items():
            sent[change_set] += ids
        await deployment.at_rest()

        for change_set in change_sets:
            await eventually(lambda c=change_set: recorder.settled(c) == sent[c])
            graph = await deployment.graph(change_set)
            assert graph.values[values.net].value == 39
            assert graph.values[values.gross].value == 39 + 2
            assert graph.roots == {}


async def _enqueue(
    deployment: Deployment,
    change_sets: Sequence[ChangeSet],
    values: ExampleGraph,
    numbers: Sequence[int],
    *,
    first: bool = False,
) -> dict[ChangeSet, list[str]]:
    """One request a number and change set; their ids in the order in which they were stored."""
    sent: dict[ChangeSet, list[str]] = {change_set: [] for change_set in change_sets}
    for number in numbers:
        for change_set in change_sets:
            define = values.define(0, 2) if first and number == numbers[0] else []
            request_id = RequestId()
            await deployment.client.enqueue_updates(
                *change_set, [*define, set_to(values.net, number)], request_id=request_id
            )
            sent[change_set].append(str(request_id))
    return sent


async def test_two_daemons_share_20_change_sets(deployment: Deployment) -> None:
    """An idle one may change hands meanwhile."""
    change_sets, values = new_change_sets(20), ExampleGraph()
    async with recording(deployment) as recorder:
        await deployment.start("one", CONCURRENCY="10")
        await deployment.start("other", CONCURRENCY="10")

        sent = await _enqueue(deployment, change_sets, values, range(5), first=True)
        await deployment.at_rest()

        await eventually(lambda: {each: recorder.settled(each) for each in change_sets} == sent)
        takers = [recorder.owners(change_set) for change_set in change_sets]
    assert {owner for owners in takers for owner in owners} == {"one", "other"}


async def test_a_request_whose_client_died_before_its_task_is_found(deployment: Deployment) -> None:
    """The client's two publishes are not atomic; the reconciler closes the gap (X1)."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, values.define(1, 1))
    await deployment.at_rest()

    message = await _only_the_request(deployment, change_set, values)
    await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert graph.values[values.gross].value == message + 1


async def _only_the_request(
    deployment: Deployment, change_set: ChangeSet, values: ExampleGraph
) -> int:
    updates = InlineBatch.model_validate({"updates": [set_to(values.net, 7)]})
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(inline=updates),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request)
    await deployment.js.publish(deployment.streams.requests(change_set), payload, headers=headers)
    return 7


async def test_a_request_sent_twice_takes_effect_once(deployment: Deployment) -> None:
    """Also when the server has forgotten its id, as it does of deleted messages when restarted."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with recording(deployment) as recorder:
        await deployment.start(QUIET_PERIOD="30")
        request_id = RequestId()
        batch = values.define(1, 1)
        await deployment.client.enqueue_updates(*change_set, batch, request_id=request_id)
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])

        async def both_handled() -> bool:
            return len(recorder.settled(change_set)) == 2

        await eventually(both_handled)
        await kill_nats_and_start_it_again(deployment)
        _, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, batch, request_id=request_id
        )
        response = await reply

    assert response.status.success.updates_performed
    assert (await deployment.graph(change_set)).values[values.net].value == 5


async def test_an_unreadable_request_is_dead_lettered_once_however_often_it_is_sent(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    headers = {MESSAGE_ID: str(RequestId())}
    subject = deployment.streams.requests(change_set)

    async def outcomes() -> list[str]:
        return [
            entry.outcome.value for entry in await deployment.client.change_set(*change_set).log()
        ]

    async def queued() -> int:
        info = await deployment.js.stream_info(deployment.streams.requests_stream)
        return int(info.state.messages)

    await deployment.start(QUIET_PERIOD="30")
    for expected in (["dead"], ["dead", "duplicate"]):
        await deployment.js.publish(subject, b"?", headers=headers)
        await ensure_task(deployment.streams, change_set)
        await eventually(lambda expected=expected: is_equal(outcomes, expected), within=120)
        # Else the server still knows its id after the restart, and does not store it again.
        await eventually(lambda: is_equal(queued, 0), within=120)
        await kill_nats_and_start_it_again(deployment)

    assert len(await deployment.dead_letters(change_set)) == 1


async def is_equal(found: Callable[[], Awaitable[object]], expected: object) -> bool:
    return await found() == expected


async def test_a_stopped_daemon_hands_its_change_sets_over_at_once(deployment: Deployment) -> None:
    change_sets, values = new_change_sets(3), ExampleGraph()
    async with recording(deployment) as recorder:
        first = await deployment.start_with_lease(60, "first", QUIET_PERIOD="60")
        await _enqueue(deployment, change_sets, values, range(2), first=True)

        async def all_handled() -> bool:
            return sum(len(recorder.settled(c)) for c in change_sets) == 6

        await eventually(all_handled)
        second = await deployment.start_with_lease(60, "second")
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
        await deployment.at_rest()

    # The reconciler may have it look again later, as for an update that was due.
    handed_over = {each["change_set"] for each in second.said("taken") if each["delivered"] > 1}
    assert handed_over == {str(each.change_set_id) for each in change_sets}
    owners = [recorder.owners(change_set) for change_set in change_sets]
    assert all(each in (["first"], ["first", "second"]) for each in owners), (
        "W2b: without work none"
    )


async def test_commits_before_the_checkpoint_are_not_replayed(deployment: Deployment) -> None:
    """The log is purged behind the checkpoint before the last, and what is left suffices."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start(CHECKPOINT_EVERY="5", HISTORY__MAX_COMMITS="0")

    await _enqueue(deployment, [change_set], values, range(40), first=True)
    await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert await deployment.archive(change_set).earliest_commit() > 0
    assert graph.values[values.gross].value == 41


async def test_a_quiet_change_set_gives_its_slot_up_when_another_one_waits(
    deployment: Deployment,
) -> None:
    """One slot, an hour of quiet period, three change sets: each has its turn at once."""
    change_sets, values = new_change_sets(3), ExampleGraph()
    await deployment.start(CONCURRENCY="1", QUIET_PERIOD="PT1H")

    async with recording(deployment) as recorder:
        sent = await _enqueue(deployment, change_sets, values, range(3), first=True)

        async def all_handled() -> bool:
            return all(recorder.settled(c) == sent[c] for c in change_sets)

        await eventually(all_handled, within=120)


async def test_a_request_at_which_processes_die_is_buried_in_the_end(
    deployment: Deployment,
) -> None:
    """Nobody is left to count a failure, so the next owner counts the one that did not release."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define())
    died = FailedAttempts(sequence=1, deaths=1)
    line = CommitV2(
        id=RequestId(), previous=0, control=ControlState(epoch=1, owner="x/y", attempts=died)
    )
    await deployment.archive(change_set).log.append([line])

    await deployment.start(MAX_ATTEMPTS="1")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert letter.headers[ATTEMPTS] == "2"


async def test_a_death_counts_at_the_first_request_that_was_not_handled(
    deployment: Deployment,
) -> None:
    """L1: the one before it was committed. W5: that is gone from the queue, too, in the end."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    settled = await deployment.client.enqueue_updates(*change_set, values.define())
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])
    own = await acquire_ownership(deployment.archive(change_set), "former")
    outcome = RequestOutcome.REFUSED
    await own.write(
        SettledRequest(id=settled, sequence=1, outcome=outcome),
        last_sequence=1,
        attempts=FailedAttempts(sequence=2, deaths=1),
    )

    await deployment.start(MAX_ATTEMPTS="1")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert letter.headers[ATTEMPTS] == "2"


async def test_a_request_whose_batch_is_missing_is_tried_again_and_then_buried(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=ObjectRef(object="0" * 64),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request)
    subject = deployment.streams.requests(change_set)
    await deployment.js.publish(subject, payload, headers=headers)
    await deployment.client.enqueue_updates(*change_set, values.define(3, 4))

    await deployment.start(MAX_ATTEMPTS="3")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert letter.headers[ATTEMPTS] == "3"
    assert "no batch" in letter.headers[REASON]
    assert (await deployment.graph(change_set)).values[values.gross].value == 7


async def test_the_tasks_of_a_killed_daemon_are_taken_over_long_before_the_lease_ends(
    deployment: Deployment,
) -> None:
    change_sets, values = new_change_sets(3), ExampleGraph()
    lease = {"ACK_WAIT": "120", "QUIET_PERIOD": "60"}
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    async with recording(deployment) as recorder:
        first = await deployment.start("first", **lease)
        sent = await _enqueue(deployment, change_sets, values, range(2), first=True)

        async def all_handled() -> bool:
            return all(recorder.settled(c) == sent[c] for c in change_sets)

        await eventually(all_handled)
        await deployment.start("second", **lease)
        await heard_after(deployment, "second", "first")
        first.kill()
        for change_set, ids in (
            await _enqueue(deployment, change_sets, values, range(2, 4))
        ).items():
            sent[change_set] += ids
        await eventually(all_handled, within=60)


async def heard_after(deployment: Deployment, listener: str, other: str) -> None:
    """Return once the other's heartbeat came after the first one of the listener, which hears it.

    A daemon listens before it sends its own.
    """
    heard: list[str] = []

    async def hear(heartbeat: Msg) -> None:
        heard.append(heartbeat.subject.rpartition(".")[2])

    async with subscribed(deployment.nc, f"{deployment.streams.join('rebaser.members')}.*", hear):
        for name in (listener, other):
            heard.clear()
            await eventually(lambda name=name: any(each.startswith(name) for each in heard))


@pytest.mark.long
async def test_a_dvu_that_is_due_without_request_or_task_is_found_at_the_next_start(
    deployment: Deployment,
) -> None:
    """What a zombie and two deaths can leave behind: only the log remembers (X2)."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    first = await deployment.start(SPARK__MIN_AFFECTED="0", SPARK__MASTER="nonsense")
    await deployment.client.enqueue_updates(*change_set, values.define(20, 22))

    async def dvu_postponed() -> bool:
        return bool(first.said("dvu postponed"))

    await eventually(dvu_postponed, within=120)
    first.kill()
    await deployment.js.purge(deployment.streams.tasks_stream)

    await deployment.start("second")
    await eventually(lambda: _total(deployment, change_set, values, 42), within=120)


async def _total(
    deployment: Deployment, change_set: ChangeSet, values: ExampleGraph, total: int
) -> bool:
    return (await deployment.graph(change_set)).values[values.gross].value == total
