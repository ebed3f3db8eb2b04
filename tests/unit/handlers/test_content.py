"""The content of a key: only effects change it, and it is the same after a replay."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rebaser_core.calls import Origin
from rebaser_core.commits import CallEffect, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSetId, RequestId
from rebaser_server.commit_log.state import State
from rebaser_server.files import SharedFiles
from rebaser_server.handlers import content
from rebaser_server.handlers.checkpoints import KeyMachine
from rebaser_server.handlers.content import KeyChange, KeyContent, Outgoing, Timer

SENDER = ChangeSetId()
TIMER = Timer("ring", "[]", "2026-01-01T00:00:00.000Z", 3, "0 0 * * *", "Europe/Paris", "skip", 2)


def place(sequence: int, index: int = 0, sender: ChangeSetId = SENDER) -> Origin:
    return Origin(change_set_id=sender, sequence=sequence, index=index)


def call(sequence: int, number: int = 0) -> Outgoing:
    return Outgoing(sequence, number, "orders", "o-1", "add", '["cup"]', None, 1, str(RequestId()))


@pytest.mark.parametrize(
    ("origin", "is_heard"),
    [
        (place(7, 2), True),
        (place(7, 1), True),
        (place(6, 9), True),
        (place(7, 3), False),
        (place(8, 0), False),
        (place(1, 0, ChangeSetId()), False),
    ],
)
def test_a_call_is_heard_up_to_the_place_of_the_last_one(origin: Origin, is_heard: bool) -> None:
    """O4: that one included, of each sender by itself."""
    key = KeyContent()
    key.take(KeyChange(heard=place(7, 2)))

    assert key.has_heard(origin) is is_heard


def test_the_sender_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_SENDERS", 2)
    key, (first, second, third) = KeyContent(), [ChangeSetId() for _ in range(3)]
    for sender, sequence in ((first, 1), (second, 2), (first, 3), (third, 4)):
        key.take(KeyChange(heard=place(sequence, 0, sender)))

    assert key.has_heard(place(3, 0, first))
    assert key.has_heard(place(4, 0, third))
    assert not key.has_heard(place(2, 0, second))


def test_a_commit_that_says_up_to_where_all_is_sent_keeps_what_is_behind() -> None:
    """O3: calls of requests that came while others were being sent are not covered."""
    key, calls = KeyContent(), [call(3), call(5, 0), call(5, 1), call(8)]
    key.take(KeyChange(sends=calls))

    key.complete(5)

    assert key.outgoing == calls[3:]


def test_the_trace_of_calls_is_kept_until_all_of_them_are_sent() -> None:
    key = KeyContent()
    key.take(KeyChange(sends=[call(3)], trace={"traceparent": "first"}))
    key.take(KeyChange(sends=[call(5), call(5, 1)], trace={"traceparent": "second"}))
    key.take(KeyChange(sends=[call(7)]))

    key.complete(3)
    assert key.traces == {5: {"traceparent": "second"}}
    key.complete(5)
    assert key.traces == {}


def test_a_change_without_a_state_leaves_the_state() -> None:
    key = KeyContent()
    key.take(KeyChange(("orders", "o-1"), '{"items":[]}', 3))

    key.take(KeyChange(heard=place(1)))

    assert (key.service, key.key, key.state, key.version) == ("orders", "o-1", '{"items":[]}', 3)


def test_timers_are_set_replaced_and_over() -> None:
    key = KeyContent()
    key.take(KeyChange(timers={"t": TIMER, "u": TIMER}))
    later = TIMER._replace(next="2027-01-01T00:00:00.000Z")

    key.take(KeyChange(timers={"t": later, "u": None, "never set": None}))

    assert key.timers == {"t": later}


@pytest.mark.parametrize(
    ("change", "is_dirty"),
    [
        (KeyChange(sends=[call(1)]), True),
        (KeyChange(timers={"t": TIMER}), True),
        (KeyChange(timers={"t": None}), False),
        (KeyChange(state="{}"), False),
        (KeyChange(heard=place(1)), False),
    ],
)
def test_calls_and_alarms_that_are_to_be_sent_leave_work(change: KeyChange, is_dirty: bool) -> None:
    assert change.is_dirty is is_dirty


def test_a_replay_of_effects_and_a_checkpoint_make_the_same_content() -> None:
    """O1: what a call sends is in its effect, as is all that it changes."""
    changes = [
        KeyChange(
            ("orders", "o-1"), '{"n":1}', 2, {"t": TIMER}, [call(1), call(1, 1)], place(9, 4)
        ),
        KeyChange(
            state='{"n":2}',
            version=2,
            timers={"t": None},
            sends=[call(4)],
            trace={"traceparent": "x"},
        ),
        KeyChange(heard=place(10)),
    ]
    live, replayed = KeyContent(), KeyContent()
    settled = SettledRequest(id=RequestId(), sequence=1, outcome=RequestOutcome.APPLIED)
    for change in changes:
        live.take(change)
        said = CallEffect.from_wire(CallEffect(effect=change.to_json()).to_wire())
        replayed.take_over(settled, said)

    assert replayed == live
    assert KeyContent.from_json(live.to_json()) == live


TEXT = "grün, \U0001f642" * 50_000


@pytest.mark.parametrize(
    "make",
    [
        lambda n: KeyChange(state=f"{n}{TEXT}"),
        lambda n: KeyChange(sends=[call(n)._replace(arguments=f"{n}{TEXT}")]),
        lambda n: KeyChange(timers={f"t{n}": TIMER._replace(arguments=f"{n}{TEXT}")}),
        lambda n: KeyChange(timers={f"{n}{i}": TIMER._replace(set_by=i) for i in range(10_000)}),
        lambda n: KeyChange(sends=[call(n, i) for i in range(10_000)]),
    ],
    ids=["state", "calls", "timers", "many timers", "many calls"],
)
def test_the_memory_of_a_key_is_estimated_by_all_that_it_holds(
    make: Callable[[int], KeyChange], tmp_path: Path
) -> None:
    """The bound on states in memory counts what handlers keep, of each kind."""
    machine = KeyMachine(SharedFiles(str(tmp_path)))
    changes = [make(number).to_json() for number in range(4)]
    tracemalloc.start()
    try:
        state = State(KeyContent())
        for change in changes:
            state.content.take(KeyChange.from_json(json.loads(json.dumps(change))))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.5 * taken < machine.footprint(state) < 2 * taken
