"""How a function is called, again and again, with what stands in the cells of its arguments."""

from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType
from typing import Any

from rebaser_server.compute.units.work_unit import ArgumentSpec

Call = Callable[[Callable[..., Any], list[Any]], Any]
"""Calls a function with what its refs refer to, argument after argument."""
CallLoop = Callable[[Callable[..., Any], memoryview, Callable[[Any], None], Iterable[Any]], None]
"""Calls a function for each row of a position and its arguments: notes the position in the first
item of the memory, and hands on what comes out."""


def compile_call(function: Callable[..., Any], specs: list[ArgumentSpec]) -> Call:
    """A call that writes the arguments' names down costs half of one that hands a dict over."""
    if not _can_be_generated(function, specs):
        return lambda function, given: function(**_keyword_arguments(specs, given))
    arguments, start = [], 0
    for name, count in specs:
        end = start + (1 if count is None else count)
        arguments.append(f"{name}=given[{start if count is None else f'{start}:{end}'}]")
        start = end
    return _generate_call(", ".join(arguments))


def compile_loop(function: Callable[..., Any], specs: list[ArgumentSpec]) -> CallLoop:
    """Many calls without anything between them that could be done before or after."""
    names = tuple(name for name, _ in specs)
    if _can_be_generated(function, specs):
        return _generate_loop(names)

    def loop(
        function: Callable[..., Any],
        watched: memoryview,
        collect: Callable[[Any], None],
        rows: Iterable[Any],
    ) -> None:
        for position, *given in rows:
            watched[0] = position
            collect(function(**dict(zip(names, given, strict=True))))

    return loop


def _can_be_generated(function: Callable[..., Any], specs: list[ArgumentSpec]) -> bool:
    """Whether all names are of parameters, as the installed code declares them."""
    try:
        code = getattr(function, "__code__", None)
    except Exception:  # an installed object's own code
        code = None
    if not isinstance(code, CodeType):
        return not specs
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return all(name in own for name, _ in specs)


@cache
def _generate_call(arguments: str) -> Call:
    source = f"def call(function, given):\n    return function({arguments})\n"
    call: Call = _define(source, "call")
    return call


@cache
def _generate_loop(names: tuple[str, ...]) -> CallLoop:
    given = "".join(f", given{n}" for n in range(len(names)))
    arguments = ", ".join(f"{name}=given{n}" for n, name in enumerate(names))
    source = (
        "def loop(function, watched, collect, rows):\n"
        f"    for position{given or ','} in rows:\n"
        "        watched[0] = position\n"
        f"        collect(function({arguments}))\n"
    )
    loop: CallLoop = _define(source, "loop")
    return loop


def _define(source: str, name: str) -> Any:
    """The function of this name that the source defines."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # noqa: S102 - ours, but for names that installed code declares
    return namespace[name]


def _keyword_arguments(specs: list[ArgumentSpec], given: list[Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    start = 0
    for name, count in specs:
        if count is None:
            arguments[name] = given[start]
            start += 1
        else:
            arguments[name] = given[start : start + count]
            start += count
    return arguments
