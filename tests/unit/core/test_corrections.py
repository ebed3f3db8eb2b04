"""Corrections that are too many for a message."""

from rebaser_core.messages import (
    DETAIL_LENGTH,
    MAX_INLINE_CORRECTIONS,
    MORE,
    Correction,
    abbreviate,
    omitted,
    total_count,
    truncate_detail,
)

NAME = "0" * 64


def corrections(count: int) -> list[Correction]:
    codes = ("missing-value", "name-taken")
    return [Correction(index=n, code=codes[n % 2], detail="") for n in range(count)]


def test_the_first_are_told_and_an_entry_says_how_many_there_are_and_where() -> None:
    told = abbreviate(corrections(2 * MAX_INLINE_CORRECTIONS), NAME)

    assert list(told[:-1]) == corrections(MAX_INLINE_CORRECTIONS)
    assert (told[-1].code, told[-1].index) == (MORE, MAX_INLINE_CORRECTIONS)
    more = omitted(told)
    assert more is not None
    assert more.counts == {
        "missing-value": MAX_INLINE_CORRECTIONS,
        "name-taken": MAX_INLINE_CORRECTIONS,
    }
    assert more.object == NAME
    assert total_count(told) == 2 * MAX_INLINE_CORRECTIONS


def test_of_few_there_is_nothing_more() -> None:
    assert omitted(corrections(2)) is None
    assert omitted(()) is None
    assert total_count(corrections(2)) == 2


def test_a_detail_that_is_no_list_of_more_stands_for_itself() -> None:
    assert omitted([Correction(index=0, code=MORE, detail="?")]) is None


def test_a_detail_with_long_names_is_cut() -> None:
    assert len(truncate_detail("n" * 10_000)) == DETAIL_LENGTH
    assert truncate_detail("short") == "short"
