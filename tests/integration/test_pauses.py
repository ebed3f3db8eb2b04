"""What is paused is left alone until it is resumed, and nothing is lost meanwhile (P1 to P5)."""

import asyncio
from typing import Any

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import KeyValue, PullConsumer, StreamConfig
from rebaser_core.jetstream.configs import SubjectTransform
from rebaser_core.records import PauseScope
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster import pauses
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor, PauseStore
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.cluster.tasks import LeaseSettings, LeaseTerms, TaskRunner
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.service.composition import provisioner_of
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.blocking_function import Gate
from tests.helpers.deployment import Daemon, Deployment, new_change_sets, rebaser_with, recording
from tests.helpers.eventually import eventually
from tests.helpers.services import services_of


@pytest.fixture
def book(deployment: Deployment) -> PauseStore:
    return PauseStore(deployment.streams)


async def waiting(deployment: Deployment, change_set: ChangeSet) -> int:
    subject = deployment.streams.requests(change_set)
    found = await deployment.js.stream_subjects(deployment.streams.requests_stream, subject)
    return found.get(subject, 0)


async def seen(daemon: Daemon, *scopes: PauseScope) -> None:
    """The daemon knows that these are paused."""
    keys = sorted(scope.key for scope in scopes)
    await eventually(
        lambda: [sorted(x["paused"]) for x in daemon.said("pauses changed")][-1:] == [keys],
        within=60,
    )


async def value_of(deployment: Deployment, change_set: ChangeSet, value_id: str) -> Any:
    found = (await deployment.graph(change_set)).values.get(value_id)
    return None if found is None else found.value


SCOPES = {
    "change set": lambda paused: PauseScope(*paused),
    "workspace": lambda paused: PauseScope(paused.workspace_id),
}


@pytest.mark.parametrize("scope_of", SCOPES.values(), ids=SCOPES)
async def test_requests_of_what_is_paused_queue_in_order_and_are_applied_once_it_is_resumed(
    deployment: Deployment, book: PauseStore, scope_of: Any
) -> None:
    [paused], [other] = new_change_sets(1), new_change_sets(1)
    daemon = await deployment.start()
    await book.pause(scope_of(paused), by="ada", reason="a look")
    await seen(daemon, scope_of(paused))
    values = [new_id() for _ in range(3)]
    async with recording(deployment) as recorder:
        sent = [
            str(await deployment.client.enqueue_updates(*paused, [put(value, 1)]))
            for value in values
        ]
        _, reply = await deployment.client.enqueue_updates_with_reply(*other, [put(new_id(), 1)])
        await asyncio.wait_for(reply, 60)

        async def set_aside() -> bool:
            tasks = await deployment.js.stream_subjects(deployment.streams.tasks_stream)
            return deployment.streams.task(paused) not in tasks

        await eventually(set_aside)
        assert await waiting(deployment, paused) == 3
        assert paused not in recorder.lines

        assert await book.resume(scope_of(paused)) == 1
        await deployment.at_rest()

        await eventually(lambda: recorder.settled(paused) == sent)


@pytest.mark.long
async def test_a_pause_survives_the_death_of_all_rebasers(
    deployment: Deployment, book: PauseStore
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    first = await deployment.start()
    await book.pause(PauseScope())
    await seen(first, PauseScope())
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    first.kill()

    second = await deployment.start()
    await seen(second, PauseScope())
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])
    second.kill()
    assert await waiting(deployment, change_set) == 2
    await book.resume(PauseScope())  # nobody is there to hear of it
    await deployment.start()
    await deployment.at_rest()

    assert await value_of(deployment, change_set, values.gross) == 7


async def test_pauses_are_read_at_a_start_and_at_each_change(
    deployment: Deployment, book: PauseStore
) -> None:
    """P1: at once, however long the period is."""
    [first, then] = (PauseScope(*each) for each in new_change_sets(2))
    await book.pause(first)
    monitor = PauseMonitor(deployment.streams)

    async with background(monitor.run(1e6)):
        await eventually(lambda: monitor.known.keys() == {first})
        await book.pause(then)
        await eventually(lambda: monitor.known.keys() == {first, then})
        await book.resume(first)
        await eventually(lambda: monitor.known.keys() == {then})


async def test_a_pause_that_is_heard_of_before_it_is_stored_is_known_soon(
    deployment: Deployment, book: PauseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: NATS hands a message to subscribers and to the stream, which may be slow.

    Here the stream takes another subject for it, so that each of the two has its moment.
    """
    js, bucket = deployment.js, deployment.streams.pauses_bucket
    [first, then] = (PauseScope(*each) for each in new_change_sets(2))
    await book.pause(first)
    payload = (await KeyValue(js, bucket).get(first.key)).value
    config = await js.stream_config(f"KV_{bucket}")
    aside = SubjectTransform(src="aside.>", dest=f"$KV.{bucket}.>")
    await js.update_stream(config | StreamConfig(subjects=("aside.>",), subject_transform=aside))
    monkeypatch.setattr(pauses, "_STORED_WITHIN", 6.0)
    monitor = PauseMonitor(deployment.streams)

    async with background(monitor.run(1e6)):
        await eventually(lambda: monitor.known.keys() == {first})
        await js.connection.publish(f"$KV.{bucket}.{then.key}", payload)
        await asyncio.sleep(0.5)  # it is heard of, and the bucket is read
        assert monitor.known.keys() == {first}
        await js.publish(f"aside.{then.key}", payload)

        await eventually(lambda: monitor.known.keys() == {first, then}, within=60)


async def test_pauses_are_read_once_a_period_though_no_change_is_heard_of(
    deployment: Deployment, book: PauseStore
) -> None:
    """P1: what is said of a change may be lost."""
    [change_set] = new_change_sets(1)
    await book.pause(PauseScope(*change_set))
    monitor = PauseMonitor(deployment.streams)

    async with background(monitor.run(0.1)):
        await eventually(lambda: monitor.is_paused(change_set))
        await deployment.js.purge(f"KV_{deployment.streams.pauses_bucket}")  # which is not said
        await eventually(lambda: not monitor.is_paused(change_set))


async def test_the_reconcilers_make_the_tasks_that_a_resume_did_not(
    deployment: Deployment, book: PauseStore
) -> None:
    """Whoever resumed it died after the pause was taken away (P5): X1 finds the request."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await deployment.start()
    await book.pause(PauseScope(*change_set))
    await seen(daemon, PauseScope(*change_set))
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))

    bucket = KeyValue(deployment.js, deployment.streams.pauses_bucket)
    await bucket.purge(PauseScope(*change_set).key)
    await deployment.at_rest()

    assert await value_of(deployment, change_set, values.gross) == 3


async def test_a_rebaser_that_has_not_heard_of_a_resume_asks_before_it_leaves_work_alone(
    deployment: Deployment, book: PauseStore
) -> None:
    """P2: the poke of a resume may find the task there that is about to be removed."""
    [change_set, other] = new_change_sets(2)
    await book.pause(PauseScope(*change_set))
    await book.pause(PauseScope(*other))
    late = PauseMonitor(deployment.streams)  # nobody tells it anything
    await late.refresh()
    assert late.is_paused(change_set)
    await book.resume(PauseScope(*change_set))

    assert late.is_paused(change_set)
    assert not await late.is_still_paused(change_set)

    assert not late.is_paused(change_set)
    assert await late.is_still_paused(other)


async def test_a_task_that_a_resume_found_there_is_made_again_by_who_removes_it(
    deployment: Deployment, book: PauseStore
) -> None:
    """P2, step by step: known as paused here, resumed by its operator, set aside, poked for."""
    [change_set] = new_change_sets(1)
    js, streams, services = deployment.js, deployment.streams, services_of(deployment)
    slots = SlotPool(streams, 1, Fairness())
    late = PauseMonitor(streams)
    writes = WriteWatch(provisioner_of(js, deployment.settings))
    terms = LeaseTerms(LeaseSettings(2, 0.4))
    runner = TaskRunner(services, terms, Shutdown(), slots, late, writes)
    await book.pause(PauseScope(*change_set))
    await late.refresh()
    await deployment.client.enqueue_updates(*change_set, [put(new_id(), 1)])
    async with PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks:
        task = await tasks.take(1)
        assert task is not None
        await book.resume(PauseScope(*change_set))

        await runner.dispatch(task)

        made = await js.get_message(streams.tasks_stream, last_by_subject=streams.task(change_set))
        assert made is not None
        assert made.sequence > task.stream_sequence
        assert slots.busy == 0


async def test_the_update_in_hand_is_finished_and_no_other_is_begun(
    deployment: Deployment, book: PauseStore, gate: Gate
) -> None:
    """P4; and nobody pokes for it (P3), though an update is due and a request waits."""
    [change_set] = new_change_sets(1)
    daemon = await deployment.start_with_lease()
    gate.close()
    async with recording(deployment) as recorder:
        await deployment.client.enqueue_updates(*change_set, gate.define(1))
        await eventually(gate.seen, within=60)
        await deployment.client.enqueue_updates(*change_set, [set_to(gate.source, 2)])
        await eventually(lambda: len(recorder.settled(change_set)) == 2)

        await book.pause(PauseScope(*change_set))
        await seen(daemon, PauseScope(*change_set))
        with pytest.raises(AssertionError):
            await eventually(lambda: bool(daemon.said("paused")), within=0.5)
        gate.open()
        await eventually(lambda: bool(daemon.said("paused")))
        await eventually(lambda: not recorder.lines[change_set][-1].control.owner)

    claims = {line.control.claim.id for line in recorder.lines[change_set] if line.control.claim}
    assert len(claims) == 1
    assert await value_of(deployment, change_set, gate.value) == 1
    gate.forget()
    await deployment.client.enqueue_updates(*change_set, [set_to(gate.source, 3)])
    await daemon_is_idle(deployment)
    assert not gate.seen()
    assert await waiting(deployment, change_set) == 1
    await book.resume(PauseScope(*change_set))
    await deployment.at_rest()
    assert await value_of(deployment, change_set, gate.value) == 3


async def daemon_is_idle(deployment: Deployment) -> None:
    """No task is there: what was poked for is set aside."""

    async def no_task() -> bool:
        info = await deployment.js.stream_info(deployment.streams.tasks_stream)
        return info.state.messages == 0

    await eventually(no_task)


async def paused_amid_update(
    deployment: Deployment, book: PauseStore, gate: Gate
) -> tuple[Daemon, ChangeSet]:
    """A change set whose update goes on until the gate is opened, and its daemon."""
    [change_set] = new_change_sets(1)
    daemon = await deployment.start()
    gate.close()
    await deployment.client.enqueue_updates(*change_set, gate.define(1))
    await eventually(gate.seen, within=60)
    await book.pause(PauseScope(*change_set))
    await seen(daemon, PauseScope(*change_set))
    return daemon, change_set


async def test_requests_that_arrive_during_a_pause_drain_are_not_applied(
    deployment: Deployment, book: PauseStore, gate: Gate
) -> None:
    """The update's result is committed all the same: it does not stand in line."""
    daemon, change_set = await paused_amid_update(deployment, book, gate)

    await deployment.client.enqueue_updates(*change_set, [set_to(gate.source, 2)])
    gate.open()
    await eventually(lambda: bool(daemon.said("paused")))

    assert await value_of(deployment, change_set, gate.source) == 1
    assert await value_of(deployment, change_set, gate.value) == 1
    assert await waiting(deployment, change_set) == 1
    await book.resume(PauseScope(*change_set))
    await deployment.at_rest()
    assert await value_of(deployment, change_set, gate.value) == 2


async def test_a_resume_during_the_pause_drain_continues_the_run(
    deployment: Deployment, book: PauseStore, gate: Gate
) -> None:
    daemon, change_set = await paused_amid_update(deployment, book, gate)
    await book.resume(PauseScope(*change_set))
    await seen(daemon)

    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, [set_to(gate.source, 2)]
    )
    await asyncio.wait_for(reply, 60)  # the gate is closed: requests do not wait for updates
    gate.open()
    await deployment.at_rest()

    assert await value_of(deployment, change_set, gate.value) == 2
    assert not daemon.said("paused")


async def test_requests_that_wait_because_of_a_pause_are_no_alarm(
    deployment: Deployment, book: PauseStore
) -> None:
    [paused, other] = new_change_sets(2)
    await book.pause(PauseScope(*paused))
    daemon = await deployment.start(
        command=rebaser_with("rebaser_server.cluster.upkeep:ALERT_AFTER", "0.5")
    )
    await deployment.client.enqueue_updates(*paused, [put(new_id(), 1)])
    subject = deployment.streams.requests(other)
    headers = {
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "99",
        "X-CONTENT-TYPE": "application/json",
    }

    await deployment.js.publish(subject, b"{}", headers=headers)

    await eventually(lambda: bool(daemon.said("requests wait too long")), within=60)
    for told in daemon.said("requests wait too long"):
        assert list(told["seconds"]) == [subject]
