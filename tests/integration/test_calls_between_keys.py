"""Calls between keys, through a real NATS: O1 to O5, in the log and on the wire."""

import asyncio
import json
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from rebaser_client import CallRejected
from rebaser_client.errors import RequestDead, RequestRefused
from rebaser_core.calls import CallRequest, CallRequestV1, Firing, Origin, key_of, service_id
from rebaser_core.errors import NotConfirmed
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.records import utc_text
from rebaser_core.requests import publish_request
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.handlers import Context, Reject, Service, sending
from rebaser_server.handlers.content import KeyContent, Timer
from rebaser_server.handlers.sending import Alarms
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import QueueSettings
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.workers import Working

SENDER = key_of("rooms", "sender")


def room_service() -> Service:
    """A service of lists that grow: what takes effect twice, or in another order, shows."""
    rooms = Service("rooms")

    @rooms.state
    class Room:
        heard: list[str] = field(default_factory=list)
        is_open: bool = True

    @rooms.handler
    def hear(ctx: Context[Room], word: str) -> int:
        if not ctx.state.is_open:
            raise Reject("closed")
        ctx.state.heard.append(word)
        return len(ctx.state.heard)

    @rooms.handler
    def turn(ctx: Context[Room], is_open: bool) -> None:
        ctx.state.is_open = is_open

    @rooms.handler
    def tell(ctx: Context[Room], to: str, words: list[str], ending: str = "") -> int:
        ctx.state.heard.append("told")
        for word in words:
            ctx.to(to).send("hear", word)
        if ending == "rejects":
            raise Reject("no")
        if ending == "fails":
            raise ValueError("no")
        return len(words)

    return rooms


class Room:
    """A key whose calls of another one are made here, word for word."""

    def __init__(self, working: Working, name: str) -> None:
        self.key = working.key("rooms", name)
        self._working, self._name = working, name
        self._streams = working.deployment.streams

    async def hear(
        self, word: str, place: tuple[int, int], sender: ChangeSet = SENDER
    ) -> RequestId:
        """Send a call as a key does, under an id that is not remembered."""
        origin = Origin(change_set_id=sender.change_set_id, sequence=place[0], index=place[1])
        return await self.send(handler="hear", arguments=[word], origin=origin)

    async def send(self, *, is_forged: bool = False, **what: Any) -> RequestId:
        target, sent = key_of("rooms", self._name), RequestId()
        call = CallRequestV1(id=sent, **target._asdict(), service="rooms", key=self._name, **what)
        call = call if is_forged else await self._working.sealed(call)
        headers, payload = CallRequest.encode(call)
        headers[MESSAGE_ID] = str(sent)
        await publish_request(self._streams, target, headers, payload)
        return sent

    async def words(self) -> list[str]:
        """What was heard, behind all that was sent before."""
        await self.key.call("turn", True)
        state: dict[str, Any] = (await self.key.state()).value
        return state["heard"]

    async def content(self, rooms: Service) -> KeyContent:
        return await self._working.content([rooms], "rooms", self._name)


@pytest.fixture
def working(deployment: Deployment) -> Working:
    return Working(deployment)


async def test_a_call_that_was_heard_takes_no_effect_again_under_any_id(working: Working) -> None:
    """O4: its place among the sender's calls tells a repetition, without any memory of ids."""
    room = Room(working, "r-1")
    async with working.worker(room_service()):
        await room.hear("one", (7, 0))
        await room.hear("two", (7, 1))
        await room.hear("two again", (7, 1))
        await room.hear("one again", (7, 0))
        await room.hear("earlier", (6, 5))
        await room.hear("three", (9, 0))
        await room.hear("of another", (1, 0), key_of("rooms", "other"))

        assert await room.words() == ["one", "two", "three", "of another"]


@pytest.mark.parametrize("seal", [None, "", "0" * 32])
async def test_a_place_that_a_client_forged_is_no_place(working: Working, seal: str | None) -> None:
    """O6: the call becomes a dead letter, and what the named key sends later takes effect."""
    room = Room(working, "r-1")
    origin = Origin(change_set_id=SENDER.change_set_id, sequence=1 << 40)
    async with working.worker(room_service()):
        await room.hear("one", (7, 0))
        forged = await room.send(
            handler="hear", arguments=["forged"], origin=origin, seal=seal, is_forged=True
        )
        await room.hear("two", (8, 0))

        assert await room.words() == ["one", "two"]
        with pytest.raises(RequestDead, match="not of a worker of this deployment"):
            await room.key.outcome(forged)


async def test_a_time_that_a_client_forged_fires_no_timer(working: Working) -> None:
    """O6: a timer calls when its time has come, and not when a caller says so."""
    room = Room(working, "r-1")
    async with working.worker(room_service()):
        await room.key.send("hear", "later", after=3600, timer="t")
        [timer] = await room.key.timers()
        firing = Firing(name="t", at=timer.next)
        forged = await room.send(handler="_", firing=firing, is_forged=True)

        assert await room.words() == []
        assert len(await room.key.timers()) == 1
        with pytest.raises(RequestDead):
            await room.key.outcome(forged)


async def test_a_call_that_was_refused_is_refused_for_good(working: Working) -> None:
    """O4: sent again, once it would be taken, it is a repetition; so it is after a restart."""
    room = Room(working, "r-1")
    async with working.worker(room_service()):
        await room.key.call("turn", False)
        await room.hear("refused", (7, 0))
        await room.key.call("turn", True)
        await room.hear("refused", (7, 0))
        assert await room.words() == []
    async with working.worker(room_service()):
        await room.hear("refused", (7, 0))
        assert await room.words() == []


@pytest.mark.parametrize(
    ("handler", "arguments", "reason"),
    [
        ("haer", ["one"], "rooms has no handler haer, but .*; did you mean hear"),
        ("hear", [], "hear.*missing a required argument: 'word'"),
        ("turn", ["perhaps"], "turn, argument is_open: Input should be a valid boolean"),
    ],
)
async def test_a_call_that_its_target_would_refuse_does_not_leave(
    working: Working, handler: str, arguments: list[Any], reason: str
) -> None:
    """O1: no caller would hear of the refusal, so the fault is that of the call that sends it."""
    rooms = room_service()

    @rooms.handler
    def tell_wrongly(ctx: Context[Any], after: float | None) -> None:
        ctx.state.heard.append("told")
        ctx.send(handler, *arguments, after=after)

    room = Room(working, "r-1")
    async with working.worker(rooms):
        for after in (None, 3600.0):
            with pytest.raises(RequestDead, match=f"tell_wrongly sends what is refused: {reason}"):
                await room.key.call("tell_wrongly", after)

        assert await room.words() == []
        assert not await room.key.timers()


async def test_the_log_names_a_call_of_another_key_that_is_refused(working: Working) -> None:
    """Its sender does not hear of it."""
    room, teller = Room(working, "r-1"), Room(working, "teller")
    with capture_logs() as logs:
        async with working.worker(room_service()):
            await room.key.call("turn", False)
            await teller.key.call("tell", "r-1", ["one"])

            async def is_named() -> bool:
                return any(each["event"] == "call of another key refused" for each in logs)

            await eventually(is_named)
    [refused] = [each for each in logs if each["event"] == "call of another key refused"]
    expected = {"service": "rooms", "key": "r-1", "sender": "rooms/teller", "handler": "hear"}
    assert expected.items() <= refused.items()
    assert refused["reason"] == "closed"


async def test_what_was_heard_outlives_a_worker_and_a_checkpoint(working: Working) -> None:
    room = Room(working, "r-1")
    async with working.worker(room_service(), checkpoint_every=1):
        await room.hear("one", (7, 3))
        assert await room.words() == ["one"]
    async with working.worker(room_service()):
        await room.hear("one again", (7, 3))
        await room.hear("two", (7, 4))
        assert await room.words() == ["one", "two"]


@pytest.mark.parametrize(("ending", "error"), [("rejects", CallRejected), ("fails", RequestDead)])
async def test_a_call_that_ends_badly_sends_nothing(
    working: Working, ending: str, error: type[Exception]
) -> None:
    """O1: there is no commit with an effect, so there is nothing to send."""
    rooms = room_service()
    teller, room = Room(working, "teller"), Room(working, "r-1")
    async with working.worker(rooms):
        with pytest.raises(error):
            await teller.key.call("tell", "r-1", ["one"], ending)

        assert await room.words() == []
        assert await teller.words() == []
        assert (await teller.content(rooms)).outgoing == []


async def test_a_commit_has_what_its_call_sends_until_all_is_confirmed(working: Working) -> None:
    """O1, O3: a run that ends before leaves it to the next, in order (O2), and then it is over."""
    rooms = room_service()
    teller, room = Room(working, "teller"), Room(working, "r-1")
    words = [str(number) for number in range(5)]
    with mock.patch("rebaser_server.handlers.sending.publish_call", _endless):
        async with working.worker(rooms, shutdown_grace=timedelta(seconds=5)):
            assert await teller.key.call("tell", "r-1", words) == 5
            left = (await teller.content(rooms)).outgoing
            assert [each.number for each in left] == [0, 1, 2, 3, 4]
            assert (await teller.key.state()).sending == 5

    async with working.worker(rooms):
        await eventually(lambda: _is(room.words(), words))
        await eventually(lambda: _is(_left(teller, rooms), []))


async def test_a_key_is_not_deleted_and_goes_on(working: Working) -> None:
    """O3: else the calls that it has yet to send would be lost, and its name could not be used."""
    workspaces, room = working.deployment.client.workspaces, Room(working, "r-1")
    async with working.worker(room_service()):
        await room.hear("one", (7, 0))
        await eventually(lambda: _is_some(workspaces.change_sets(service_id("rooms"))))
        with pytest.raises(RequestRefused, match="have a handler empty its state"):
            await workspaces.delete_workspace(service_id("rooms"))
        await room.hear("two", (8, 0))

        assert await room.words() == ["one", "two"]


async def test_calls_to_one_target_are_sent_one_after_the_other(working: Working) -> None:
    """O2: a later one that came first would make earlier ones repetitions."""
    real, words = sending.publish_call, ["slow", "fast", "faster"]

    async def publish(*call: Any) -> None:
        await asyncio.sleep(0.2 if call[2].origin.index == 0 else 0)  # what overtakes, does here
        await real(*call)

    teller, room = Room(working, "teller"), Room(working, "r-1")
    with mock.patch.object(sending, "publish_call", publish):
        async with working.worker(room_service()):
            await teller.key.call("tell", "r-1", words)
            await eventually(lambda: _is(_sending(teller), 0))

            assert await room.words() == words


async def test_a_target_that_is_full_holds_up_no_calls_to_others_and_no_timers(
    deployment: Deployment,
) -> None:
    """O2 is of one target. What is for the full one waits, and what is behind it for the same."""
    working, words = Working(deployment), [str(number) for number in range(5)]
    full, teller, room = (Room(working, name) for name in ("full", "teller", "r-1"))
    rooms = room_service()

    @rooms.handler
    def tell_all(ctx: Context[Any]) -> None:
        ctx.to("full").send("hear", "never")
        for word in words:
            ctx.to("r-1").send("hear", word)
        ctx.send("hear", "rung", after=0.5)

    async with working.worker(rooms, queue=await _limited(deployment)):
        await _fill(full)
        await teller.key.call("tell_all")

        await eventually(lambda: _is(room.words(), words))
        await eventually(lambda: _is(teller.words(), ["rung"]))


async def test_keys_that_wait_for_one_that_is_full_leave_their_slots_to_others(
    deployment: Deployment,
) -> None:
    """W14: else as many as there are slots hold up all, and the full one, which needs a slot."""
    working = Working(deployment)
    full, tellers = Room(working, "full"), [Room(working, f"teller-{n}") for n in range(3)]
    others = [Room(working, f"r-{number}") for number in range(3)]
    async with working.worker(room_service(), queue=await _limited(deployment), concurrency=4):
        await _fill(full)
        for teller in tellers:
            await teller.key.call("tell", "full", ["never"])
        for other in others:
            await other.send(handler="hear", arguments=["one"])

        for other in others:
            await eventually(lambda other=other: _has_state(other))
        assert [await _sending(teller) for teller in tellers] == [1] * 3


async def _limited(deployment: Deployment) -> QueueSettings:
    """Streams whose change sets have ten requests at most."""
    queue = QueueSettings(requests=100)  # a tenth for each key
    await deployment.js.delete_stream(deployment.streams.requests_stream)
    settings = deployment.settings.model_copy(update={"queue": queue})
    assert await prepare(deployment.js, settings) == []
    return queue


async def _fill(room: Room) -> None:
    for _ in range(10):
        await room.send(handler="hear", arguments=["of a newer version"], service_version=2)


async def _has_state(room: Room) -> bool:
    return (await room.key.state()).value is not None


async def test_a_call_that_is_not_confirmed_is_sent_again(working: Working) -> None:
    """O3: whatever NATS had of it; the key has it until then."""
    real, tries = sending.publish_call, []

    async def publish(*call: Any) -> None:
        tries.append(call[2])
        if len(tries) == 1:
            raise NotConfirmed("as a NATS that is away")
        await real(*call)

    teller, room = Room(working, "teller"), Room(working, "r-1")
    with mock.patch.object(sending, "publish_call", publish):
        async with working.worker(room_service()):
            await teller.key.call("tell", "r-1", ["one"])
            await eventually(lambda: _is(_sending(teller), 0))

            assert await room.words() == ["one"]


async def test_what_is_sent_again_has_the_id_that_it_had(working: Working) -> None:
    """O2: it follows from the call's place, so NATS and the target know it while they remember."""
    tries = []

    async def publish(*call: Any) -> None:
        tries.append(call[2])
        raise NotConfirmed("as a NATS that is away")

    teller = Room(working, "teller")
    with mock.patch.object(sending, "publish_call", publish):
        async with working.worker(room_service()):
            await teller.key.call("tell", "r-1", ["one"])
            await eventually(lambda: bool(tries))
        before = len(tries)  # more than one where the worker took long to stop
        async with working.worker(room_service()):
            await eventually(lambda: len(tries) > before)

    assert len({each.id for each in tries}) == 1
    assert len({each.origin.model_dump_json() for each in tries}) == 1


async def _endless(*_: Any) -> None:
    await asyncio.Event().wait()


async def _is_some(found: Any) -> bool:
    return bool(await found)


async def _left(room: Room, rooms: Service) -> list[Any]:
    return list((await room.content(rooms)).outgoing)


async def _is(found: Any, expected: Any) -> bool:
    return bool(await found == expected)


def _timer(seconds: float, set_by: int) -> Timer:
    return Timer(
        "hear", '["rung"]', utc_text(datetime.now(UTC) + timedelta(seconds=seconds)), set_by
    )


async def test_an_alarm_that_a_former_run_sets_late_replaces_none(working: Working) -> None:
    """O5: a frozen run goes on with its job, while the next one has moved the timer."""
    alarms = Alarms(working.deployment.streams)
    async with working.worker(room_service()):
        room = Room(working, "r-1")
        await room.key.send("hear", "rung", after=3600, timer="t")
        target = key_of("rooms", "r-1")
        await room.key.send("hear", "rung", after=1, timer="t")
        await eventually(lambda: _is(_sending(room), 0))

        former = _timer(3600, set_by=1)
        await alarms.arm(target, "rooms", "r-1", "t", former)

        await eventually(lambda: _is(room.words(), ["rung"]))


async def test_a_timer_that_is_set_to_a_time_that_rang_calls_again(working: Working) -> None:
    """O5: each setting has its own alarm, though time and name are those of one before."""
    past = datetime.now(UTC) - timedelta(hours=1)
    async with working.worker(room_service()):
        room = Room(working, "r-1")
        for number in range(1, 3):
            await room.key.send("hear", "rung", at=past, timer="t")
            await eventually(lambda number=number: _is(room.words(), ["rung"] * number))


async def test_a_time_before_all_clocks_calls_at_once_and_ends_no_worker(working: Working) -> None:
    """NATS keeps 64 bits of nanoseconds, and ids have no time before 1970."""
    async with working.worker(room_service()):
        room = Room(working, "r-1")
        for year in (1960, 1):
            await room.key.send("hear", str(year), at=datetime(year, 1, 1, tzinfo=UTC))
            await eventually(lambda year=year: _is_heard(room, str(year)))
        await room.key.send("hear", "later", after=0.5)

        await eventually(lambda: _is(room.words(), ["1960", "1", "later"]))


async def test_an_alarm_that_cannot_be_read_holds_up_no_other(working: Working) -> None:
    """A worker that ended at it would leave it to end the next one."""
    streams, js = working.deployment.streams, working.deployment.js
    room = Room(working, "r-1")
    names = {"service": "rooms", "key": "r-1", "name": "t", "setBy": 1}
    async with working.worker(room_service()):
        await room.key.send("hear", "first", after=0)
        await eventually(lambda: _is(room.words(), ["first"]))
        for said in ({}, names, names | {"at": "1960-01-01T00:00:00Z"}, names | {"at": "soon"}):
            subject = streams.join("rebaser.ringing", *key_of("rooms", "r-1"))
            await js.publish(subject, json.dumps(said).encode())
        await room.key.send("hear", "later", after=0.5)

        await eventually(lambda: _is(room.words(), ["first", "later"]))


@pytest.mark.parametrize("loss", ["purged", "deleted"])
async def test_an_alarm_that_nats_lost_is_set_again_once_its_key_is_called(
    working: Working, loss: str
) -> None:
    """Its own timers say what is due, also of a time that rang into what is gone."""
    room, js = Room(working, "r-1"), working.deployment.js
    with mock.patch.object(Alarms, "_hear", _endless):
        async with working.worker(room_service()):
            await room.key.send("hear", "rung", after=3600, timer="later")
            await room.key.send("hear", "rung", after=1, timer="soon")
            await working.deployment.at_rest()
    stream = working.deployment.streams.alarms_stream
    await (js.purge(stream) if loss == "purged" else js.delete_stream(stream))

    async with working.worker(room_service()):
        await room.key.call("turn", True)
        await eventually(lambda: _is(room.words(), ["rung"]))
        [alarm] = await js.stream_subjects(stream)

    later = Alarms(working.deployment.streams)._subject(key_of("rooms", "r-1"), "later")
    assert alarm == later


async def _is_heard(room: Room, word: str) -> bool:
    return word in await room.words()


async def _sending(room: Room) -> int:
    return int((await room.key.state()).sending)
