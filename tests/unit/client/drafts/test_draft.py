"""What a program may write down, and what is refused before anything is sent."""

import pytest

from rebaser_client import Draft, InvalidDraft, builtin, cel
from rebaser_client.draft import Computed, Family, Source

ADD = builtin("sum", name="add")
ROWS = [{"sku": "a", "net": 1}, {"sku": "b", "net": 2}]


def inputs(draft: Draft, name: str) -> object:
    definition = draft.definitions[name]
    assert isinstance(definition, Computed)
    return dict(definition.inputs)


def test_inputs_are_values_or_names_in_order_or_by_name() -> None:
    """A function that takes a list takes all of them."""
    g = Draft()
    net, tax = g.source("net", 100), g.source("tax", 19)

    g.value("gross", ADD, net, tax)
    g.value("half", builtin("divide"), "gross", right=tax)
    g.value("sum", ADD, values=[net, "tax"])
    g.value("vat", cel("net * 2"), net=net)

    assert inputs(g, "gross") == inputs(g, "sum") == {"values": ["net", "tax"]}
    assert inputs(g, "half") == {"left": "gross", "right": "tax"}
    assert inputs(g, "vat") == {"net": "net"}


def test_an_argument_may_have_any_name() -> None:
    """Also that of a parameter of the method."""
    g = Draft()
    g.value("greeting", cel("name + function"), name="a", function="b")
    g.values("greeting/{sku}", cel("pattern + table"), [{"sku": 1}], pattern="a", table="b")

    inputs = [each.inputs for each in g.definitions.values() if isinstance(each, Computed)]
    assert inputs == [{"name": "a", "function": "b"}, {"pattern": "a", "table": "b"}]


def test_a_table_makes_families() -> None:
    """A family's input is the one of the row; a single value takes a whole family."""
    g = Draft()
    rate = g.source("rate", 2)

    net = g.sources("net/{sku}", ROWS, "net")
    g.sources("row/{sku}", ROWS)
    gross = g.values("gross/{sku}", cel("net * rate"), ROWS, net=net, rate=rate)
    g.values("twice/{sku}", ADD, ROWS, [gross, "net/{sku}"])
    g.value("total", ADD, gross)

    assert net == Family("net/{sku}", ("net/a", "net/b"))
    assert g.definitions["net/b"] == Source(2)
    assert g.definitions["row/a"] == Source(ROWS[0])
    assert inputs(g, "gross/b") == {"net": "net/b", "rate": "rate"}
    assert inputs(g, "twice/a") == {"values": ["gross/a", "net/a"]}
    assert inputs(g, "total") == {"values": ["gross/a", "gross/b"]}
    assert [ref.name for ref in gross] == ["gross/a", "gross/b"]


def test_a_definition_that_comes_twice_is_one() -> None:
    """Rows that repeat a cell need not be made unique; two meanings of a name are refused."""
    g = Draft()

    g.sources("rate/{market}", [{"market": "us", "rate": 1}] * 2, "rate")

    assert list(g.definitions) == ["rate/us"]
    with pytest.raises(InvalidDraft, match="two values are called 'rate/us'"):
        g.source("rate/us", 1.0)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda g: g.source("", 1), "a text that is not empty"),
        (lambda g: g.source("x", {1, 2}), "source 'x': "),
        (lambda g: g.source("x", float("inf")), "source 'x': "),
        (lambda g: g.value("x", ADD, 5), r"5 is no input; an input is a value: define it with"),
        (lambda g: g.value("x", cel("a"), "a"), "takes its inputs by name"),
        (lambda g: g.value("x", builtin("not"), "a", "b"), "2 inputs, but not takes value"),
        (lambda g: g.value("x", builtin("not"), valeu="a"), "'valeu' is unknown; not takes value"),
        (lambda g: g.value("x", builtin("not"), "a", value="b"), "'value' is twice"),
        (lambda g: g.sources("x/{sku}", ROWS, "gross"), "no column 'gross', only 'sku', 'net'"),
        (lambda g: (g.remove("x"), g.source("x", 1)), "'x' is removed, and cannot be defined"),
        (lambda g: (g.source("x", 1), g.remove("x")), "'x' is defined, and cannot be removed"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(write, message: str) -> None:
    """With what to write instead."""
    with pytest.raises(InvalidDraft, match=message):
        write(Draft())
