"""How a function is called, again and again, with what stands in the cells of its arguments."""

from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType
from typing import Any

from rebaser_server.compute.units.work_unit import Shape

Call = Callable[[Callable[..., Any], list[Any]], Any]
"""Calls a function with what its refs refer to, argument after argument."""
Loop = Callable[[Callable[..., Any], memoryview, Callable[[Any], None], Iterable[Any]], None]
"""Calls a function for each row of a place and its arguments: notes the place in the first item
of the memory, and hands on what comes out."""


def call_of(function: Callable[..., Any], shape: list[Shape]) -> Call:
    """A call that writes the arguments' names down costs half of one that hands a dict over."""
    if not _can_be_written(function, shape):
        return lambda function, given: function(**_named(shape, given))
    arguments, start = [], 0
    for name, count in shape:
        end = start + (1 if count is None else count)
        arguments.append(f"{name}=given[{start if count is None else f'{start}:{end}'}]")
        start = end
    return _written(", ".join(arguments))


def loop_of(function: Callable[..., Any], shape: list[Shape]) -> Loop:
    """Many calls without anything between them that could be done before or after."""
    names = tuple(name for name, _ in shape)
    if _can_be_written(function, shape):
        return _written_loop(names)

    def loop(
        function: Callable[..., Any],
        watched: memoryview,
        found: Callable[[Any], None],
        rows: Iterable[Any],
    ) -> None:
        for place, *given in rows:
            watched[0] = place
            found(function(**dict(zip(names, given, strict=True))))

    return loop


def _can_be_written(function: Callable[..., Any], shape: list[Shape]) -> bool:
    """Whether all names are of parameters, as installed code has them, and not just anybody's."""
    try:
        code = getattr(function, "__code__", None)
    except Exception:  # noqa: BLE001 - an installed object's own code
        code = None
    if not isinstance(code, CodeType):
        return not shape
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return all(name in own for name, _ in shape)


@cache
def _written(arguments: str) -> Call:
    call: Call = eval(f"lambda function, given: function({arguments})")  # noqa: S307 - see above
    return call


@cache
def _written_loop(names: tuple[str, ...]) -> Loop:
    given = "".join(f", given{n}" for n in range(len(names)))
    arguments = ", ".join(f"{name}=given{n}" for n, name in enumerate(names))
    written: dict[str, Loop] = {}
    exec(  # noqa: S102 - see above
        "def loop(function, watched, found, rows):\n"
        f"    for place{given or ','} in rows:\n"
        "        watched[0] = place\n"
        f"        found(function({arguments}))\n",
        written,
    )
    return written["loop"]


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
