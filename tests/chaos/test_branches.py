"""The judge of branches is told of histories that are sound, and of ones that are not."""

from typing import Any

import pytest

from rebaser_core.ids import RequestId
from rebaser_server.graph_application.commands import head_request_id
from tests.chaos.checker import judge
from tests.chaos.history import History, Kind

W, HEAD, BRANCH = (
    "01KDVDNA00QDAHPXXC95CRZXSR",
    "01KDVDNA00G6DR7FPGEJ0WRNY4",
    "01KDVDNV4W3E21VQ7V3CKYJBKC",
)
ONE, TWO, APPLY, EDIT, LATE = (f"01KDVDNA00000000000000000{n}" for n in range(5))
AT_HEAD = str(head_request_id(RequestId.from_str(APPLY)))
VALUE = "01KDVDNA00VVVVVVVVVVVVVVVV"


class Story:
    """Head has two lines; the branch edits the value, is applied, and refuses what comes after."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.sent = {
            ONE: {"batch": put(1)}, TWO: {"batch": put(2)}, EDIT: {"batch": put(9)},
            APPLY: {"batch": None, "action": "apply"}, LATE: {"batch": put(7)},
        }  # fmt: skip
        self.values = {HEAD: 9}
        self.record = "applied"
        self.head(1, ONE)
        self.branch(2, 2, None, EDIT)
        self.head(3, TWO)
        self.branch(4, 4, {"status": "applying", "request": APPLY}, APPLY, cursor=3)
        self.head(5, AT_HEAD)
        closed = {"status": "applied", "request": APPLY, "commit": 5}
        self.branch(6, 4, closed, None, cursor=3)
        self.branch(7, 6, closed, LATE, "refused", cursor=3)

    def head(self, line: int, request: str) -> None:
        self._line(HEAD, line, line, request, "applied", {})

    def branch(
        self, line: int, last: int, closing: dict[str, Any] | None,
        request: str | None, outcome: str = "applied", cursor: int = 1,
    ) -> None:  # fmt: skip
        base = {"changeSetId": HEAD, "commit": 1}
        more: dict[str, Any] = {"branch": {"base": base, "head": HEAD, "cursor": cursor}}
        if closing is not None:
            more["closing"] = closing
        self._line(BRANCH, line, last, request, outcome, more)

    def _line(
        self, change_set: str, line: int, last: int, request: str | None, outcome: str, more: Any
    ) -> None:
        before = [commit for where, commit in self.lines if where == change_set]
        commit: dict[str, Any] = {
            "line": line,
            "previous": before[-1]["line"] if before else 0,
            "control": {
                "epoch": 1, "owner": "", "lastSequence": last, "dirtySequence": 0,
                "cleanSequence": 0, **more,
            },
        }  # fmt: skip
        if request is not None:
            commit["settled"] = {"id": request, "sequence": last, "outcome": outcome}
        self.lines.append((change_set, commit))

    def violations(self) -> list[str]:
        history = History()
        for request, about in self.sent.items():
            where = HEAD if request in (ONE, TWO) else BRANCH
            expected = ["applied", "refused"]
            history.add(
                Kind.SENT, request=request, change_set=f"{W}.{where}", expected=expected, **about
            )
        for change_set, data in self.lines:
            commit = {name: value for name, value in data.items() if name != "line"}
            history.add(
                Kind.COMMIT, change_set=f"{W}.{change_set}", line=data["line"], commit=commit
            )
        for change_set, value in self.values.items():
            found = {VALUE: ["ok", value]}
            history.add(Kind.VALUES, change_set=f"{W}.{change_set}", values=found)
        record = {"status": self.record}
        history.add(Kind.RECORD, change_set=f"{W}.{BRANCH}", record=record)
        nothing = dict.fromkeys(("requests", "tasks", "consumers", "held", "last_sequence"), 0)
        history.add(Kind.REST, **nothing)
        return [str(violation) for violation in judge(history)]


def put(value: int) -> list[dict[str, Any]]:
    return [{"putValue": {"valueId": VALUE, "value": value}}]


def changed(story: Story, line: int, **changes: Any) -> None:
    commit = next(commit for _, commit in story.lines if commit["line"] == line)
    for path, value in changes.items():
        *names, last = path.split("__")
        there = commit
        for name in names:
            there = there[name]
        there[last] = value


def test_a_branch_that_was_applied_as_it_must_is_sound() -> None:
    assert Story().violations() == []


def taken_twice(story: Story) -> None:
    story.head(8, AT_HEAD)


def never_taken(story: Story) -> None:
    changed(story, 5, settled__outcome="dead")


def never_finished(story: Story) -> None:
    del story.lines[-2:]


def lost_on_the_way(story: Story) -> None:
    story.values[HEAD] = 2


def effect_after_the_end(story: Story) -> None:
    changed(story, 7, settled__outcome="applied")


def refused_though_open(story: Story) -> None:
    changed(story, 2, settled__outcome="refused")


def opened_again_after_the_end(story: Story) -> None:
    changed(story, 7, control__closing=None)


def place_goes_back(story: Story) -> None:
    changed(story, 7, control__branch={"base": {"changeSetId": HEAD, "commit": 1}, "head": HEAD})


def registered_as_open(story: Story) -> None:
    story.record = "open"


def head_never_came(story: Story) -> None:
    del story.lines[3:]
    story.record = "open"
    story.values = {}


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (taken_twice, "was taken 2 times"),
        (never_taken, "in one of the two logs alone"),
        (never_finished, "never came to head"),
        (lost_on_the_way, "VALUES"),
        (effect_after_the_end, "took effect although it is applied"),
        (refused_though_open, "was refused although it is open"),
        (opened_again_after_the_end, "open after applied"),
        (place_goes_back, "its place in head's log goes back"),
        (registered_as_open, "registered as open, but is applied"),
        (head_never_came, "head's line 3 never came to it"),
    ],
    ids=lambda it: it.__name__ if callable(it) else "",
)  # fmt: skip
def test_each_violation_of_a_branch_is_found(broken: Any, says: str) -> None:
    story = Story()
    broken(story)

    assert any(says in violation for violation in story.violations()), story.violations()
