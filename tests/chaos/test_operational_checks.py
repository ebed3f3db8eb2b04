"""What an operator would complain of is a violation; what a supervisor expects is none."""

from typing import Any

import pytest

from rebaser_server.commands.support.arguments import Exit
from tests.chaos.checker import judge
from tests.chaos.history import History, Kind
from tests.chaos.operational_checks import HELD, RSS

EXITED = {"name": "seat0-1", "what": "exited"}

COMPLAINTS = [
    ("EXIT", Kind.DAEMON, EXITED | {"code": 1, "asked": False}),
    ("EXIT", Kind.DAEMON, EXITED | {"code": Exit.NO_NATS, "asked": False}),
    ("EXIT", Kind.DAEMON, {"name": "seat0-1", "what": "hung"}),
    ("UNFORESEEN", Kind.UNFORESEEN, {"daemon": "d", "event": "work failed", "exception": "E"}),
    ("GROWTH", Kind.IDLE_TASKS, {"change_set": "w.c", "tasks": 5, "lines": 1}),
    ("GROWTH", Kind.MEMORY, {"name": "seat0-1", "rss": RSS + 1}),
    ("HELD", Kind.HELD, {"daemon": "seat0-1", "seconds": HELD + 0.01, "what": "plan"}),
]
SOUND = [
    (Kind.DAEMON, EXITED | {"code": 0, "asked": True}),
    (Kind.IDLE_TASKS, {"change_set": "w.c", "tasks": 5, "lines": 0}),
    (Kind.MEMORY, {"name": "seat0-1", "rss": RSS}),
    (Kind.HELD, {"daemon": "seat0-1", "seconds": HELD, "what": "plan"}),
]


@pytest.mark.parametrize(("rule", "kind", "data"), COMPLAINTS)
def test_operational_problems_are_violations(rule: str, kind: Kind, data: dict[str, Any]) -> None:
    history = _rested()

    history.add(kind, **data)

    assert [violation.rule for violation in judge(history)] == [rule]


@pytest.mark.parametrize(("kind", "data"), SOUND)
def test_expected_exits_are_no_violation(kind: Kind, data: dict[str, Any]) -> None:
    history = _rested()

    history.add(kind, **data)

    assert judge(history) == []


def _rested() -> History:
    history = History()
    nothing = {"requests": 0, "tasks": 0, "consumers": 0, "held": 0}
    history.add(Kind.REST, last_sequence=0, **nothing)
    return history
