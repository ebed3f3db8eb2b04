"""Questions of clients: about their own change set only, of any number and size, answered or not.

A Rebaser answers or says why not, and stays as large as it is.
"""

import asyncio
import gc
import random
import tracemalloc
from typing import Any

from nats.aio.msg import Msg

from rebaser_client.client import RebaserClient
from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Unavailable
from rebaser_core.messages import OutcomeQuery, OutcomeQueryV1, OutcomeReply, RequestState
from rebaser_core.queries import ValuesQuery, ValuesQueryV1, ValuesQueryV2, ValuesReply
from rebaser_core.query_protocol import REPLY_TIMEOUT, RETRY_AFTER
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.queries.query_service import QueryBounds
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.poison_queries import poison_question

MIB = 1 << 20


async def committed(deployment: Deployment, change_set: ChangeSet, batch: Any) -> RequestId:
    request_id, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
    assert (await reply).status.success
    return request_id


def values_question(change_set: ChangeSet, **more: Any) -> tuple[dict[str, str], bytes]:
    query = ValuesQueryV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        **more,
    )
    return ValuesQuery.encode(query)


async def asked(
    deployment: Deployment, subject: str, question: tuple[dict[str, str], bytes]
) -> Msg:
    headers, payload = question
    return await deployment.nc.request(subject, payload, timeout=60, headers=headers)


async def test_a_question_tells_of_no_change_set_but_that_of_its_subject(
    deployment: Deployment,
) -> None:
    """NATS permits a user subjects; what stands in the body it does not know."""
    (own,), (others,) = new_change_sets(1), new_change_sets(1)
    await deployment.start()
    request = await committed(deployment, others, [put(new_id(), "secret")])
    outcome = OutcomeQueryV1(
        id=request, workspace_id=others.workspace_id, change_set_id=others.change_set_id
    )

    read = await asked(
        deployment, deployment.streams.queries(own, "values"), values_question(others)
    )
    told = await asked(deployment, deployment.streams.outcomes(own), OutcomeQuery.encode(outcome))

    values = ValuesReply.decode(read.headers, read.data)
    assert (values.values, values.id != RequestId.from_bytes(bytes(16))) == ([], True)
    assert "its subject about" in values.error
    reply = OutcomeReply.decode(told.headers, told.data)
    assert (reply.state, reply.response) == (None, None)
    assert "its subject about" in reply.error
    known = await deployment.client.change_set(*others).outcome(request)
    assert known.state is RequestState.SETTLED


async def test_values_up_to_the_limit_are_read_back(deployment: Deployment) -> None:
    """Each content type carries them, also as inputs of what is computed from them."""
    [change_set], func, total = new_change_sets(1), new_id(), new_id()
    daemon = await deployment.start()
    sizes = (MIB - 200, MIB, 8 * MIB - 2)
    texts = {new_id(): chr(97 + n) * size for n, size in enumerate(sizes)}
    for value_id, text in texts.items():
        await committed(deployment, change_set, [put(value_id, text)])
    counts = {"putFunc": {"funcId": func, "name": "n", "runtime": "builtin", "code": "count"}}
    computed = {"putValue": {"valueId": total, "funcId": func, "inputs": {"values": [*texts]}}}
    await committed(deployment, change_set, [counts, computed])
    await deployment.at_rest()

    for content_type in sorted(codecs.CONTENT_TYPES):
        options = {"content_type": content_type}
        async with RebaserClient.on(deployment.nc, deployment.js, **options) as client:
            asked_of = client.change_set(*change_set)
            for value_id, text in texts.items():
                assert (await asked_of.values(value_id))[value_id].value == text
            around = await asked_of.values(total, inputs=1)
        assert {value_id: around[value_id].value for value_id in texts} == texts
        assert around[total].value == 3

    assert daemon.process.poll() is None
    old = await asked(
        deployment,
        deployment.streams.queries(change_set, "values"),
        values_question(change_set, which=[*texts][2:]),
    )
    assert "X-Reply-Pieces" in ValuesReply.decode(old.headers, old.data).error


async def test_an_answer_of_too_many_bytes_comes_in_pages(deployment: Deployment) -> None:
    """To a program that does not read pages it is refused."""
    [change_set] = new_change_sets(1)
    daemon = await deployment.start()
    ids = [new_id() for _ in range(3)]
    await committed(deployment, change_set, [put(i, "x" * 400_000) for i in ids])
    await deployment.at_rest()
    daemon.kill()
    reader = deployment.client.change_set(*change_set)

    async with deployment.answering(QueryBounds(answer_bytes=MIB)).serve():
        pages = await reader.values()
        old = await asked(
            deployment,
            deployment.streams.queries(change_set, "values"),
            values_question(change_set),
        )

    assert [*pages] == sorted(ids)
    assert "1,048,576 bytes" in ValuesReply.decode(old.headers, old.data).error


async def test_questions_about_nothing_leave_nothing_behind(deployment: Deployment) -> None:
    cache = StateCache(1 << 30)
    served = deployment.answering(cache=cache)

    async def ask(count: int) -> None:
        for _ in range(count):
            [change_set] = new_change_sets(1)
            [reply] = [
                reply
                async for reply in served.values.replies(
                    ValuesQueryV2(
                        id=RequestId(),
                        workspace_id=change_set.workspace_id,
                        change_set_id=change_set.change_set_id,
                    ),
                    {},
                )
            ]
            assert reply.values == []

    await ask(100)
    gc.collect()
    tracemalloc.start()
    try:
        await ask(300)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(cache) == 0
    assert grown < 300 * 2_000  # octets; a reader takes four times as many


async def test_a_flood_of_questions_is_turned_away_and_not_kept(deployment: Deployment) -> None:
    """While it is busy with others; whoever reads it is told to ask again."""
    [change_set], value = new_change_sets(1), new_id()
    daemon = await deployment.start()
    await committed(deployment, change_set, [put(value, 1)])
    await deployment.at_rest()
    daemon.kill()
    bounds = QueryBounds(waiting=100, waiting_bytes=2 * MIB)
    served, gate = deployment.answering(bounds), asyncio.Event()
    archive_of = served.values._open_loader
    counted = Counted(archive_of, gate)
    served.values._open_loader = counted
    subject, inbox = deployment.streams.queries(change_set, "values"), deployment.nc.new_inbox()
    heard = await deployment.nc.subscribe(inbox)
    headers, payload = values_question(change_set, which=["x" * 60_000, value])
    async with served.serve():
        for _ in range(400):  # 24 MB
            await deployment.nc.publish(subject, payload, reply=inbox, headers=headers)
        busy = await heard.next_msg(timeout=60)
        intakes = [obj for obj in gc.get_objects() if type(obj).__name__ == "_Intake"]
        assert any(intake._queue.bytes for intake in intakes)
        assert all(intake._queue.bytes <= bounds.waiting_bytes for intake in intakes)
        reading = asyncio.create_task(deployment.client.change_set(*change_set).values(value))
        gate.set()
        found = await reading

    assert RETRY_AFTER in busy.headers
    assert "ask again" in ValuesReply.decode(busy.headers, busy.data).error
    assert found[value].value == 1


async def test_questions_of_a_workspace_leave_room_and_an_answerer_to_others(
    deployment: Deployment,
) -> None:
    """Though it asks more than may wait, and none of its answers comes."""
    [busy], [other], value = new_change_sets(1), new_change_sets(1), new_id()
    daemon = await deployment.start()
    await committed(deployment, busy, [put(value, 1)])
    await committed(deployment, other, [put(value, 2)])
    await deployment.at_rest()
    daemon.kill()
    served, gate = deployment.answering(QueryBounds(waiting=100)), asyncio.Event()
    archive_of = served.values._open_loader

    def with_gate(change_set: ChangeSet) -> Any:
        found = archive_of(change_set)
        return Gated(found, gate) if change_set == busy else found

    served.values._open_loader = with_gate
    headers, payload = values_question(busy, which=[value])
    inbox = deployment.nc.new_inbox()
    heard = await deployment.nc.subscribe(inbox)
    async with served.serve():
        for _ in range(400):
            subject = deployment.streams.queries(busy, "values")
            await deployment.nc.publish(subject, payload, reply=inbox, headers=headers)
        refused = await heard.next_msg(timeout=60)
        found = await deployment.client.change_set(*other).values(value)

    assert RETRY_AFTER in refused.headers
    assert found[value].value == 2
    assert not gate.is_set()


async def test_a_question_at_a_time_without_a_leader_is_answered_later(
    deployment: Deployment,
) -> None:
    """It passes; a refusal would tell who waits for a reply that there will be none."""
    [change_set], value = new_change_sets(1), new_id()
    daemon = await deployment.start()
    await committed(deployment, change_set, [put(value, 1)])
    daemon.kill()
    served, elections = deployment.answering(), 1
    archive_of = served.values._open_loader

    def with_elections(change_set: ChangeSet) -> StateLoader:
        nonlocal elections
        elections -= 1
        if elections >= 0:
            raise Unavailable(503, 10008, "JetStream system temporarily unavailable")
        return archive_of(change_set)

    served.values._open_loader = with_elections
    async with served.serve():
        found = await deployment.client.change_set(*change_set).values(value)

    assert found[value].value == 1
    assert elections < 0, "it was asked again"


class Counted:
    """Archives that cannot be had before the gate is open."""

    def __init__(self, archive_of: Any, gate: asyncio.Event) -> None:
        self._archive_of, self._gate = archive_of, gate

    def __call__(self, change_set: ChangeSet) -> Any:
        return Gated(self._archive_of(change_set), self._gate)


class Gated:
    def __init__(self, archive: Any, gate: asyncio.Event) -> None:
        self._archive, self._gate = archive, gate

    async def load(self, at: int | None = None) -> Any:
        await self._gate.wait()
        return await self._archive.load(at)

    async def read(self, *look: Any) -> Any:
        await self._gate.wait()
        return await self._archive.read(*look)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)


async def test_a_question_whose_asker_left_is_not_answered(deployment: Deployment) -> None:
    change_sets, served = new_change_sets(6), deployment.answering()
    gate = asyncio.Event()
    served.values._open_loader = Counted(served.values._open_loader, gate)
    nc, inboxes = deployment.nc, []
    async with served.serve():
        for number, change_set in enumerate(change_sets):  # four are being answered, two wait
            inboxes.append(await nc.subscribe(nc.new_inbox()))
            headers, payload = values_question(change_set)
            headers[REPLY_TIMEOUT] = "0.01" if number == 4 else "60"
            where = deployment.streams.queries(change_set, "values")
            await nc.publish(where, payload, reply=inboxes[-1].subject, headers=headers)
        await nc.flush()
        await asyncio.sleep(0.1)  # until the fifth asker has left
        gate.set()
        await inboxes[5].next_msg(timeout=60)  # of one that waited behind

        assert inboxes[4].pending_msgs == 0


async def test_any_question_gets_an_answer_or_none_and_the_next_one_too(
    deployment: Deployment,
) -> None:
    rng = random.Random(0)
    [change_set], value = new_change_sets(1), new_id()
    daemon = await deployment.start()
    await committed(deployment, change_set, [put(value, 1)])

    for _ in range(300):
        poison = poison_question(rng, change_set, deployment.streams)
        await deployment.nc.publish(
            poison.subject, poison.payload, reply=deployment.nc.new_inbox(), headers=poison.headers
        )
    found = await deployment.client.change_set(*change_set).values(value)

    assert found[value].value == 1
    assert daemon.process.poll() is None

    async def nothing_waits() -> bool:
        return not daemon.said("work failed")

    await eventually(nothing_waits)


async def test_a_question_has_no_rebaser_write_into_a_stream(deployment: Deployment) -> None:
    """The next question of the same connection is answered, so the first one was taken."""
    [change_set], streams = new_change_sets(1), deployment.streams
    headers, payload = values_question(change_set)
    subject, target = streams.queries(change_set, "values"), streams.requests(change_set)
    async with deployment.answering().serve():
        await deployment.nc.publish(subject, payload, reply=target, headers=headers)
        for _ in range(2):
            await asked(deployment, subject, (headers, payload))

    assert await streams.js.stream_subjects(streams.requests_stream) == {}
