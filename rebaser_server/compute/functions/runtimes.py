"""Finds the Python callable that a function's runtime and code stand for."""

from collections.abc import Callable
from contextvars import Context
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.failure_text import describe
from rebaser_server.compute.functions import cel, vector_functions
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.functions.builtin_vectorised import VECTOR_BUILTINS
from rebaser_server.compute.functions.vector_functions import VectorFunction

GROUP: Final = "rebaser.functions"
"""Entry points in this group are what runtime `python` can name."""


def resolve(runtime: str, code: str) -> Callable[..., Any]:
    """What to call with keyword arguments, one for each input.

    Found anew in each process, then kept: what is installed does not change while it runs.

    Raises:
        FunctionMissing: no such function here; its message is meant for users.
    """
    if runtime == "builtin":
        return _builtin(code)
    if runtime == "python":
        return _installed(code)
    if runtime == "cel":
        return cel.compile_function(code)
    raise FunctionMissing(f"there is no runtime {runtime!r}, only 'builtin', 'python' and 'cel'")


def resolve_vectorised(runtime: str, code: str) -> VectorFunction | None:
    """How to call it for many values at once, if it can be."""
    if runtime == "builtin":
        return VECTOR_BUILTINS.get(code)
    if runtime != "python":
        return None
    try:
        return vector_functions.vector_function_of(_installed(code))
    except Exception:  # an installed object's own code; or there is no such function
        return None


def _builtin(name: str) -> Callable[..., Any]:
    function = BUILTINS.get(name)
    if function is None:
        raise FunctionMissing(f"there is no builtin function {name!r}")
    return function


@cache
def _installed(code: str) -> Callable[..., Any]:
    """`name`, which is whichever version is installed under it, or `name@version`."""
    points = _entry_points_of(code)
    name, _, version = code.partition("@")
    if not points and version:
        current = _entry_points_of(name)
        if current and getattr(_load(current, name), "version", None) == version:
            return _load(current, name)
    if not points:
        raise FunctionMissing(
            f"no Python function {code!r} is installed here{_other_versions(name)}"
        )
    return _load(points, code)


def _entry_points_of(name: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP, name=name))


def _load(points: tuple[EntryPoint, ...], name: str) -> Callable[..., Any]:
    if len({point.value for point in points}) > 1:
        raise FunctionMissing(f"more than one Python function {name!r} is installed here")
    try:
        # In a context of its own: what a module sets there holds in no call, on no machine.
        function: Callable[..., Any] = Context().run(points[0].load)
    except BaseException as error:
        raise FunctionMissing(
            f"Python function {name!r} does not load: {describe(error)}"
        ) from error
    return function


def _other_versions(name: str) -> str:
    """What there is of that name, as the end of a message."""
    versions = [
        point.name
        for point in entry_points(group=GROUP)
        if point.name == name or point.name.startswith(f"{name}@")
    ]
    current = _entry_points_of(name)
    if current and (version := getattr(_load(current, name), "version", None)):
        versions.append(f"{name}@{version}")
    return f", only {', '.join(sorted(set(versions)))}" if versions else ""
