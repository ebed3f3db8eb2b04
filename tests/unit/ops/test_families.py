"""The patterns of names."""

from rebaser_server.ops.families import MOST, families, natural


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


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["slow/10", "Slow/2", "slow"], key=natural) == ["slow", "Slow/2", "slow/10"]
