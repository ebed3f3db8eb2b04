"""What the time of a timer changes: one call is sent, and the next time is set."""

from dataclasses import field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_core.calls import CallRequestV1, Firing, key_of
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import Delivery
from rebaser_core.streams import Streams
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.files import SEAL_KEY, BatchFiles, SharedFiles
from rebaser_server.handlers import Context, Service
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.content import KeyChange, KeyContent, Timer
from rebaser_server.handlers.sending import Seals
from rebaser_server.handlers.service import CallRefused, CallUnkeepable

NOW = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
HOUR = "0 * * * *"
SEQUENCE = 9


@pytest.fixture
def application(tmp_path: Path) -> HandlerApplication:
    nowhere: Any = None  # no call here asks NATS
    batches = BatchStore(nowhere, BatchFiles(SharedFiles(str(tmp_path))))
    return HandlerApplication(Streams(js=nowhere), batches, {"orders": orders()})


def orders() -> Service:
    service = Service("orders", version=2)

    @service.state(version=2)
    class Order:
        lines: list[str] = field(default_factory=list)

    service.upgrade(1)(lambda old: old)

    @service.handler
    def look(ctx: Context[Order], *words: str) -> None: ...

    @service.handler
    def send(ctx: Context[Order], count: int, size: int = 1) -> None:
        for _ in range(count):
            ctx.to("o-2").send("look", "x" * size)

    return service


def call_of(handler: str, *arguments: Any, **more: Any) -> CallRequestV1:
    return CallRequestV1(
        id=RequestId(),
        **key_of("orders", "o-1")._asdict(),
        service="orders",
        key="o-1",
        handler=handler,
        arguments=list(arguments),
        **more,
    )


def request() -> Delivery:
    nowhere: Any = None
    reply = f"$JS.ACK.requests.run.1.{SEQUENCE}.1.{round(NOW.timestamp() * 1e9)}.0"
    return Delivery(nowhere, Msg(nowhere, "requests", reply, b"", None))


async def effect(
    application: HandlerApplication, content: KeyContent, call: CallRequestV1
) -> KeyChange:
    change, _ = await application._effect(content, request(), call)
    return change


def rung(application: HandlerApplication, content: KeyContent, at: str) -> KeyChange:
    """Changes by a ring of the timer `t`, which was set to `at`."""
    call = call_of("_", firing=Firing(name="t", at=at))
    return application._fired(content, request(), call, NOW)


def set_to(at: datetime, every: str | None = None, missed: str = "once") -> KeyContent:
    timer = Timer("remind", '["soon"]', _text(at), 3, every, None, missed)
    return KeyContent("orders", "o-1", timers={"t": timer})


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def test_a_timer_calls_its_own_key_and_is_over(application: HandlerApplication) -> None:
    change = rung(application, set_to(NOW), _text(NOW))

    [sent] = change.sends
    assert (sent.service, sent.key, sent.handler) == ("orders", "o-1", "remind")
    assert (sent.sequence, sent.number, sent.arguments) == (SEQUENCE, 0, '["soon"]')
    assert change.timers == {"t": None}


def test_a_timer_that_comes_again_is_set_to_the_next_time(application: HandlerApplication) -> None:
    """By this very request, so that its alarm follows the commit."""
    change = rung(application, set_to(NOW.replace(minute=0), HOUR), _text(NOW.replace(minute=0)))

    following = change.timers["t"]
    assert following is not None
    assert (following.next, following.set_by) == ("2026-05-01T13:00:00.000Z", SEQUENCE)
    assert len(change.sends) == 1


@pytest.mark.parametrize(("missed", "calls"), [("once", 1), ("skip", 0)])
def test_times_that_were_missed_are_made_up_by_one_call_or_left_out(
    application: HandlerApplication, missed: str, calls: int
) -> None:
    due = NOW - timedelta(hours=5)
    change = rung(application, set_to(due, HOUR, missed), _text(due))

    following = change.timers["t"]
    assert len(change.sends) == calls
    assert following is not None
    assert following.next == "2026-05-01T13:00:00.000Z"


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_the_only_time_of_a_timer_is_never_left_out(
    application: HandlerApplication, missed: str
) -> None:
    due = NOW - timedelta(hours=5)

    assert len(rung(application, set_to(due, missed=missed), _text(due)).sends) == 1


def test_a_timer_that_was_moved_or_is_over_takes_no_notice(
    application: HandlerApplication,
) -> None:
    """O5: whatever rings, late or twice; the timers of the key say what is due."""
    moved = set_to(NOW + timedelta(hours=1))

    for content in (moved, KeyContent("orders", "o-1")):
        with pytest.raises(CallRefused, match="not set to"):
            rung(application, content, _text(NOW))


def test_the_call_of_a_timer_is_of_the_version_that_set_it(
    application: HandlerApplication,
) -> None:
    timer = Timer("remind", "[]", _text(NOW), 3, version=2)

    [sent] = rung(application, KeyContent("orders", "o-1", timers={"t": timer}), _text(NOW)).sends

    assert sent.version == 2


@pytest.mark.parametrize(("version", "of_state"), [(3, 2), (2, 3)])
async def test_a_call_waits_for_a_worker_of_its_version_and_of_that_of_the_state(
    application: HandlerApplication, version: int, of_state: int
) -> None:
    content = KeyContent("orders", "o-1", '{"lines":[]}', of_state)

    with pytest.raises(NewerVersion, match="version 3"):
        await effect(application, content, call_of("look", service_version=version))


async def test_a_state_that_was_upgraded_is_kept_with_its_version(
    application: HandlerApplication,
) -> None:
    """Also if it reads as before: a later upgrade begins at that version."""
    text = '{"lines":[]}'
    former, present = (KeyContent("orders", "o-1", text, version) for version in (1, 2))
    look = call_of("look", service_version=2)

    changes = [await effect(application, content, look) for content in (former, present)]

    assert [(change.state, change.version) for change in changes] == [(text, 2), (None, 2)]


async def test_what_is_sent_has_an_id_that_follows_from_its_place(
    application: HandlerApplication,
) -> None:
    call = call_of("send", 2, service_version=2)

    first, again = [await effect(application, KeyContent(), call) for _ in range(2)]

    assert first.sends == again.sends
    assert len({sent.id for sent in first.sends}) == 2


async def test_what_is_sent_has_room_in_a_commit(application: HandlerApplication) -> None:
    with pytest.raises(CallUnkeepable, match="more than 262,144"):
        await effect(application, KeyContent(), call_of("send", 2, 150_000, service_version=2))


async def test_a_damaged_key_of_seals_is_an_error_of_the_store(tmp_path: Path) -> None:
    """O6: no sound call becomes a dead letter for it."""
    files = SharedFiles(str(tmp_path))
    files.put(SEAL_KEY, b"short")

    with pytest.raises(OSError, match="has 5 bytes"):
        await Seals(files).of(call_of("_"))
