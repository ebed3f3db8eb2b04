"""The simulated server answers as a real one does, asked by the product's own client."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rebaser_core.jetstream import (
    ApiError,
    BatchMessage,
    ConnectOptions,
    ConsumerConfig,
    Delivery,
    JetStream,
    NatsUnreachable,
    OrderedPushConsumer,
    PullConsumer,
    StreamConfig,
    connect,
    connected,
)
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.schedules.broker import Broker
from tests.schedules.connection import Client
from tests.schedules.loop import Loop
from tests.schedules.network import Weather

ACK_WAIT = 2.0  # seconds
SOON = 0.75
"""Seconds within which a server has done what it does by itself."""

LOG = StreamConfig(
    name="L", subjects=["l.>"], duplicate_window=timedelta(minutes=1), allow_atomic=True
)
TASKS = StreamConfig(
    name="T",
    subjects=["t.>"],
    retention="workqueue",
    discard="new",
    max_msgs_per_subject=1,
    discard_new_per_subject=True,
)
WORKERS = ConsumerConfig(
    durable_name="w",
    ack_policy="explicit",
    ack_wait=timedelta(seconds=ACK_WAIT),
    max_deliver=-1,
    max_ack_pending=-1,
    filter_subject="t.>",
)

Question = Callable[[JetStream], Awaitable[Any]]


async def _refused(call: Awaitable[Any]) -> Any:
    """The kind of error and its number, or what is returned."""
    try:
        return await call
    except ApiError as error:
        return type(error).__name__, error.code, error.err_code
    except NatsUnreachable:
        return "unreachable"


async def _state(js: JetStream) -> tuple[int, int, int]:
    info = await js.consumer_info("T", "w")
    tasks = await js.stream_info("T")
    return tasks.state.messages, info.num_ack_pending, info.num_pending


def _seen(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.subject, delivery.stream_sequence, delivery.delivered


@asynccontextmanager
async def _worker(js: JetStream) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(js, "T", "w") as worker:
        yield worker


async def _taken(worker: PullConsumer, within: float = 30.0) -> tuple[str, int, int] | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            return _seen(await worker.take())
    return None


async def one_task_a_subject(js: JetStream) -> Any:
    """F2: refused while it waits, and while it is with somebody."""
    await js.publish("t.a")
    waiting = await _refused(js.publish("t.a"))
    async with _worker(js) as worker:
        task = await worker.take()
        taken = await _refused(js.publish("t.a"))
        await task.ack(confirm=True)
        await js.delete_message("T", task.stream_sequence)
        return waiting, taken, (await js.publish("t.a")).sequence


async def a_late_ack_counts(js: JetStream) -> Any:
    """F1: the task is gone, under its new holder."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        late = await worker.take()
        again = await worker.take()
        await late.ack(confirm=True)
        state = await _state(js)
        await again.ack(confirm=True)  # answered, though there is nothing left
        return _seen(again), state


async def a_late_nak_counts(js: JetStream) -> Any:
    """F1b: a third delivery, while the second is in good hands."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        late = await worker.take()
        await worker.take()
        await late.nak(confirm=True)
        return await _taken(worker, SOON)


async def late_progress_counts(js: JetStream) -> Any:
    """F1c: it keeps the task from whoever is next, though its holder is silent."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        late = await worker.take()
        await worker.take()
        for _ in range(4):
            await asyncio.sleep(ACK_WAIT / 2)
            await late.in_progress(confirm=True)
        nobody = await _taken(worker, SOON)
        return nobody, await _taken(worker)


async def an_old_ack_leaves_a_new_task_alone(js: JetStream) -> Any:
    """F1e: acks are tied to the sequence."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        old = await worker.take()
        await js.delete_message("T", old.stream_sequence)
        await js.publish("t.a")
        new = await worker.take()
        await old.ack(confirm=True)
        return _seen(new), await _state(js)


async def a_deleted_task_is_with_nobody(js: JetStream) -> Any:
    """F16: deleted by sequence, without any ack."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        task = await worker.take()
        await js.delete_message("T", task.stream_sequence)
        await js.delete_message("T", task.stream_sequence)  # gone already: success

        async def is_forgotten() -> bool:
            return (await _state(js))[1] == 0

        await eventually(is_forgotten)  # by the consumer, a moment later
        return await _state(js), await _refused(js.publish("t.a")) != "unreachable"


async def a_nak_with_a_delay_waits(js: JetStream) -> Any:
    """F4."""
    await js.publish("t.a")
    async with _worker(js) as worker:
        task = await worker.take()
        await task.nak(2 * SOON, confirm=True)
        return await _taken(worker, SOON), await _taken(worker), await _state(js)


async def silence_is_a_redelivery(js: JetStream) -> Any:
    """After the ack wait, to whoever asks; the count tells."""
    await js.publish("t.a")
    await js.publish("t.b")
    async with _worker(js) as worker:
        taken = [_seen(await worker.take(2)) for _ in range(4)]
        return sorted(taken), await _state(js)


async def an_id_is_stored_once(js: JetStream) -> Any:
    """F6: also when the message is gone."""
    acks = [await js.publish("l.a", b"1", message_id="one") for _ in range(2)]
    await js.delete_message("L", 1)
    acks += [await js.publish("l.a", b"1", message_id=name) for name in ("one", "two")]
    return [(ack.sequence, ack.duplicate) for ack in acks]


async def an_expectation_is_checked_first(js: JetStream) -> Any:
    """F8: a line written again is out of sequence, and not a duplicate."""
    first = {"message_id": "one", "expected_last_subject_sequence": 0}
    before = await _refused(js.publish("l.a", **first))
    again = await _refused(js.publish("l.a", **first))
    other = await _refused(js.publish("l.b", expected_last_subject_sequence=0))
    wrong = await _refused(js.publish("l.a", expected_last_subject_sequence=2))
    await js.delete_message("L", 1)
    emptied = await _refused(js.publish("l.a", expected_last_subject_sequence=0))
    return before.sequence, again, other.sequence, wrong, emptied.sequence


async def a_batch_is_stored_whole_or_not_at_all(js: JetStream) -> Any:
    """Also if an id was stored before, or one of them does not come in."""
    await js.publish("l.b")
    batch = [BatchMessage("l.a", b"1", message_id=f"{n}") for n in range(3)]
    stored = await js.publish_batch(batch, expected_last_subject_sequence=0)
    again = await _refused(js.publish_batch(batch, expected_last_subject_sequence=4))
    others = [BatchMessage("l.a", b"2")] * 2
    refused = await _refused(js.publish_batch(others, expected_last_subject_sequence=0))
    given = {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1"}
    await js.connection.publish("l.c", headers=given)
    incomplete = await _refused(
        js.publish("l.c", headers=given | {"Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"})
    )
    found = await js.get_message("L", sequence=3)
    assert found is not None
    subjects = await js.stream_subjects("L", "l.>")
    return (
        stored.sequence,
        again,
        refused,
        incomplete,
        found.headers["Nats-Batch-Sequence"],
        subjects,
    )


async def messages_are_found(js: JetStream) -> Any:
    """By sequence, as the last and the next of a subject; deleted ones are not."""
    for subject in ("l.a", "l.b", "l.a", "l.c"):
        await js.publish(subject, subject.encode(), headers={"X": "y"})
    await js.delete_message("L", 1)
    found = [
        await js.get_message("L", sequence=1),
        await js.get_message("L", sequence=2),
        await js.get_message("L", last_by_subject="l.a"),
        await js.get_message("L", sequence=1, next_by_subject="l.a"),
        await js.get_message("L", sequence=3, next_by_subject=">"),
        await js.get_message("L", sequence=4, next_by_subject="l.b"),
    ]
    told = [m and (m.subject, m.sequence, m.payload, dict(m.headers)) for m in found]
    return told, await js.stream_subjects("L"), await js.stream_subjects("L", "l.b")


async def purges_spare_what_they_should(js: JetStream) -> Any:
    """Lines of one subject, below a sequence."""
    for subject in ("l.a", "l.b", "l.a", "l.a"):
        await js.publish(subject)
    purged = await js.purge("L", subject="l.a", below_sequence=4)
    return purged, await js.stream_subjects("L")


async def readers_get_all_in_order(js: JetStream) -> Any:
    """What is there, and what comes; not what was deleted before it came to that."""
    for subject in ("l.a", "l.b", "l.a"):
        await js.publish(subject)
    await js.delete_message("L", 1)
    async with OrderedPushConsumer(js, "L", "l.a") as reader:
        read = [_seen(await reader.next(idle_timeout=SOON)), await reader.next(idle_timeout=SOON)]
        await js.publish("l.a")
        read.append(_seen(await reader.next(idle_timeout=SOON)))
    gone = (await js.stream_info("L")).state.consumer_count
    return read, reader.pending, gone


async def the_last_of_each_subject_are_read(js: JetStream) -> Any:
    """As the reconciler reads them: headers, in the order of the stream."""
    for subject in ("l.a", "l.b", "l.a", "l.c"):
        await js.publish(subject, b"payload", headers={"X": subject})
    policy = {"deliver_policy": "last_per_subject", "headers_only": True}
    async with OrderedPushConsumer(js, "L", **policy) as reader:
        read = []
        while (delivery := await reader.next(idle_timeout=0)) is not None:
            read.append((_seen(delivery), delivery.headers["X"], delivery.payload, reader.pending))
            if not reader.pending:
                break
        return read


async def nobody_listens(js: JetStream) -> Any:
    """Which is told at once."""
    return await _refused(js.connection.request("nobody.here", timeout=60))


QUESTIONS: tuple[Question, ...] = (
    one_task_a_subject,
    a_late_ack_counts,
    a_late_nak_counts,
    late_progress_counts,
    an_old_ack_leaves_a_new_task_alone,
    a_deleted_task_is_with_nobody,
    a_nak_with_a_delay_waits,
    silence_is_a_redelivery,
    an_id_is_stored_once,
    an_expectation_is_checked_first,
    a_batch_is_stored_whole_or_not_at_all,
    messages_are_found,
    purges_spare_what_they_should,
    readers_get_all_in_order,
    the_last_of_each_subject_are_read,
    nobody_listens,
)


async def _asked(question: Question, url: str = "nats://simulated") -> Any:
    async with connected(ConnectOptions(servers=(url,))) as nc:
        js = JetStream(nc)
        await js.create_stream(LOG)
        await js.create_stream(TASKS)
        await js.create_consumer("T", WORKERS)
        return await question(js)


def _simulated(question: Question) -> Any:
    loop = Loop(question.__name__)
    broker = Broker(loop, Weather(random.Random(1)), lambda *_: None)
    with mock.patch.object(connect, "SecureClient", partial(Client, broker)):
        return loop.run(_asked(question))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.__name__)
async def test_both_servers_answer_alike(question: Question, tmp_path: Path) -> None:
    """What is proved on the simulated one would mean nothing otherwise."""
    with running(NatsServer(tmp_path)) as server:
        real = await _asked(question, server.url)

    simulated = await asyncio.to_thread(_simulated, question)

    assert simulated == real
