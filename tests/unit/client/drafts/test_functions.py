"""Functions as people name them, and those that no Rebaser could find."""

import functools
import inspect
import math
from types import FunctionType

import pytest

from rebaser_client import InvalidDraft, arrow, builtin, cel, function, pyspark
from rebaser_client.draft import BUILTIN_PARAMETERS, Function, as_function, python
from rebaser_server.compute.functions.builtin import BUILTINS


def priced(*, net, rate):
    return net * (1 + rate)


def totals(*, orders, rate):
    return orders, rate


def totals_on_spark(spark, *, orders, rate):
    return spark, orders, rate


def nothing():
    return None


def from_main() -> FunctionType:
    """A function as a script has it."""
    made = FunctionType(priced.__code__, {"__name__": "__main__"}, "price")
    made.__qualname__, made.__module__ = "price", "__main__"
    return made


def test_the_parameters_of_builtins_are_those_of_the_server() -> None:
    """The client knows them without the server, so that inputs can be given in order."""
    taken = {name: tuple(inspect.signature(code).parameters) for name, code in BUILTINS.items()}

    assert dict(BUILTIN_PARAMETERS) == taken


def test_a_decorated_function_stays_what_it_was() -> None:
    """It is named for its entry point, which is its own name unless said otherwise."""
    plain = function(priced)
    assert plain is priced
    assert as_function(plain) == Function("priced", "python", "priced", ("net", "rate"))

    function(code="price", version="2")(priced)
    assert as_function(priced).code == "price@2"
    assert priced.version == "2"
    del priced.version, priced.rebaser_code


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda net: net, "a lambda of"),
        (from_main(), "in the program itself, which no Rebaser can import"),
        (functools.partial(priced, net=1), "is no function; use builtin"),
        (math.sqrt, "is no function"),
        (3, "is no function"),
    ],
)
def test_what_no_rebaser_can_import_is_refused(given: object, message: str) -> None:
    """With what to write instead."""
    with pytest.raises(InvalidDraft, match=message):
        as_function(given)


def test_a_function_inside_another_is_refused_when_it_is_marked() -> None:
    """No module has it at its top level."""

    def inner(value):
        return value

    with pytest.raises(InvalidDraft, match="inside a function: move it to the top level"):
        function(inner)


def test_a_function_of_tables_is_named_or_given() -> None:
    """The function itself tells its inputs; what is another runtime's is refused."""
    marked = function(totals, code="shop.totals")

    assert arrow("shop.totals").update("01JZ8M3Q7V000000000000000A").runtime == "arrow"
    assert (arrow(marked).code, arrow(marked).parameters) == ("shop.totals", ("orders", "rate"))
    with pytest.raises(InvalidDraft, match="'a' is of runtime cel, and cannot be another's"):
        arrow(cel("a"))  # type: ignore[arg-type]


def test_a_function_of_frames_has_a_session_that_is_no_input() -> None:
    """It is the first argument; a function without one is refused."""
    marked = function(totals_on_spark, code="shop.totals")

    assert pyspark("shop.totals").update("01JZ8M3Q7V000000000000000A").runtime == "pyspark"
    assert (pyspark(marked).code, pyspark(marked).parameters) == ("shop.totals", ("orders", "rate"))
    assert pyspark(marked).needed == {"orders", "rate"}
    with pytest.raises(InvalidDraft, match="'nothing' takes nothing: its first argument is a"):
        pyspark(function(nothing))


def test_builtins_and_cel_have_names_of_their_own_or_given_ones() -> None:
    """An unknown builtin is refused with those that there are."""
    assert (builtin("sum").name, builtin("sum", name="add").name) == ("sum", "add")
    assert cel("a + b").name == "a + b"
    assert python("price@2").code == "price@2"
    with pytest.raises(InvalidDraft, match="no builtin function 'summ'; there are all, any"):
        builtin("summ")
