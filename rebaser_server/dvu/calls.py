"""How a function is called, again and again, with what stands in the cells of its arguments."""

from collections.abc import Callable
from functools import cache
from typing import Any

from rebaser_server.dvu.blob import Shape

Call = Callable[[Callable[..., Any], list[Any]], Any]
"""Calls a function with what its refs refer to, argument after argument."""


def call_of(function: Callable[..., Any], shape: list[Shape]) -> Call:
    """A call that writes the arguments' names down costs half of one that hands a dict over."""
    code = getattr(function, "__code__", None)
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    arguments, start = [], 0
    for name, count in shape:
        end = start + (1 if count is None else count)
        arguments.append(f"{name}=given[{start if count is None else f'{start}:{end}'}]")
        start = end
    if all(name in own for name, _ in shape):
        return _written(", ".join(arguments))
    return lambda function, given: function(**_named(shape, given))


@cache
def _written(arguments: str) -> Call:
    # All that is not ours in it are names of parameters, as installed code has them.
    call: Call = eval(f"lambda function, given: function({arguments})")  # noqa: S307 - see above
    return call


def _named(shape: list[Shape], given: list[Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    start = 0
    for name, count in shape:
        if count is None:
            arguments[name] = given[start]
            start += 1
        else:
            arguments[name] = given[start : start + count]
            start += count
    return arguments
