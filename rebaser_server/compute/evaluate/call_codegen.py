"""Generated code that calls a function again and again with the cells of its arguments.

An installed function is called in a new, empty context each time. It is not a copy of another: a
copy shares decimal's settings with what it was copied from, once they were looked at there.
"""

from collections.abc import Callable, Iterable
from contextvars import Context
from functools import cache
from types import CodeType, NoneType
from typing import Any, Final

from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.units.work_unit import ArgumentSpec

Call = Callable[[Callable[..., Any], list[Any]], Any]
"""Calls a function with what its refs refer to, argument after argument."""
CallLoop = Callable[[Callable[..., Any], memoryview, Callable[[Any], None], Iterable[Any]], None]
"""Calls a function for each row of a position and its arguments: notes the position in the first
item of the memory, and hands on what comes out."""

_UNCHANGEABLE: Final = frozenset({NoneType, bool, int, float, str})


def compile_call(
    function: Callable[..., Any], specs: list[ArgumentSpec], *, is_installed: bool
) -> Call:
    """A call that writes the arguments' names down costs half of one that hands a dict over."""
    if not _can_be_generated(function, specs):
        if is_installed:
            return lambda function, given: Context().run(
                function, **_keyword_arguments(specs, given)
            )
        return lambda function, given: function(**_keyword_arguments(specs, given))
    arguments, start = [], 0
    for name, count in specs:
        end = start + (1 if count is None else count)
        arguments.append(f"{name}=given[{start if count is None else f'{start}:{end}'}]")
        start = end
    return _generate_call(
        ("Context().run(function, " if is_installed else "function(") + ", ".join(arguments)
    )


def compile_loop(
    function: Callable[..., Any], specs: list[ArgumentSpec], *, is_installed: bool
) -> CallLoop:
    """Many calls without anything between them that could be done before or after."""
    names = tuple(name for name, _ in specs)
    call = _call_installed if is_installed else _call_own
    if _can_be_generated(function, specs):
        return _generate_loop(names, is_installed=is_installed)

    def loop(
        function: Callable[..., Any],
        watched: memoryview,
        collect: Callable[[Any], None],
        rows: Iterable[Any],
    ) -> None:
        for position, *given in rows:
            watched[0] = position
            collect(call(function, **dict(zip(names, given, strict=True))))

    return loop


def _call_own(function: Callable[..., Any], **arguments: Any) -> Any:
    return function(**arguments)


def _call_installed(function: Callable[..., Any], **arguments: Any) -> Any:
    result = Context().run(function, **arguments)
    return result if type(result) in _UNCHANGEABLE else read_only(result)


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
def _generate_call(expression: str) -> Call:
    source = f"def call(function, given):\n    return {expression})\n"
    call: Call = _define(source, "call")
    return call


@cache
def _generate_loop(names: tuple[str, ...], *, is_installed: bool) -> CallLoop:
    given = "".join(f", given{n}" for n in range(len(names)))
    arguments = ", ".join(f"{name}=given{n}" for n, name in enumerate(names))
    collect = f"collect(function({arguments}))"
    if is_installed:
        # What it returned may be changed by the next call, as long as it is not read.
        collect = (
            f"result = Context().run(function, {arguments})\n"
            "        collect(result if type(result) in UNCHANGEABLE else read_only(result))"
        )
    source = (
        "def loop(function, watched, collect, rows):\n"
        f"    for position{given or ','} in rows:\n"
        "        watched[0] = position\n"
        f"        {collect}\n"
    )
    loop: CallLoop = _define(source, "loop")
    return loop


def _define(source: str, name: str) -> Any:
    """The function of this name that the source defines."""
    namespace = {"Context": Context, "UNCHANGEABLE": _UNCHANGEABLE, "read_only": read_only}
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
