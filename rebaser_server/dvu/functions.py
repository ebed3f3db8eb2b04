"""Finds the Python callable that a function's runtime and code stand for."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

from rebaser_server.dvu.builtin import BUILTINS
from rebaser_server.dvu.errors import FunctionMissing

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
        raise FunctionMissing("functions in CEL are not supported yet")
    raise FunctionMissing(f"there is no runtime {runtime!r}, only 'builtin' and 'python'")


def _builtin(name: str) -> Callable[..., Any]:
    function = BUILTINS.get(name)
    if function is None:
        raise FunctionMissing(f"there is no builtin function {name!r}")
    return function


@cache
def _installed(name: str) -> Callable[..., Any]:
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise FunctionMissing(f"no Python function {name!r} is installed here")
    if len({point.value for point in found}) > 1:
        raise FunctionMissing(f"more than one Python function {name!r} is installed here")
    try:
        function: Callable[..., Any] = found[0].load()
    except Exception as error:
        raise FunctionMissing(
            f"Python function {name!r} does not load: {type(error).__name__}: {error}"
        ) from error
    return function
