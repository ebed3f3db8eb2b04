"""Names that an error message offers for an unknown one."""

from rebaser_core.errors import offer


def test_names_that_contain_the_unknown_one_come_first() -> None:
    """Upper and lower case are the same; each name is offered once."""
    assert offer("PEARS", ["net/pears", "net/pears", "peers"]) == "; there is 'net/pears'"


def test_names_with_a_slip_are_offered() -> None:
    """At most five names are."""
    assert offer("net/appels", ["net/apples", "rate"]) == "; there is 'net/apples'"
    assert offer("a", [f"a{number}" for number in range(9)]).count("'") == 2 * 5


def test_nothing_is_offered_if_nothing_is_similar() -> None:
    """The message then ends with the problem itself."""
    assert offer("zebra", ["rate"]) == offer("x", []) == ""


def test_names_much_less_alike_than_the_best_are_not_offered() -> None:
    """`--help` is a little like any option."""
    assert offer("--repir", ["--help", "--deep", "--repair"]) == "; there is '--repair'"
