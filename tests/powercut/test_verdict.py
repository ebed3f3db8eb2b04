"""What a power cut cost is counted, and what is wrong apart from that is found."""

from pathlib import Path
from typing import Any

from rebaser_core.subjects import Subjects
from tests.chaos.history import Event, History, Kind
from tests.powercut.aftermath import Aftermath
from tests.powercut.life import Conditions, Cut, Life
from tests.powercut.verdict import Verdict, decide

HERE = "w.here"
SUBJECTS = Subjects()


def test_what_survived_whole_is_not_accused() -> None:
    verdict = judged(requests=2, lines=2, after=[line(1, "one", 1), line(2, "two", 2)])

    assert verdict.violations == []
    assert (verdict.acknowledged, verdict.lost, verdict.seconds) == (2, 0, 0.0)


def test_a_lost_end_is_counted_from_its_first_acknowledgement_on() -> None:
    verdict = judged(requests=1, lines=1, after=[line(1, "one", 1)])

    assert {violation.rule for violation in verdict.violations} == {"CUT"}
    assert (verdict.acknowledged, verdict.lost, verdict.seconds) == (2, 1, 2.0)


def test_a_request_that_its_stream_has_and_no_log_settles_is_lost() -> None:
    verdict = judged(requests=2, lines=1, after=[line(1, "one", 1)])

    assert {"CUT", "S1"} <= {violation.rule for violation in verdict.violations}
    assert verdict.lost == 1


def test_a_line_that_is_another_than_before_the_cut_is_found() -> None:
    verdict = judged(requests=2, lines=2, after=[line(1, "one", 1), line(2, "one", 2)])

    assert ("CUT", HERE, "line 2 is another") in verdict.violations


def test_a_change_set_that_cannot_be_read_is_found() -> None:
    verdict = judged(requests=0, lines=0, after=[], unreadable={HERE: "no such file"})

    assert ("STATE", HERE, "no such file") in verdict.violations


def judged(
    *, requests: int, lines: int, after: list[Event], unreadable: dict[str, str] | None = None
) -> Verdict:
    """Two requests were stored and handled, 2 s and 1 s before the cut. Then came `after`."""
    before = History(
        [
            *(stored(request, n) for n, request in enumerate(("one", "two"), 1)),
            line(1, "one", 1),
            line(2, "two", 2),
        ]
    )
    cut = Cut(0, Path(), len(before.events), at=4.0)
    life = Life(Conditions("seed"), before, [], [cut])
    last = {SUBJECTS.requests_stream: requests, SUBJECTS.commits_stream: lines}
    rest = {"requests": 0, "tasks": 0, "consumers": 0, "held": 0, "last_sequence": requests}
    end = Event(1.0, Kind.REST, rest)
    aftermath = Aftermath(last, History([*after, end]), unreadable=unreadable or {})
    return decide(life, cut, aftermath)


def stored(request: str, sequence: int) -> Event:
    data = {
        "request": request,
        "change_set": HERE,
        "sequence": sequence,
        "duplicate": False,
        "expected": ["applied"],
    }
    return Event(float(sequence), Kind.STORED, data)


def line(number: int, request: str, sequence: int) -> Event:
    head: dict[str, Any] = {
        "epoch": 1,
        "owner": "daemon",
        "lastSequence": sequence,
        "dirtySequence": 0,
        "cleanSequence": 0,
    }
    settled = {"id": request, "sequence": sequence, "outcome": "applied"}
    commit = {"previous": number - 1, "control": head, "settled": settled}
    return Event(0.5, Kind.COMMIT, {"change_set": HERE, "line": number, "commit": commit})
