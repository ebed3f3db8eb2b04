"""The judge finds what it is there to find: one clean history, and one for each way to break it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.ids import RequestId
from tests.chaos.checker import REMEMBERED, REMEMBERED_FOR, judge
from tests.chaos.history import History, Kind
from tests.chaos.task_words import AGAIN

HERE, THERE = "w.here", "w.there"

FUNC = {"putFunc": {"funcId": "f", "name": "sum", "runtime": "builtin", "code": "sum"}}
DEFINE = [
    FUNC,
    {"putValue": {"valueId": "one", "value": 1}},
    {"putValue": {"valueId": "total", "funcId": "f", "inputs": {"values": ["one"]}}},
]
SET = [{"setValue": {"valueId": "one", "value": 5}}]


class Story:
    """Writes a history as a sound run would have left it, one change set at a time."""

    def __init__(self) -> None:
        self.history = History()
        self._line = 0
        self._last: dict[str, int] = {}
        self.heads: dict[str, dict[str, Any]] = {}

    def sent(
        self, request: str, batch: Any = SET, expected: str = "applied", change_set: str = HERE
    ) -> None:
        self.history.add(
            Kind.SENT, request=request, change_set=change_set, batch=batch, expected=[expected]
        )

    def stored(
        self, request: str, sequence: int, *, duplicate: bool = False, change_set: str = HERE
    ) -> None:
        self.history.add(
            Kind.STORED,
            request=request,
            change_set=change_set,
            sequence=sequence,
            duplicate=duplicate,
            expected=["applied"],
        )

    def commit(
        self,
        settled: dict[str, Any] | None = None,
        change_set: str = HERE,
        commit_id: str | None = None,
        **head: Any,
    ) -> None:
        self._line += 1
        before = self.heads.get(
            change_set,
            {"epoch": 0, "owner": "", "lastSequence": 0, "dirtySequence": 0, "cleanSequence": 0},
        )
        self.heads[change_set] = before | head
        commit = {
            "id": commit_id or f"line{self._line}",
            "previous": self._last.get(change_set, 0),
            "control": dict(self.heads[change_set]),
        }
        if settled is not None:
            commit["settled"] = settled
        self._last[change_set] = self._line
        self.history.add(Kind.COMMIT, change_set=change_set, line=self._line, commit=commit)

    def taken(self, epoch: int) -> None:
        self.commit(epoch=epoch, owner=f"daemon/{epoch}")

    def applied(self, request: str, sequence: int, *, dirty: bool = True) -> None:
        head = {"lastSequence": sequence} | ({"dirtySequence": sequence} if dirty else {})
        self.commit(_handled(request, sequence), **head)

    def claimed(self, claim: str, covers: int) -> None:
        self.commit(claim={"id": claim, "covers": covers})

    def result(self, claim: str, covers: int, sequence: int = 0) -> None:
        settled = _handled(claim, sequence, covers=covers)
        self.commit(settled, cleanSequence=covers, claim=None)

    def run(self, delivery: int, *, overtaken: bool = False, word: str = "") -> None:
        """A daemon's work on one delivery of task 1, and what was said of that delivery."""
        which = {"change_set": HERE, "delivery": [1, delivery]}
        self.history.add(Kind.RUN, daemon="daemon", told="taken", **which)
        if overtaken:
            self.history.add(Kind.RUN, daemon="daemon", told="ownership lost", **which)
        if word:
            self.history.add(Kind.TASK, daemon="daemon", delivery=[1, delivery], word=word)

    def dead_letter(self, sequence: int) -> None:
        self.history.add(Kind.DEAD_LETTER, change_set=HERE, sequence=sequence, reason="bad")

    def rest(self, last_sequence: int, **left: int) -> None:
        nothing = {"requests": 0, "tasks": 0, "consumers": 0, "held": 0}
        self.history.add(Kind.REST, last_sequence=last_sequence, **nothing | left)

    def values(self, one: Any, total: Any) -> None:
        self.history.add(
            Kind.VALUES, change_set=HERE, values={"one": ["ok", one], "total": ["ok", total]}
        )


def _handled(request: str, sequence: int, outcome: str = "applied", **more: Any) -> dict[str, Any]:
    return {"id": request, "sequence": sequence, "outcome": outcome} | more


def _clean(story: Story) -> None:
    """Two requests, the second of them stored twice, a poisoned one, and two updates."""
    story.sent("a", DEFINE)
    story.stored("a", 1)
    story.taken(1)
    story.applied("a", 1)
    story.claimed("c1", covers=1)
    story.sent("b")
    story.stored("b", 2)
    story.applied("b", 2)
    story.result("c1", covers=1)
    story.taken(2)
    story.commit(_handled("b", 3, "duplicate"), lastSequence=3)
    story.stored("b", 3)
    story.sent("p", [], expected="dead")
    story.stored("p", 4)
    story.dead_letter(4)
    story.commit(_handled("p", 4, "dead"), lastSequence=4)
    story.claimed("c2", covers=2)
    story.claimed("c3", covers=2)
    story.commit(_handled("p3", 0, covers=2))
    story.result("c3", covers=2)
    story.commit(owner="")
    story.run(1, overtaken=True)
    story.run(2, word="+ACK")
    story.values(5, 5)
    story.history.add(Kind.REPLY, request="b", ok=True, commit=4, message=None)
    story.rest(4)


def _lost(story: Story) -> None:
    story.sent("x")
    story.stored("x", 7)


def _vanished(story: Story) -> None:
    """Of a client that never learned whether it was stored, or of an update."""
    story.rest(7)


def _lost_when_repeated(story: Story) -> None:
    story.sent("x")
    story.stored("x", 2, duplicate=True)


def _taken_for_another_change_sets(story: Story) -> None:
    """NATS says that it has it already, and what it has is a request of the same id elsewhere."""
    story.sent("b", change_set=THERE)
    story.stored("b", 2, duplicate=True, change_set=THERE)


def _handled_as_another(story: Story) -> None:
    story.sent("x")
    story.stored("x", 7)
    story.commit(_handled("y", 7), lastSequence=7)


def _sound_but_dead(story: Story) -> None:
    story.sent("x")
    story.stored("x", 7)
    story.dead_letter(7)
    story.commit(_handled("x", 7, "dead"), lastSequence=7)


def _dead_without_a_letter(story: Story) -> None:
    story.commit(_handled("x", 7, "dead"), lastSequence=7)


def _applied_and_in_the_dead_letters(story: Story) -> None:
    story.dead_letter(2)


def _called_a_duplicate(story: Story) -> None:
    story.sent("x")
    story.stored("x", 7)
    story.commit(_handled("x", 7, "duplicate"), lastSequence=7)


def _overtaken(story: Story) -> None:
    story.applied("y", 8, dirty=False)
    story.applied("x", 7, dirty=False)


def _twice_by_id(story: Story) -> None:
    story.applied("b", 7, dirty=False)


def _twice_by_sequence(story: Story) -> None:
    story.commit(_handled("x", 4), lastSequence=4)


def _two_lines_after_one(story: Story) -> None:
    story._last[HERE] -= 1
    story.commit()


def _result_without_a_claim(story: Story) -> None:
    story.applied("x", 7)
    story.result("c4", covers=7)


def _request_taken_for_a_result(story: Story) -> None:
    story.applied("x", 7)
    story.claimed("c4", covers=7)
    story.result("c4", covers=7, sequence=8)


def _part_that_settles(story: Story) -> None:
    """It leaves the claim and yet makes what it covers clean."""
    story.applied("x", 7)
    story.claimed("c4", covers=7)
    story.commit(_handled("p1", 0, covers=7), cleanSequence=7)


def _part_without_its_claim(story: Story) -> None:
    """It is committed after another claim took the place of its own."""
    story.applied("x", 7)
    story.claimed("c4", covers=2)
    story.claimed("c5", covers=7)
    story.commit(_handled("p1", 0, covers=2))


def _result_of_an_earlier_claim(story: Story) -> None:
    story.applied("x", 7)
    story.claimed("c4", covers=7)
    story.claimed("c5", covers=7)
    story.result("c4", covers=7)


def _one_claim_twice(story: Story) -> None:
    story.applied("x", 7)
    story.claimed("c3", covers=7)
    story.result("c3", covers=7)


def _clean_goes_back(story: Story) -> None:
    story.commit(cleanSequence=1)


def _two_owners(story: Story) -> None:
    story.taken(3)
    story.commit(owner="another/3")


def _epoch_goes_back(story: Story) -> None:
    story.taken(1)


def _update_forgotten(story: Story) -> None:
    story.applied("x", 7)


def _update_of_what_was_before(story: Story) -> None:
    """Clean rises to a request that came after the claim."""
    story.claimed("c4", covers=2)
    story.applied("x", 7)
    story.result("c4", covers=7)


def _settled_by_one_who_was_overtaken(story: Story) -> None:
    story.run(3, overtaken=True, word="-NAK")


def _left(what: str) -> Callable[[Story], None]:
    def tell(story: Story) -> None:
        story.rest(6, **{what: 1})

    return tell


def _no_rest(story: Story) -> None:
    story.history.events = [e for e in story.history.events if e.kind is not Kind.REST]


def _table_lost(story: Story) -> None:
    story.values({"missing": "the rows of table are not whole in the store"}, 5)


def _attempt_left(story: Story) -> None:
    story.history.add(Kind.TABLES, tables=1, left=["a directory with two attempts"])


def _wrong_value(story: Story) -> None:
    story.values(5, 1)


def _value_lost(story: Story) -> None:
    story.history.add(Kind.VALUES, change_set=HERE, values={"one": ["ok", 5]})


def _wrong_reply(story: Story) -> None:
    story.history.add(Kind.REPLY, request="b", ok=False, commit=None, message="no")


def _reply_from_nowhere(story: Story) -> None:
    story.sent("x")
    story.history.add(Kind.REPLY, request="x", ok=True, commit=9, message=None)


def _no_reply(story: Story) -> None:
    story.history.add(Kind.NO_REPLY, request="b")


def _hole(story: Story) -> None:
    story._last[HERE] += 7
    story.commit()


BROKEN = [
    ("S1", _lost),
    ("S1", _vanished),
    ("S1", _lost_when_repeated),
    ("S1", _taken_for_another_change_sets),
    ("S1", _handled_as_another),
    ("S1", _sound_but_dead),
    ("S1", _dead_without_a_letter),
    ("S1", _applied_and_in_the_dead_letters),
    ("S1", _called_a_duplicate),
    ("S2", _overtaken),
    ("S3", _twice_by_id),
    ("S3", _twice_by_sequence),
    ("S3", _two_lines_after_one),
    ("S4", _result_without_a_claim),
    ("S4", _request_taken_for_a_result),
    ("S4", _result_of_an_earlier_claim),
    ("S4", _part_that_settles),
    ("S4", _part_without_its_claim),
    ("S4", _one_claim_twice),
    ("S4", _clean_goes_back),
    ("S4", _two_owners),
    ("S4", _epoch_goes_back),
    ("S5", _update_forgotten),
    ("S5", _update_of_what_was_before),
    ("S6", _left("requests")),
    ("S6", _left("tasks")),
    ("S6", _left("consumers")),
    ("S6", _left("held")),
    ("S6", _no_rest),
    ("W15", _settled_by_one_who_was_overtaken),
    ("VALUES", _wrong_value),
    ("VALUES", _value_lost),
    ("VALUES", _table_lost),
    ("TABLES", _attempt_left),
    ("REPLY", _wrong_reply),
    ("REPLY", _reply_from_nowhere),
    ("REPLY", _no_reply),
    ("RECORD", _hole),
]


def test_a_sound_run_is_not_accused() -> None:
    story = Story()
    _clean(story)

    assert judge(story.history) == []


@pytest.mark.parametrize(
    ("rule", "breach"), BROKEN, ids=[breach.__qualname__.strip("_") for _, breach in BROKEN]
)
def test_every_breach_is_found(rule: str, breach: Callable[[Story], None]) -> None:
    story = Story()
    _clean(story)
    if breach in (_vanished, *(b for r, b in BROKEN if r == "S6")):
        _no_rest(story)  # the breach tells another one

    breach(story)

    assert rule in {violation.rule for violation in judge(story.history)}


def test_a_word_on_a_delivery_whose_numbers_came_twice_proves_nothing() -> None:
    """A killed server, or a consumer that was made anew, may give them twice."""
    story = Story()
    _clean(story)
    _settled_by_one_who_was_overtaken(story)
    accused = judge(story.history)

    story.run(3, word=AGAIN)
    came_twice = judge(story.history)

    assert [violation.rule for violation in accused] == ["W15"]
    assert came_twice == []


def test_another_daemons_word_is_its_own() -> None:
    story = Story()
    _clean(story)
    story.run(3, overtaken=True)
    story.history.add(Kind.TASK, daemon="another", delivery=[1, 3], word="+ACK")

    assert judge(story.history) == []


def test_a_request_of_the_same_id_in_another_change_set_is_another() -> None:
    story = Story()
    _clean(story)
    story.sent("b", DEFINE, change_set=THERE)
    story.stored("b", 5, change_set=THERE)
    story.commit(_handled("b", 5), change_set=THERE, lastSequence=5)
    story.history.add(Kind.VALUES, change_set=THERE, values={"one": ["ok", 1], "total": ["ok", 1]})
    story.rest(5)

    assert judge(story.history) == []


@pytest.mark.parametrize(
    ("others", "milliseconds", "violated"),
    [
        pytest.param(REMEMBERED, REMEMBERED_FOR, [], id="forgotten by number and by time"),
        pytest.param(REMEMBERED - 1, REMEMBERED_FOR, ["S3"], id="among the last of them"),
        pytest.param(REMEMBERED, REMEMBERED_FOR - 1, ["S3"], id="within the horizon"),
    ],
)
def test_a_request_takes_effect_again_only_once_its_id_may_be_forgotten(
    others: int, milliseconds: int, violated: list[str]
) -> None:
    story, numbers, began = Story(), count(1), 1_700_000_000_000

    def settled(request: str, at: int) -> None:
        sequence = next(numbers)
        story.sent(request, [])
        story.stored(request, sequence)
        commit_id = str(RequestId.from_timestamp(at / 1000))
        story.commit(_handled(request, sequence), commit_id=commit_id, lastSequence=sequence)

    settled("again", began)
    for number in range(others):
        settled(f"other {number}", began + 1)
    settled("again", began + milliseconds)
    story.rest(others + 2)

    assert [violation.rule for violation in judge(story.history)] == violated


@pytest.mark.parametrize(
    ("milliseconds", "violated"), [(REMEMBERED_FOR, []), (REMEMBERED_FOR - 1, ["REPLY"])]
)
def test_an_outcome_is_known_as_long_as_its_request_is_remembered(
    milliseconds: int, violated: list[str]
) -> None:
    story, began = Story(), 1_700_000_000_000
    for number in range(1, REMEMBERED + 3):
        at = began + (milliseconds if number > 1 else 0)
        story.sent(f"{number}", [])
        commit_id = str(RequestId.from_timestamp(at / 1000))
        story.commit(_handled(f"{number}", number), commit_id=commit_id, lastSequence=number)
    story.history.add(Kind.NO_REPLY, request="1", change_set=HERE)
    story.rest(REMEMBERED + 2)

    assert [violation.rule for violation in judge(story.history)] == violated


def test_a_saved_history_is_judged_alike(tmp_path: Path) -> None:
    story = Story()
    _clean(story)
    _lost(story)
    _wrong_value(story)

    story.history.save(tmp_path / "history.jsonl")

    assert judge(History.load(tmp_path / "history.jsonl")) == judge(story.history) != []
