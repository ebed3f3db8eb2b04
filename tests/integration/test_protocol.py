"""Rules of the protocol that show in what is asked of NATS and in what the log says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from itertools import pairwise
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.commits import DvuClaim
from rebaser_core.errors import NotConfirmed
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStream, PullConsumer
from rebaser_core.records import PauseScope
from rebaser_core.requests import ensure_task, publish_request
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_core.versioning import MESSAGE_ID, REPLY_INBOX
from rebaser_server.cluster import tasks as cluster_tasks
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.cluster.reconciler import Reconciler
from rebaser_server.cluster.tasks import LeaseSettings, LeaseTerms, ack_and_delete, lease
from rebaser_server.errors import Fenced, Interrupted, LeaseLost, RetryLater
from rebaser_server.processor.ownership import acquire_ownership
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, Recorder, new_change_sets, recording
from tests.helpers.eventually import eventually


@asynccontextmanager
async def overheard(deployment: Deployment, *subjects: str) -> AsyncIterator[list[str]]:
    """The subjects of all that is said on these while the body runs."""
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    subscriptions = [await deployment.nc.subscribe(subject, cb=hear) for subject in subjects]
    await deployment.nc.flush()
    yield heard
    await deployment.nc.flush()
    for subscription in subscriptions:
        await subscription.unsubscribe()


async def test_decisive_reads_go_to_the_stream_leader(deployment: Deployment) -> None:
    """S-4: a replica may not have yet what was stored a moment ago."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with overheard(deployment, "$JS.API.DIRECT.>", "$JS.API.STREAM.MSG.GET.>") as heard:
        await deployment.start()
        await deployment.client.enqueue_updates(*change_set, values.define())
        await deployment.at_rest()

    streams = {subject.rpartition(".")[2] for subject in heard if ".MSG.GET." in subject}
    assert {deployment.streams.requests_stream, deployment.streams.commits_stream} <= streams
    assert not [subject for subject in heard if ".DIRECT." in subject]


async def test_a_daemon_takes_no_task_for_which_it_has_no_slot(deployment: Deployment) -> None:
    """W1: one that waits here unheard would be redelivered. W13: a slot is free once it is done."""
    change_sets, values = new_change_sets(3), ExampleGraph()
    daemon = await deployment.start_with_lease(60, CONCURRENCY="1", QUIET_PERIOD="1")
    held = []

    for change_set in change_sets:
        await deployment.client.enqueue_updates(*change_set, values.define())

    async def all_quiet() -> bool:
        stream = deployment.streams.tasks_stream
        held.append((await deployment.js.consumer_info(stream, TASKS_CONSUMER)).num_ack_pending)
        return len({each["change_set"] for each in daemon.said("quiet")}) == len(change_sets)

    await eventually(all_quiet, within=60)
    assert set(held) <= {0, 1}
    # A reconciler may have made a task too many, which costs an empty run (X1).
    assert {taken["delivered"] for taken in daemon.said("taken")} == {1}


@pytest.mark.long
async def test_a_task_in_hand_is_not_redelivered_however_long_it_takes(
    deployment: Deployment,
) -> None:
    """W1: progress is reported from the start; else it would be redelivered twice."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await deployment.start_with_lease(4, QUIET_PERIOD="9")

    await deployment.client.enqueue_updates(*change_set, values.define())
    await eventually(lambda: bool(daemon.said("quiet")), within=60)

    [taken] = daemon.said("taken")
    assert taken["delivered"] == 1


async def test_a_task_that_is_done_is_acked_and_then_deleted_by_its_sequence(
    deployment: Deployment,
) -> None:
    """W11: in a cluster it would linger after its ack, and refuse its successor."""
    [change_set], js = new_change_sets(1), deployment.js
    stream = deployment.streams.tasks_stream
    await ensure_task(deployment.streams, change_set)
    async with PullConsumer(js, stream, TASKS_CONSUMER) as tasks:
        task = await tasks.take(1)
        assert task is not None
        deletes = f"$JS.API.STREAM.MSG.DELETE.{stream}"
        async with overheard(deployment, f"$JS.ACK.{stream}.>", deletes) as heard:
            await ack_and_delete(js, task)

    assert heard == [task.reply, deletes]


@pytest.mark.parametrize("lost", ["ack", "delete"])
async def test_it_is_said_if_a_tasks_ack_or_its_delete_is_not_confirmed(
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: str,
) -> None:
    """W11: what is only sent may take effect after the look that follows."""
    monkeypatch.setattr(cluster_tasks, "SETTLE_TIMEOUT", 2.0)
    [change_set], js, nc = new_change_sets(1), deployment.js, deployment.nc
    await ensure_task(deployment.streams, change_set)
    stream = deployment.streams.tasks_stream if lost == "ack" else "GONE"
    reply = f"$JS.ACK.{stream}.gone.1.1.1.0.0"

    async def confirm(ack: Msg) -> None:
        await ack.respond(b"")

    if lost == "delete":
        await nc.subscribe(reply, cb=confirm)
    subject = deployment.streams.task(change_set)

    await ack_and_delete(js, Delivery(js.connection, Msg(nc, subject, reply)))

    assert "task ack failed" in capsys.readouterr().out
    assert bool(await js.stream_subjects(deployment.streams.tasks_stream)) == (lost == "delete")


async def test_a_request_is_stored_before_its_task(deployment: Deployment) -> None:
    """C2: a run that comes in between would find nothing, and remove the task."""
    [change_set], streams = new_change_sets(1), deployment.streams
    stored = [streams.requests(change_set), streams.task(change_set)]
    async with overheard(deployment, *stored) as heard:
        await deployment.client.enqueue_updates(*change_set, [])

    assert heard == stored


async def test_a_reply_comes_before_the_delete_of_its_request(deployment: Deployment) -> None:
    """W8: a run that dies in between finds the request, and answers again."""
    [change_set], js, streams = new_change_sets(1), deployment.js, deployment.streams
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [])
    stream, commits = streams.requests_stream, streams.commits(change_set)
    request = await js.get_message(stream, last_by_subject=streams.requests(change_set))
    assert request is not None
    inbox, delete = request.headers[REPLY_INBOX], f"$JS.API.STREAM.MSG.DELETE.{stream}"
    async with overheard(deployment, commits, inbox, delete) as heard:
        await deployment.start_with_lease()
        await reply
        await deployment.at_rest()

    assert heard == [commits, commits, inbox, delete, commits]  # taken over, handled, released


async def test_who_waits_for_a_reply_looks_after_the_task(deployment: Deployment) -> None:
    """C3: the only Rebaser may have died between removing the task and looking again."""
    [change_set], js, streams = new_change_sets(1), deployment.js, deployment.streams
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [])
    waiting = asyncio.ensure_future(reply)
    await js.purge(streams.tasks_stream)

    async def has_task() -> bool:
        return bool(await js.stream_subjects(streams.tasks_stream))

    await eventually(has_task)
    waiting.cancel()


async def test_a_reply_ends_the_question_for_the_outcome(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: a Rebaser that is too busy to say what became of a request does not delay its reply."""
    monkeypatch.setattr("rebaser_client.requests.OUTCOME_TIMEOUT", 600.0)
    monkeypatch.setattr("rebaser_client.requests.OUTCOME_POLLS", (0.01,))
    [change_set], streams = new_change_sets(1), deployment.streams
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [])

    async with overheard(deployment, streams.outcomes(change_set)) as questions:
        waiting = asyncio.ensure_future(reply)
        await eventually(lambda: bool(questions))  # which nothing answers
        await deployment.start()
        response = await waiting

    assert response.workspace_id == change_set.workspace_id


async def test_a_resume_makes_a_task_for_what_waits(deployment: Deployment) -> None:
    """P5: requests, and an update. Else the reconciler would, one period later."""
    waiting, unfinished = change_sets = new_change_sets(2)
    js, streams = deployment.js, deployment.streams
    pauses, scope = PauseStore(streams), PauseScope(waiting.workspace_id)
    await pauses.pause(scope)
    await deployment.client.enqueue_updates(*waiting, [])
    own = await acquire_ownership(deployment.archive(unfinished), "former")
    await own.write(dirty_sequence=1)
    await own.release()
    await js.purge(streams.tasks_stream)

    assert await pauses.resume(scope) == 2

    tasks = await js.stream_subjects(streams.tasks_stream)
    assert tasks.keys() == {streams.task(each) for each in change_sets}


async def test_a_resume_removes_the_pause_before_it_makes_tasks(deployment: Deployment) -> None:
    """P5: a Rebaser that takes the task while there is a pause would set it aside."""
    [change_set], js, streams = new_change_sets(1), deployment.js, deployment.streams
    pauses, scope = PauseStore(streams), PauseScope(*change_set)
    await pauses.pause(scope)
    await deployment.client.enqueue_updates(*change_set, [])
    await js.purge(streams.tasks_stream)

    async with overheard(deployment, ">") as heard:
        await pauses.resume(scope)

    pause, task = f"$KV.{streams.pauses_bucket}.{scope.key}", streams.task(change_set)
    assert [subject for subject in heard if subject in (pause, task)] == [pause, task]


async def test_a_run_that_was_overtaken_learns_it_when_it_writes(deployment: Deployment) -> None:
    """W4: it need not read the head before; nothing of what it writes gets into the log."""
    [change_set] = new_change_sets(1)
    archive = deployment.archive(change_set)
    first = await acquire_ownership(archive, "first")
    await acquire_ownership(archive, "second")

    with pytest.raises(Fenced):
        await first.write(dirty_sequence=99)

    _, last = await archive.log.last()
    assert last.control.owner.startswith("second/")
    assert last.control.dirty_sequence == 0


async def test_an_update_begins_when_the_one_before_has_been_handled(
    deployment: Deployment,
) -> None:
    """D3: requests that come meanwhile share the next one.

    D4: one line has its result, says what that covers, and ends its claim.
    """
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with recording(deployment) as recorder:
        await deployment.start_with_lease()
        await deployment.client.enqueue_updates(*change_set, values.define(0, 2))
        for number in range(1, 30):
            await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])
        await deployment.at_rest()

        claims = [
            line.control.claim and line.control.claim.id for line in recorder.lines[change_set]
        ]
    changes = [claims[0]] + [b for a, b in pairwise(claims) if a != b]
    assert len(set(changes)) > 1
    assert all(None in pair for pair in pairwise(changes))
    results = [
        (before.control.claim, line)
        for before, line in pairwise(recorder.lines[change_set])
        if line.settled is not None and line.settled.covers is not None
    ]
    assert results
    for claim, line in results:
        assert line.settled is not None
        assert claim == DvuClaim(id=line.settled.id, covers=line.settled.covers)
        assert line.control.claim is None
        assert line.control.clean_sequence == claim.covers


async def test_an_update_that_changes_nothing_is_one_line_and_no_request(
    deployment: Deployment,
) -> None:
    """D4: a commit that has no result says what it covers."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with recording(deployment) as recorder:
        await deployment.start()
        await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
        await deployment.at_rest()
        before = await last_request(deployment)
        swapped = [set_to(values.net, 2), set_to(values.tax, 1)]
        await deployment.client.enqueue_updates(*change_set, swapped)
        await deployment.at_rest()

        assert await last_request(deployment) == before + 1
        await eventually(
            lambda: recorder.lines[change_set][-1].control.clean_sequence == before + 1
        )
        results = [line.settled for line in recorder.lines[change_set] if line.settled]
        head = recorder.lines[change_set][-1].control
    assert len([each for each in results if each.covers is not None]) == 1
    assert head.clean_sequence == head.dirty_sequence == before + 1
    assert head.claim is None


async def last_request(deployment: Deployment) -> int:
    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    return info.state.last_seq


async def test_the_reconciler_deletes_nothing(deployment: Deployment) -> None:
    """X4: neither what it cannot read, nor what was done meanwhile."""
    change_sets, values = new_change_sets(2), ExampleGraph()
    js, streams = deployment.js, deployment.streams
    for change_set in change_sets:
        await deployment.client.enqueue_updates(*change_set, values.define())
    await js.purge(streams.tasks_stream)
    await js.publish(streams.join("rebaser.requests.stray"), b"")
    before = (await js.stream_info(streams.requests_stream)).state

    deleting = ("$JS.API.STREAM.MSG.DELETE.>", "$JS.API.STREAM.PURGE.>", "$JS.API.STREAM.DELETE.>")
    async with overheard(deployment, *deleting) as heard:
        made = [await Reconciler(streams, 60).reconcile() for _ in range(2)]

    assert made == [2, 0]
    assert heard == []
    assert (await js.stream_info(streams.requests_stream)).state == before


async def test_the_reconciler_makes_no_task_for_what_is_paused(deployment: Deployment) -> None:
    """P3: each Rebaser would set it aside, again and again."""
    [change_set], js, streams = new_change_sets(1), deployment.js, deployment.streams
    await deployment.client.enqueue_updates(*change_set, [])
    await js.purge(streams.tasks_stream)
    assert await Reconciler(streams, 60, paused=change_set.__eq__).reconcile() == 0


async def test_the_first_newcomer_takes_over_what_dead_rebasers_owned(
    deployment: Deployment,
) -> None:
    """F3: nobody was left to hear them fall silent, and the lease is two minutes.

    F4: it was started under the name that they had, and is another one.
    """
    [change_set], values = new_change_sets(1), ExampleGraph()
    both = {"QUIET_PERIOD": "60", "INSTANCE_ID": "host"}
    async with recording(deployment) as recorder:
        first = await deployment.start_with_lease(120, "first", **both)
        await deployment.client.enqueue_updates(*change_set, values.define())
        await settled(recorder, change_set, 1)
        first.kill()
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])

        second = await deployment.start_with_lease(120, "second", **both)

        await settled(recorder, change_set, 2)
    await eventually(lambda: bool(second.said("orphaned tasks reclaimed")))


async def settled(recorder: Recorder, change_set: ChangeSet, count: int) -> None:
    await eventually(lambda: len(recorder.settled(change_set)) >= count, within=60)


async def test_a_request_whose_receipt_is_in_doubt_gets_its_task(deployment: Deployment) -> None:
    """C2: stored or not, the task harms nothing."""
    [change_set], js, streams = new_change_sets(1), deployment.js, deployment.streams
    await js.delete_stream(streams.requests_stream)  # so no receipt comes
    headers = {MESSAGE_ID: "1"}

    with pytest.raises(NotConfirmed):
        await publish_request(streams, change_set, headers, b"", retry_for=0.1)

    assert list(await js.stream_subjects(streams.tasks_stream)) == [streams.task(change_set)]


async def test_watchers_hear_that_a_change_set_was_taken_and_is_quiet(
    deployment: Deployment,
) -> None:
    """W10: a watcher that waits for the end of the work hears of it."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    heard = []

    async def hear(message: Msg) -> None:
        heard.append(Activity.decode(message.headers or {}, message.data).kind)

    await deployment.nc.subscribe(deployment.streams.activities(change_set), cb=hear)
    await deployment.nc.flush()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, values.define())

    await eventually(lambda: ActivityKind.QUIET in heard, within=60)
    assert (heard[0], heard[-1]) == (ActivityKind.TAKEN, ActivityKind.QUIET)
    assert {ActivityKind.REQUEST_APPLIED, ActivityKind.DVU_FINISHED} <= set(heard)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Interrupted(), [b"-NAK"]),
        (RetryLater("not now", delay=7), [b'-NAK {"delay": 7000000000}']),
        (Fenced("another owner"), []),
        (None, [b"+ACK"]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_task_is_settled_by_how_its_run_ends(
    deployment: Deployment, error: Exception | None, words: list[bytes]
) -> None:
    """W14: given back, and at once if told to stop. W15: left alone by one that is fenced off."""
    [change_set], js = new_change_sets(1), deployment.js
    stream, said = deployment.streams.tasks_stream, []

    async def hear(message: Msg) -> None:
        said.append(message.data)

    await deployment.nc.subscribe(f"$JS.ACK.{stream}.>", cb=hear)
    await ensure_task(deployment.streams, change_set)
    async with PullConsumer(js, stream, TASKS_CONSUMER) as tasks:
        task = await tasks.take(1)
        with nullcontext() if error is None else pytest.raises(type(error)):
            async with lease(js, task, LeaseTerms(LeaseSettings(ack_wait=60, renew_every=20))):
                if error is not None:
                    raise error
        await deployment.nc.flush()

    assert said == words
    assert len(await js.stream_subjects(stream)) == (0 if error is None else 1)


async def _hold(
    js: JetStream, task: Delivery, settings: LeaseSettings, body: Awaitable[Any]
) -> None:
    async with lease(js, task, LeaseTerms(settings)):
        await body


async def _end(error: Exception | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [None, RetryLater("not now"), Interrupted()], ids=str)
async def test_a_task_is_left_alone_once_its_lease_is_over(
    deployment: Deployment, error: Exception | None
) -> None:
    """W15: it may be another's by now, however the run ends. This lease is over as it begins."""
    [change_set], js = new_change_sets(1), deployment.js
    stream, over = deployment.streams.tasks_stream, LeaseSettings(ack_wait=0, renew_every=20)
    await ensure_task(deployment.streams, change_set)
    async with (
        overheard(deployment, f"$JS.ACK.{stream}.>") as said,
        PullConsumer(js, stream, TASKS_CONSUMER) as tasks,
    ):
        task = await tasks.take(1)
        with pytest.raises(LeaseLost if error is None else type(error)):
            await _hold(js, task, over, _end(error))

    assert said == []
    assert len(await js.stream_subjects(stream)) == 1


async def test_a_run_ends_once_no_report_was_confirmed_for_a_whole_lease(
    deployment: Deployment,
) -> None:
    """W15: that a report was sent shows nothing."""
    [change_set], js = new_change_sets(1), deployment.js
    short = LeaseSettings(ack_wait=0.4, renew_every=0.1)
    await ensure_task(deployment.streams, change_set)
    async with PullConsumer(js, deployment.streams.tasks_stream, TASKS_CONSUMER) as tasks:
        task = await tasks.take(1)
        deployment.nats.freeze()
        try:
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(_hold(js, task, short, asyncio.Event().wait()), 60)
        finally:
            deployment.nats.thaw()
