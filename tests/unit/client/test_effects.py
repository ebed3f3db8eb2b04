"""The patterns of names, and what a branch does to the values of one."""

import zlib
from typing import Any

import pytest

from rebaser_client.effects import (
    MOST,
    brief,
    by_pattern,
    families,
    particulars,
    question,
)
from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_core.table_values import TableHandle


def patterns(*names: str) -> list[str]:
    return sorted(set(families(names)))


def test_a_place_where_many_names_differ_has_a_star() -> None:
    """The two markets have a pattern each; all products of one market share it."""
    prices = [f"price/{n}/{market}" for n in range(MOST + 1) for market in ("UK", "US")]
    rates = ["fx/UK", "fx/US", "total"]

    assert patterns(*prices, *rates) == ["fx/UK", "fx/US", "price/*/UK", "price/*/US", "total"]


def test_few_names_are_patterns_of_their_own() -> None:
    assert patterns(*(f"net/{n}" for n in range(MOST))) == sorted(f"net/{n}" for n in range(MOST))
    assert patterns(*(f"net/{n}" for n in range(MOST + 1))) == ["net/*"]


def test_what_stands_beside_digits_is_kept() -> None:
    """Names need no slashes."""
    names = [f"{kind}_{n}" for kind in ("net", "gross") for n in range(MOST)]

    assert patterns(*names) == ["gross_*", "net_*"]


def test_a_large_family_keeps_its_name_among_many_small_ones() -> None:
    prices = [f"price/{n}" for n in range(MOST + 1)]
    others = [f"{letter}/x" for letter in "abcdefghijklmnop"]

    assert patterns(*prices, *others) == ["*/x", "price/*"]


def test_patterns_come_in_the_order_of_the_names_and_none_for_no_name() -> None:
    assert families(["a", "", "b/c"]) == ["a", "", "b/c"]


def effect(name: str, head: Any, branch: Any, **statuses: str) -> ComputedDifference:
    return ComputedDifference(
        id=f"{zlib.crc32(name.encode()):026}",
        name=name,
        head=head,
        branch=branch,
        **{"head_status": "ok", "branch_status": "ok", **statuses},
    )


PRICES = [effect(f"price/{n}/UK", 100 + n, 110 + n) for n in range(1, MOST + 2)]


def test_a_family_has_its_sums_and_its_largest_moves() -> None:
    """The percentage is that of the sums; moves are compared by their size, up or down."""
    [family] = by_pattern([*PRICES, effect("price/99/UK", 50, 10)])

    assert (family.title, family.size, family.failed) == ("price/*/UK", 14, 0)
    assert family.sides() == ("1,441", "1,531")
    assert family.change == "+6.2 %"
    assert [each.name for each in family.largest] == ["price/99/UK", "price/1/UK", "price/2/UK"]
    assert family.moves is not None
    assert sum(family.moves.bins) == family.size
    assert family.moves.least == -80


def test_what_fails_comes_first_and_is_in_no_sum() -> None:
    failing = effect("net/1", 5, None, branch_status="failed")
    few = [failing, effect("net/2", 5, 6)]

    alone, *others = by_pattern([*PRICES, *few])

    assert (alone.title, alone.failed, alone.sides()) == ("net/1", 1, ("5", "failed"))
    assert [each.title for each in others] == ["price/*/UK", "net/2"]


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([("a", "b"), (1, 2)], (None, None, "")),
        ([(True, False)], (None, None, "")),
        ([(0, 5)], (0, 5, "from 0")),
        ([(1e308, 1), (1e308, 1)], (None, 2, "")),
        ([(-10, 10)], (-10, 10, "+200 %")),
        ([(None, 10)], (None, None, "")),
    ],
)
def test_there_are_sums_of_numbers_only(sides: list[tuple[Any, Any]], expected: Any) -> None:
    """Texts, truth values, values that are new, and numbers beyond all bounds have none."""
    [family] = by_pattern([effect("", *both) for both in sides])

    assert (family.head, family.branch, family.change) == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (1234567, "1,234,570"),
        (0.1 + 0.2, "0.3"),
        (-1.5e-7, "-0.00000015"),
        (1e300, "1e+300"),
    ],
)
def test_a_sum_has_no_more_digits_than_one_reads(number: float, text: str) -> None:
    assert brief(number) == text


def test_tables_are_told_by_the_rows_that_differ() -> None:
    """Where these are known; equal numbers of rows say nothing."""
    before, after = (
        TableHandle("0" * 64, digest * 32, "2" * 32, 7, 8192).to_value() for digest in "12"
    )
    one = effect("by day", before, after)

    assert particulars([], [one], "") == ["by day: table: 7 rows, others than before"]
    assert particulars([], [one], "", {one.id: "2 rows changed"}) == ["by day: 2 rows changed"]


def test_a_person_reads_what_applying_does() -> None:
    """Conflicts first, then what fails, what is not known, and the effects."""
    conflict = ChangedDefinition(
        id="0" * 26, name="fx/UK", what="value", head=0.86, branch=0.9, base=0.8, both=True
    )
    failing = [effect(f"slow{n}x", 1, None, branch_status="blocked") for n in range(6)]

    said = particulars([conflict], [*PRICES, *failing], "2 computed values")

    assert said[0] == "Head changed fx/UK, too: yours 0.9, theirs 0.86. Yours counts."
    assert said[1] == "slow0x will have no value: blocked."
    assert said[6:8] == ["and 1 more", "Not known yet: 2 computed values."]
    assert said[8] == "slow0x: 1 → blocked"
    assert said[-1] == "and 2 more"
    assert question(1, 1) == "Apply 1 edit to head? 1 computed value differs."
