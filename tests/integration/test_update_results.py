"""The result of an update is its owner's to commit: it needs no room, and clients have no say."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Never, cast

import pytest

from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.commits import DvuClaim, RequestOutcome
from rebaser_core.errors import QueueFull
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    DvuResultInfo,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    UpdatesAddress,
)
from rebaser_core.records import ChangeSetStatus
from rebaser_core.updates import SetComputed
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.commit_log.state import Content
from rebaser_server.processor.application import POLL_EVERY, Job, JobResult
from rebaser_server.processor.dvu import DvuCommitter, ResultNotCommitted, claim_update
from rebaser_server.processor.requests import close
from rebaser_server.processor.run import process
from rebaser_server.runtime.failures import JobFailed
from rebaser_server.runtime.tasks import Shutdown
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.blocking_function import Gate
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import Owner
from tests.helpers.services import services_of
from tests.integration.test_queue_limits import LIMIT, limit


async def claimed(deployment: Deployment, change_set: ChangeSet, gate: Gate) -> RequestId:
    """The claim of an update that waits at the closed gate, as everybody hears of it."""

    async def seen() -> bool:
        return gate.seen()

    heard = await deployment.nc.subscribe(deployment.streams.activities(change_set))
    gate.close()
    await deployment.start_with_lease(CONCURRENCY="1")
    await deployment.client.enqueue_updates(*change_set, gate.define(41))
    async with asyncio.timeout(60):
        async for message in heard.messages:
            told = Activity.decode(message.headers or {}, message.data)
            if told.kind is ActivityKind.DVU_STARTED and told.request_id is not None:
                await heard.unsubscribe()
                await eventually(seen)
                return told.request_id
    raise AssertionError("no update began")


async def test_an_update_ends_although_no_request_has_room(
    deployment: Deployment, gate: Gate
) -> None:
    """The stream is full of requests of change sets that wait for the only slot."""
    await limit(deployment)
    [first, second, *others], values = new_change_sets(12), ExampleGraph()
    await claimed(deployment, first, gate)
    await deployment.client.enqueue_updates(*second, values.define())
    for change_set in (second, *others):
        with suppress(QueueFull):
            while True:
                await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 1)])
    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    assert info.state.messages == LIMIT

    gate.open()
    await deployment.at_rest()

    assert (await deployment.graph(first)).values[gate.value].value == 41
    assert (await deployment.graph(second)).values[values.gross].value == 3


async def test_a_client_that_knows_the_claim_cannot_say_what_was_computed(
    deployment: Deployment, gate: Gate
) -> None:
    [change_set] = new_change_sets(1)
    async with recording(deployment) as log:
        claim = await claimed(deployment, change_set, gate)
        computed = DvuResultInfo(claim=claim, covers=1, commit=1)
        forged = InlineBatch(
            updates=[SetComputed(value_id=gate.value, value=1)],
            computed=computed,
        )
        for request_id in (claim, RequestId()):
            request = EnqueueUpdatesRequestV1(
                id=request_id,
                workspace_id=change_set.workspace_id,
                change_set_id=change_set.change_set_id,
                updates_address=Inline(inline=forged),
            )
            headers, payload = EnqueueUpdatesRequest.encode(request)
            await deployment.js.publish(
                deployment.streams.requests(change_set),
                payload,
                headers={k: v for k, v in headers.items() if k != "Nats-Msg-Id"},
                message_id=str(request_id),
            )

        async def judged() -> bool:
            settled = [line.settled for line in log.lines[change_set] if line.settled]
            return [one.outcome for one in settled[1:]] == 2 * [RequestOutcome.STALE]

        await eventually(judged)
        gate.open()
        await deployment.at_rest()
        await eventually(lambda: log.lines[change_set][-1].control.clean_sequence == 1)

    assert (await deployment.graph(change_set)).values[gate.value].value == 41
    results = [line.settled for line in log.lines[change_set] if line.settled]
    assert [one.id for one in results if one.covers is not None] == [claim]


async def test_a_request_of_the_claims_id_elsewhere_does_not_suppress_the_result(
    deployment: Deployment, gate: Gate
) -> None:
    """NATS knows a message by its id in the whole stream, whatever its subject."""
    [change_set, own], values = new_change_sets(2), ExampleGraph()
    claim = await claimed(deployment, change_set, gate)
    await deployment.client.enqueue_updates(*own, values.define(), request_id=claim)

    gate.open()
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[gate.value].value == 41
    assert (await deployment.graph(own)).values[values.gross].value == 3


class _SlowPlanner:
    """Its plan fails, once the test lets it end."""

    def __init__(self) -> None:
        self.planning, self.ended = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def prepare(self, content: Content, after: int, *, is_repeated: bool) -> Callable[[], Job]:
        def plan() -> Never:
            self._loop.call_soon_threadsafe(self.planning.set)
            assert self.ended.wait(60)
            raise JobFailed(f"{after} {is_repeated}")

        return plan

    def fail_all(self, content: Content, after: int, message: str) -> JobResult:
        raise NotImplementedError


async def test_a_request_does_not_wait_for_a_plan(deployment: Deployment) -> None:
    """It is committed while the plan is made; the claim that the plan is for stands."""
    [change_set], planner = new_change_sets(1), _SlowPlanner()
    own = (await Owner.of(deployment, change_set)).own
    await own.write(dirty_sequence=1)
    claiming = asyncio.create_task(claim_update(own, planner, 3))
    async with asyncio.timeout(60):
        await planner.planning.wait()
        async with own.lock:
            await own.write(dirty_sequence=2)
        planner.ended.set()
        update = await claiming

    assert update is not None
    assert str(update.error) == "0 False"
    assert own.state.control.claim == update.claim
    assert update.claim.covers == 1
    assert update.base == own.state.commit - 1


class _Planner:
    """It fails: the claim stands all the same."""

    def prepare(self, content: Content, after: int, *, is_repeated: bool) -> Never:
        raise JobFailed("no plan")

    def fail_all(self, content: Content, after: int, message: str) -> JobResult:
        raise NotImplementedError


class _Unchanged:
    """The result of an update in which no value came out changed."""

    recomputed = 0

    def __len__(self) -> int:
        return 0

    def code(self, before: str, *, is_last: bool) -> str:
        return before

    def clear(self) -> None:
        pass


async def test_an_update_that_succeeds_ends_the_count_of_failures(deployment: Deployment) -> None:
    """D6: failures that lie apart are not many in a row."""
    [change_set] = new_change_sets(1)
    own = (await Owner.of(deployment, change_set)).own
    claim = DvuClaim(id=RequestId(), covers=1)
    base = await own.write(dirty_sequence=1, claim=claim, dvu_failures=3)

    committer = DvuCommitter(own, 4, lambda _: None)
    assert await committer.commit(claim, base, cast("JobResult", _Unchanged()))

    control = own.state.control
    assert (control.dvu_failures, control.claim, control.clean_sequence) == (0, None, 1)


class _OtherCode(_Unchanged):
    def code(self, before: str, *, is_last: bool) -> str:
        return "over" if is_last else "mixed"


async def test_a_part_names_its_code_and_that_more_is_due(deployment: Deployment) -> None:
    """Its run may die, and another process compute the rest with the code that is wanted."""
    [change_set] = new_change_sets(1)
    own = (await Owner.of(deployment, change_set)).own
    claim = DvuClaim(id=RequestId(), covers=1)
    base = await own.write(dirty_sequence=1, claim=claim)

    part = cast("JobResult", _OtherCode())
    assert await DvuCommitter(own, 4, lambda _: None).commit(claim, base, part, is_part=True)

    again = (await Owner.of(deployment, change_set)).own
    assert (again.code, again.control.claim) == ("mixed", claim)


async def test_a_claim_lasts_until_the_next_one_or_the_end_of_the_change_set(
    deployment: Deployment,
) -> None:
    """D2: each has an id of its own, so that nothing is taken that another one computed."""
    [change_set] = new_change_sets(1)
    own = (await Owner.of(deployment, change_set)).own
    committer = DvuCommitter(own, 4, lambda _: None)
    updates = []
    for dirty_sequence in (1, 1, 2):
        await own.write(dirty_sequence=dirty_sequence)
        update = await claim_update(own, _Planner(), 3)
        assert update is not None
        assert own.state.control.claim == update.claim
        updates.append(update)
    assert len({each.claim.id for each in updates}) == 3
    assert [each.claim.covers for each in updates] == [1, 1, 2]

    for each in updates[:2]:
        assert not await committer.commit(each.claim, each.base, cast("JobResult", _Unchanged()))
    await own.write(**close(own.state, RequestId(), ChangeSetStatus.ABANDONED))

    last = updates[-1]
    assert not await committer.commit(last.claim, last.base, cast("JobResult", _Unchanged()))
    assert await claim_update(own, _Planner(), 3) is None


class _Unfoldable(_Unchanged):
    """One that no state can take."""

    batch = None

    def __len__(self) -> int:
        return 1

    async def store(self, *_: object) -> UpdatesAddress:
        return Inline(inline=InlineBatch(updates=[]))


async def test_an_update_that_can_never_be_committed_is_dropped(deployment: Deployment) -> None:
    """D6: else the change set would never rest."""
    [change_set] = new_change_sets(1)
    claim = DvuClaim(id=RequestId(), covers=1)
    for failures in (3, 4):
        own = (await Owner.of(deployment, change_set)).own
        base = await own.write(dirty_sequence=1, claim=claim, dvu_failures=failures)
        committer = DvuCommitter(own, 4, lambda _: None)

        with pytest.raises(ResultNotCommitted):
            await committer.commit(claim, base, cast("JobResult", _Unfoldable()))

        control = own.state.control
        assert own.spoiled
        assert control.claim is None
        assert control.dvu_due == (failures < 4)
        assert control.dvu_failures == (4 if failures < 4 else 0)


async def test_an_update_in_hand_outlasts_the_turn(deployment: Deployment, gate: Gate) -> None:
    """W10c: it would begin again and again while others wait and requests keep coming."""
    [change_set], burst = new_change_sets(1), 50
    services = services_of(deployment)
    slots = SlotPool(deployment.streams, 1, Fairness())
    slot = slots.acquire(change_set)
    assert slot is not None
    gate.close()
    await deployment.client.enqueue_updates(*change_set, gate.define(41))
    async with recording(deployment) as recorder:
        running = asyncio.create_task(process(services, change_set, Shutdown(), slot))
        await eventually(gate.seen, within=60)
        slot.expired = True
        batch = [set_to(new_id(), 1)]
        await asyncio.gather(
            *(deployment.client.enqueue_updates(*change_set, batch) for _ in range(burst))
        )

        await eventually(lambda: len(recorder.settled(change_set)) == 1 + burst, within=60)
        # W10: nor is it idle once no request has come for a while.
        ended, _ = await asyncio.wait([running], timeout=2 * POLL_EVERY)
        assert not ended
        gate.open()
        await asyncio.wait_for(running, 60)

    claims = {line.control.claim.id for line in recorder.lines[change_set] if line.control.claim}
    assert len(claims) == 1
    assert (await deployment.graph(change_set)).values[gate.value].value == 41
