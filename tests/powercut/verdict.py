"""What a power cut cost, and whether the rest keeps what the protocol promises. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from rebaser_core.subjects import Subjects
from tests.chaos.checker import judge
from tests.chaos.history import Event, History, Kind
from tests.chaos.indexed_history import Violation
from tests.powercut.aftermath import Aftermath
from tests.powercut.life import Cut, Life


@dataclass(frozen=True)
class Verdict:
    """On one cut."""

    cut: Cut
    aftermath: Aftermath
    history: History
    """What was known before the cut and survived it, and all that came after it."""
    violations: list[Violation]
    acknowledged: int
    """Requests that a client knew to be stored."""
    lost: int
    """Those of them that no log settles and no stream holds."""
    seconds: float
    """From the first acknowledgement of a lost one to the cut; 0 if none is lost."""


def decide(life: Life, cut: Cut, aftermath: Aftermath) -> Verdict:
    """Judge one cut."""
    before = life.history.events[: cut.seen]
    after = list(_after(before, cut, aftermath))
    survivors = list(_surviving(before, aftermath))
    lost = _lost(before, [*survivors, *after])
    forgotten = {event.data["request"] for event in lost}
    history = History([*survivors, *(e for e in after if not _is_unknown(e, forgotten))])
    violations = [*_contradictions(before, aftermath), *judge(history)]
    if aftermath.refused:
        violations.append(Violation("START", "", aftermath.refused))
    violations += [Violation("STATE", c, why) for c, why in sorted(aftermath.unreadable.items())]
    return Verdict(
        cut,
        aftermath,
        history,
        violations,
        acknowledged=len({event.data["sequence"] for event in before if _is_acknowledged(event)}),
        lost=len(lost),
        seconds=cut.at - min(event.at for event in lost) if lost else 0.0,
    )


def _is_unknown(event: Event, forgotten: set[str]) -> bool:
    """Whether it says that nothing is known of what is known to be lost."""
    return event.kind is Kind.NO_REPLY and event.data["request"] in forgotten


def _is_acknowledged(event: Event) -> bool:
    return event.kind is Kind.STORED and not event.data["duplicate"]


def _surviving(before: list[Event], aftermath: Aftermath) -> Iterator[Event]:
    """What is as before: the judge looks for what it cost elsewhere than in what is gone.

    Dead letters are read again.
    """
    for event in before:
        gone = (
            (event.kind is Kind.COMMIT and not _is_kept(event, aftermath))
            or (event.kind is Kind.STORED and not _is_stored(event, aftermath))
            or (event.kind is Kind.REPLY and (event.data["commit"] or 0) > _last_line(aftermath))
        )
        if not gone and event.kind is not Kind.DEAD_LETTER:
            yield event


def _after(before: list[Event], cut: Cut, aftermath: Aftermath) -> Iterator[Event]:
    """Without the lines that were known before."""
    known = {line for line, event in _lines(before).items() if _is_kept(event, aftermath)}
    yield Event(cut.at, Kind.FAULT, {"fault": "power of nats cut", "phase": "begins"})
    for event in aftermath.history.events:
        if event.kind is not Kind.COMMIT or event.data["line"] not in known:
            yield Event(round(cut.at + event.at, 4), event.kind, event.data)


def _lines(events: list[Event]) -> dict[int, Event]:
    return {event.data["line"]: event for event in events if event.kind is Kind.COMMIT}


def _last_line(aftermath: Aftermath) -> int:
    return aftermath.last[Subjects().commits_stream] or 0


def _is_kept(line: Event, aftermath: Aftermath) -> bool:
    return bool(line.data["line"] <= _last_line(aftermath))


def _is_stored(acknowledgement: Event, aftermath: Aftermath) -> bool:
    last = aftermath.last[Subjects().requests_stream] or 0
    return bool(acknowledgement.data["sequence"] <= last)


def _contradictions(before: list[Event], aftermath: Aftermath) -> Iterator[Violation]:
    """What was known before the cut, and is not there any more, or is another."""
    known, found = _lines(before), _lines(aftermath.history.events)
    stored = [event for event in before if _is_acknowledged(event)]
    if missing := [event for event in stored if not _is_stored(event, aftermath)]:
        yield Violation("CUT", "", f"{len(missing)} acknowledged requests are not stored")
    gone = [line for line, event in known.items() if not _is_kept(event, aftermath)]
    if gone:
        yield Violation("CUT", "", f"{len(gone)} lines of the log are lost, from {min(gone)} on")
    for line, event in known.items():
        if line in found and _is_kept(event, aftermath) and found[line].data != event.data:
            yield Violation("CUT", event.data["change_set"], f"line {line} is another")


def _lost(before: list[Event], after: list[Event]) -> list[Event]:
    """Acknowledgements of requests that no log settles, under their own id where they have one."""
    lines = [event.data["commit"].get("settled") or {} for event in _lines(after).values()]
    settled = {line.get("id") for line in lines} | {line.get("sequence") for line in lines}
    return [
        event
        for event in filter(_is_acknowledged, before)
        if (event.data["request"] or event.data["sequence"]) not in settled
    ]
