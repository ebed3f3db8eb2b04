"""The judge of calls between keys finds what it is there to find."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from rebaser_core.calls import key_of
from tests.chaos.bank import BALANCE
from tests.chaos.calls import wrong_books, wrong_calls
from tests.chaos.history import History, Kind
from tests.chaos.indexed_history import Case

ANN, BEN = (str(key_of("bank", name)) for name in ("ann", "ben"))
Told = dict[str, list[Any]]


def sound() -> Told:
    """Ann pays Ben twice, and he refuses a third time: lines of both logs, and the books."""
    return {
        ANN: [_paid(1, "t1"), _paid(2, "t2"), _paid(5, "t3")],
        BEN: [_taken(3, "t1", 1), _taken(4, "t2", 2), _refused(6, "t3", 5)],
        "ann": [BALANCE - 15, [["ben", f"t{n}", 5] for n in (1, 2, 3)], [], 0],
        "ben": [BALANCE + 10, [], [["ann", f"t{n}", 5] for n in (1, 2)], 0],
    }


def _line(sequence: int, request: str, outcome: str, effect: dict[str, Any]) -> dict[str, Any]:
    settled = {"id": request, "sequence": sequence, "outcome": outcome}
    return {"settled": settled, "call": {"effect": effect}}


def _paid(sequence: int, transfer: str) -> dict[str, Any]:
    send = [sequence, 0, "bank", "ben", "take", "[]", None, 1, f"take {transfer}"]
    return _line(sequence, f"pay {transfer}", "applied", {"sends": [send]})


def _taken(sequence: int, transfer: str, of: int) -> dict[str, Any]:
    heard = {"changeSetId": ANN, "sequence": of, "index": 0}
    return _line(sequence, f"take {transfer}", "applied", {"heard": heard})


def _refused(sequence: int, transfer: str, of: int) -> dict[str, Any]:
    return _taken(sequence, transfer, of) | {
        "settled": {"id": f"take {transfer}", "sequence": sequence, "outcome": "refused"}
    }


def judged(told: Told) -> list[str]:
    history = History()
    for number in (1, 2, 3):
        history.add(Kind.SENT, request=f"pay t{number}", change_set=ANN, transfers=[f"t{number}"])
    line = 0
    for change_set in (ANN, BEN):
        previous = 0
        for commit in told[change_set]:
            line += 1
            whole = {"previous": previous, "control": {}, **commit}
            history.add(Kind.COMMIT, change_set=change_set, line=line, commit=whole)
            previous = line
    for change_set, key in ((ANN, "ann"), (BEN, "ben")):
        balance, paid, taken, ticks = told[key]
        state = {"balance": balance, "paid": paid, "taken": taken, "ticks": ticks}
        history.add(
            Kind.ACCOUNT,
            change_set=change_set,
            key=key,
            state=state | {"wrong_ticks": []},
            sending=0,
            ticks=0,
        )
    history.add(Kind.REST)
    case = Case(history)
    return [str(each) for rule in (wrong_calls, wrong_books) for each in rule(case)]


def test_sound_books_are_found_sound() -> None:
    assert judged(sound()) == []


def _lost(told: Told) -> None:
    del told[BEN][1]
    told["ben"] = [BALANCE + 5, [], told["ben"][2][:1], 0]


def _twice(told: Told) -> None:
    told[BEN].insert(2, _taken(9, "t2", 2))
    told["ben"] = [BALANCE + 15, [], [*told["ben"][2], told["ben"][2][1]], 0]


def _out_of_order(told: Told) -> None:
    told[BEN][:2] = [_taken(3, "t2", 2), _taken(4, "t1", 1)]
    told["ben"][2].reverse()


def _of_no_commit(told: Told) -> None:
    told[BEN].append(_taken(9, "t9", 9))


def _refused_and_taken(told: Told) -> None:
    told[BEN].append(_taken(9, "t3", 5))
    told["ben"] = [BALANCE + 15, [], [*told["ben"][2], ["ann", "t3", 5]], 0]


def _not_in_the_books(told: Told) -> None:
    told["ben"] = [BALANCE + 5, [], told["ben"][2][:1], 0]


def _from_nowhere(told: Told) -> None:
    told["ben"][0] += 1


def _paid_unasked(told: Told) -> None:
    told["ann"] = [BALANCE - 20, [*told["ann"][1], ["ben", "t9", 5]], [], 0]


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (_lost, "CALLS"),
        (_twice, "CALLS"),
        (_out_of_order, "was heard before"),
        (_of_no_commit, "which no commit sent"),
        (_refused_and_taken, "['refused', 'applied']"),
        (_not_in_the_books, "BANK"),
        (_from_nowhere, "by its books"),
        (_paid_unasked, "BANK"),
    ],
)
def test_what_is_wrong_is_found(spoil: Callable[[Told], None], found: str) -> None:
    told = deepcopy(sound())

    spoil(told)

    assert any(found in each for each in judged(told)), judged(told)
