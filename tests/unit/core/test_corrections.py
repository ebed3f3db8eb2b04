"""Corrections that are too many for a message."""

from rebaser_core.corrections import (
    DETAIL_LENGTH,
    MORE,
    MOST_TOLD,
    count_of,
    first_of,
    more_in,
    shortened,
)
from rebaser_core.messages import Correction

NAME = "0" * 64


def corrections(count: int) -> list[Correction]:
    codes = ("missing-value", "name-taken")
    return [Correction(index=n, code=codes[n % 2], detail="") for n in range(count)]


def test_the_first_are_told_and_an_entry_says_how_many_there_are_and_where() -> None:
    told = first_of(corrections(2 * MOST_TOLD), NAME)

    assert list(told[:-1]) == corrections(MOST_TOLD)
    assert (told[-1].code, told[-1].index) == (MORE, MOST_TOLD)
    more = more_in(told)
    assert more is not None
    assert more.counts == {"missing-value": MOST_TOLD, "name-taken": MOST_TOLD}
    assert more.object == NAME
    assert count_of(told) == 2 * MOST_TOLD


def test_of_few_there_is_nothing_more() -> None:
    assert more_in(corrections(2)) is None
    assert more_in(()) is None
    assert count_of(corrections(2)) == 2


def test_a_detail_that_is_no_list_of_more_stands_for_itself() -> None:
    assert more_in([Correction(index=0, code=MORE, detail="?")]) is None


def test_a_detail_with_long_names_is_cut() -> None:
    assert len(shortened("n" * 10_000)) == DETAIL_LENGTH
    assert shortened("short") == "short"
