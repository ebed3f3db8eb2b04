"""Whether a history keeps what the protocol promises: S1 to S6, its values, and calm daemons.

Pure: nothing but the history is looked at, so a failed run can be judged again from its file.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.chaos.branches import Families, is_over, wrong_with
from tests.chaos.calls import wrong_books, wrong_calls
from tests.chaos.history import Event, History, Kind
from tests.chaos.indexed_history import Case, Line, Violation, holes
from tests.chaos.operational_checks import exits, growth, held, unforeseen
from tests.chaos.task_words import AGAIN

SHOWN = 3  # of many alike
REMEMBERED = 1_000
"""Requests behind one after which its id may be forgotten (W7),"""
REMEMBERED_FOR = 120_000
"""and milliseconds, from its storing to a later one's: both must have passed."""


def judge(history: History) -> list[Violation]:
    """Every violation that the history shows; none if it keeps all promises."""
    case = Case(history)
    rules = (
        _recorded, _lost, _dead, _order, _once, _serial, _covered, _at_rest, _silent, _values,
        _tables, _branches, wrong_calls, wrong_books, _replies, exits, unforeseen, growth, held,
    )  # fmt: skip
    return [violation for rule in rules for violation in rule(case)]


def _recorded(case: Case) -> Iterator[Violation]:
    for change_set in sorted(case.logs.keys() - case.complete):
        line = next(holes(case.logs[change_set]))
        what = f"line {line.sequence} follows {line.previous}, which was not recorded"
        yield Violation("RECORD", change_set, what)


def _lost(case: Case) -> Iterator[Violation]:
    """S1: whatever is stored is handled, as what it is."""
    gone = []
    for event in case.history.of(Kind.STORED):
        data = event.data
        if data["change_set"] in case.logs and data["change_set"] not in case.complete:
            continue
        if data["duplicate"]:
            if not case.outcomes[case.asked(data)]:
                gone.append((data["change_set"], f"{data['request']}, stored twice"))
            continue
        settled = case.by_sequence.get(data["sequence"], [])
        if not settled:
            gone.append((data["change_set"], f"{data['request']} at {data['sequence']}"))
        for change_set, what in settled:
            if change_set != data["change_set"]:
                yield Violation("S1", change_set, f"handled {data['sequence']} of another one")
            elif case.asked(data) in case.sent and what["id"] != data["request"]:
                expected = f"{data['sequence']} is {data['request']}"
                yield Violation("S1", change_set, f"{expected}, handled as {what['id']}")
            else:
                yield from _wrong_outcome(case, data, what)
    for change_set, what in gone:
        yield Violation("S1", change_set, f"never handled: {what}")
    yield from _unaccounted(case)


def _wrong_outcome(
    case: Case, stored: dict[str, Any], settled: dict[str, Any]
) -> Iterator[Violation]:
    expected = case.sent.get(case.asked(stored), stored).get("expected", ["applied"])
    outcome = settled["outcome"]
    if outcome == "duplicate":
        earlier = case.outcomes[stored["change_set"], settled["id"]]
        if not earlier.keys() - {"duplicate"}:
            what = f"{settled['id']} is called a duplicate, but was never handled"
            yield Violation("S1", stored["change_set"], what)
    elif outcome not in expected:
        what = f"{settled['id']} is {outcome}, not {' or '.join(expected)}"
        yield Violation("S1", stored["change_set"], f"{what}: {settled.get('message')}")


def _unaccounted(case: Case) -> Iterator[Violation]:
    """Sequences of the requests' stream that no log settles, whoever sent them.

    A request whose subject names no change set has no log: its dead letter settles it.
    """
    if case.rest is None or case.complete != set(case.logs):
        return
    letters = {event.data["sequence"] for event in case.history.of(Kind.DEAD_LETTER)}
    for sequence in range(1, case.rest["last_sequence"] + 1):
        if sequence not in case.by_sequence and sequence not in letters:
            yield Violation("S1", "", f"request {sequence} is gone, and no log settles it")


def _dead(case: Case) -> Iterator[Violation]:
    """S1: what a log calls dead is in the dead letters (L2), and nothing else is."""
    letters = {event.data["sequence"] for event in case.history.of(Kind.DEAD_LETTER)}
    for sequence, entries in case.by_sequence.items():
        for change_set, settled in entries:
            if settled["outcome"] == "dead" and sequence not in letters:
                yield Violation("S1", change_set, f"{sequence} is dead without a dead letter")
            if settled["outcome"] != "dead" and sequence in letters:
                what = f"{sequence} is {settled['outcome']}, and in the dead letters"
                yield Violation("S1", change_set, what)


def _order(case: Case) -> Iterator[Violation]:
    """S2: a log settles requests in the order in which they are stored."""
    for change_set, log in case.logs.items():
        sequences = [line.settled["sequence"] for line in log if line.settled is not None]
        sequences = [sequence for sequence in sequences if sequence]  # results have none
        for before, after in pairwise(sequences):
            if after < before:
                yield Violation("S2", change_set, f"{after} took effect after {before}")
        for before, after in pairwise(log):
            if after.head["lastSequence"] < before.head["lastSequence"]:
                yield Violation("S2", change_set, f"line {after.sequence} goes back in sequence")
            if after.previous != before.sequence and after.previous <= before.sequence:
                what = f"lines {before.sequence} and {after.sequence} both follow {after.previous}"
                yield Violation("S3", change_set, what)


def _once(case: Case) -> Iterator[Violation]:
    """S3: no request takes effect twice, by its id and by its sequence."""
    for (change_set, request), outcomes in case.outcomes.items():
        if outcomes["applied"] + outcomes["dead"] > 1 and _too_early(case, change_set, request):
            what = f"{request} took effect more than once: {dict(outcomes)}"
            yield Violation("S3", change_set, what)
    for sequence, entries in case.by_sequence.items():
        if len(entries) > 1:
            yield Violation("S3", entries[0][0], f"{sequence} was settled {len(entries)} times")


def _too_early(case: Case, change_set: str, request: str) -> bool:
    """Whether it took effect again while its id had to be remembered (W7)."""
    settled = _settled(case, change_set)
    places = [n for n, line in enumerate(settled) if (line.settled or {})["id"] == request]
    return any(not _forgettable(settled[place : again + 1]) for place, again in pairwise(places))


def _settled(case: Case, change_set: str) -> list[Line]:
    """The lines by which the change set remembers requests."""
    return [
        line
        for line in case.logs[change_set]
        if line.settled and line.settled["sequence"] and line.settled["outcome"] != "duplicate"
    ]


def _forgettable(settled: list[Line]) -> bool:
    """Whether the id of the first of these requests may be forgotten when the last one comes."""
    return (
        len(settled) > REMEMBERED + 1 and settled[-1].stored - settled[0].stored >= REMEMBERED_FOR
    )


def _serial(case: Case) -> Iterator[Violation]:
    """S4: results commit under the claim that stands, once for each, and cover ever more."""
    for change_set in sorted(case.complete):
        before = {"epoch": 0, "owner": "", "lastSequence": 0, "cleanSequence": 0}
        before |= {"dirtySequence": 0, "claim": None}
        committed: set[str] = set()
        for line in case.logs[change_set]:
            for what in _wrong_step(before, line, committed):
                yield Violation("S4", change_set, f"line {line.sequence}: {what}")
            before = line.head


def _wrong_step(before: dict[str, Any], line: Line, committed: set[str]) -> Iterator[str]:
    head, claim = line.head, before.get("claim")
    if head["epoch"] not in (before["epoch"], before["epoch"] + 1):
        yield f"epoch {head['epoch']} follows {before['epoch']}"
    if head["epoch"] == before["epoch"] and head["owner"] not in (before["owner"], ""):
        yield f"two owners in epoch {head['epoch']}: {before['owner']} and {head['owner']}"
    if head["cleanSequence"] < before["cleanSequence"]:
        yield f"clean goes back from {before['cleanSequence']} to {head['cleanSequence']}"
    new = head.get("claim")
    if new and new != claim and new["covers"] > head["dirtySequence"]:
        yield f"claim covers {new['covers']}, beyond {head['dirtySequence']}"
    yield from _wrong_result(claim, line)
    if is_over(head) and head["cleanSequence"] == head["dirtySequence"]:
        return  # nothing of it is computed any more
    is_result = line.settled is not None and line.settled.get("covers") is not None
    is_result = is_result and not _is_part(claim, line)
    if head["cleanSequence"] > before["cleanSequence"] or is_result:
        yield from _wrong_end(claim, head, committed)


def _wrong_end(
    claim: dict[str, Any] | None, head: dict[str, Any], committed: set[str]
) -> Iterator[str]:
    """Faults of the end of a claim, which makes clean what it covers."""
    if not claim or head["cleanSequence"] != claim["covers"]:
        yield f"clean became {head['cleanSequence']} under claim {claim}"
    elif head.get("claim") == claim:
        yield f"claim {claim['id']} stands although what it covers is clean"
    elif claim["id"] in committed:
        yield f"claim {claim['id']} was committed twice"
    else:
        committed.add(claim["id"])


def _wrong_result(claim: dict[str, Any] | None, line: Line) -> Iterator[str]:
    result = line.settled
    if result is None or result.get("covers") is None:
        return
    if result["sequence"]:
        yield f"request {result['sequence']} was taken for the result of {result['id']}"
    is_its = claim is not None and claim["id"] == result["id"]
    if result["outcome"] == "applied" and not is_its and not _is_part(claim, line):
        yield f"result {result['id']} committed, but the claim was {claim}"


def _is_part(claim: dict[str, Any] | None, line: Line) -> bool:
    """Whether the line has a part of what is computed under the claim, which goes on."""
    result = line.settled or {}
    if claim is None or line.head.get("claim") != claim:
        return False
    return result.get("covers") == claim["covers"] and result["id"] != claim["id"]


def _covered(case: Case) -> Iterator[Violation]:
    """S5: after the last request that made it dirty an update was claimed, and committed."""
    for change_set in sorted(case.complete):
        log = case.logs[change_set]
        head = log[-1].head
        if is_over(head):
            continue
        if head["dirtySequence"] > head["cleanSequence"]:
            what = f"an update is due for {head['dirtySequence']}, and nobody makes it"
            yield Violation("S5", change_set, what)
            continue
        dirtied = claimed = -1
        dirty = 0
        for index, line in enumerate(log):
            if line.head["dirtySequence"] > dirty:
                dirtied, dirty = index, line.head["dirtySequence"]
            claim = line.claim
            if claim is not None and claim["covers"] >= dirty:
                claimed = index
        if dirty and claimed < dirtied:
            yield Violation("S5", change_set, f"no update was claimed after {dirty}")


def _at_rest(case: Case) -> Iterator[Violation]:
    """S6: in the end nothing is left, and nobody holds anything."""
    if case.rest is None:
        yield Violation("S6", "", "it never came to rest")
        return
    for rest in case.rests:
        for what in ("requests", "tasks", "consumers", "held"):
            if rest[what]:
                details = str(rest.get("details", ""))[:500]
                yield Violation("S6", "", f"{rest[what]} {what} left at rest {details}")
    for change_set, log in case.logs.items():
        if log[-1].claim is not None:
            yield Violation("S6", change_set, f"claim left at rest: {log[-1].claim}")


def _silent(case: Case) -> Iterator[Violation]:
    """W15: a run that knows that its task is not its own any more settles nothing.

    It settles only at its end, and says that this was one without a settling word; so its daemon
    says none on its delivery, whatever the order in which all this was heard. Of deliveries to
    one daemon that have the same numbers none is judged.
    """
    words: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for event in case.history.of(Kind.TASK):
        words[_delivered(event)].add(event.data["word"])
    for event in case.history.of(Kind.RUN):
        said = words[_delivered(event)]
        if event.data["told"] != "taken" and said and AGAIN not in said:
            task, number = event.data["delivery"]
            what = f"{' and '.join(sorted(said))} on delivery {number} of task {task}"
            yield Violation("W15", event.data["change_set"], f"{event.data['daemon']} said {what}")


def _delivered(event: Event) -> tuple[str, ...]:
    """The daemon, the task and the delivery that a run or a word is about."""
    return (event.data["daemon"], *map(str, event.data["delivery"]))


def _values(case: Case) -> Iterator[Violation]:
    """The end is what the requests make of it, one after the other, in the order of the log."""
    families = Families(case.logs, case.sent)
    for event in case.history.of(Kind.VALUES):
        change_set, found = event.data["change_set"], event.data["values"]
        if not case.complete.issuperset(families.related(change_set)):
            continue
        expected = families.model(change_set).values()
        wrong = sorted(v for v in expected | found if expected.get(v) != found.get(v))
        for value_id in wrong[:SHOWN]:
            what = f"{value_id} is {found.get(value_id)}, not {expected.get(value_id)}"
            yield Violation("VALUES", change_set, f"{what} ({len(wrong)} in all)")


def _tables(case: Case) -> Iterator[Violation]:
    """Nothing is left of tables that nothing names, nor of attempts to write one."""
    for event in case.history.of(Kind.TABLES):
        for what in event.data["left"]:
            yield Violation("TABLES", "", what)


def _branches(case: Case) -> Iterator[Violation]:
    """Head comes to every open branch, a difference to head once and as a whole, nothing after."""
    families = Families(case.logs, case.sent)
    records = {e.data["change_set"]: e.data["record"] for e in case.history.of(Kind.RECORD)}
    for change_set in sorted(case.complete):
        if case.complete.issuperset(families.related(change_set)):
            for what in wrong_with(families, change_set, records.get(change_set)):
                yield Violation("BRANCH", change_set, what)


def _replies(case: Case) -> Iterator[Violation]:
    """A reply says what the log says; whoever asks again learns it."""
    lines = {
        (change_set, line.settled["id"]): (line.sequence, line.settled)
        for change_set, log in case.logs.items()
        for line in log
        if line.settled is not None and line.settled["outcome"] != "duplicate"
    }
    for event in case.history.of(Kind.REPLY):
        change_set, request = case.asked(event.data)
        ok = event.data["ok"]
        if change_set not in case.complete:
            continue
        if (change_set, request) not in lines:
            yield Violation("REPLY", change_set, f"{request} was answered, but never handled")
            continue
        sequence, settled = lines[change_set, request]
        if ok != (settled["outcome"] not in ("dead", "refused")):
            yield Violation("REPLY", change_set, f"{request} is {settled['outcome']}, not ok={ok}")
        elif ok and event.data["commit"] != sequence:
            what = f"{request} is in line {sequence}, answered with {event.data['commit']}"
            yield Violation("REPLY", change_set, what)
    first_lines = (case.rest or {}).get("first_lines", {})
    for event in case.history.of(Kind.NO_REPLY):
        change_set, request = case.asked(event.data)
        line, _ = lines.get((change_set, request), (0, None))
        behind = [later for later in _settled(case, change_set) if later.sequence >= line]
        if line >= first_lines.get(change_set, 0) and not _forgettable(behind):
            yield Violation("REPLY", change_set, f"{request} was asked for again, in vain")
