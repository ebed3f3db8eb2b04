"""Functions as people name them: builtins, CEL text, and Python functions that are installed."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Literal, TypeVar, cast, overload

from rebaser_client.errors import InvalidDraft
from rebaser_core.queries import FunctionSnapshot
from rebaser_core.updates import PutFunc

F = TypeVar("F", bound=Callable[..., Any])

BUILTIN_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("collect", "sum", "product", "mean", "min", "max", "count", "any", "all"), ("values",)
    ),
    **dict.fromkeys(("coalesce", "json_merge"), ("values",)),
    "concat": ("values", "separator"),
    "identity": ("value",),
    "not": ("value",),
    "round": ("value", "digits"),
    **dict.fromkeys(("subtract", "divide", "equal", "less"), ("left", "right")),
    "if": ("condition", "then", "otherwise"),
    "lookup": ("table", "key", "default"),
    "json_get": ("document", "pointer", "default"),
}
"""Names of the inputs that each builtin takes, in order."""

_OPTIONAL: Final = frozenset({"separator", "digits", "otherwise", "default"})
"""Inputs of builtins that a value may leave out."""

_GROUP: Final = "rebaser.functions"
_CODE: Final = "rebaser_code"
"""The attribute of a decorated function that holds its entry point's name."""

_VERSION: Final = "version"
"""The attribute by which Rebaser knows the version of an installed function."""

_CEL_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): (.*?)(?: \(in container ''\))?$")
"""Form of an error of CEL's engine: line, column from 1, and the mistake."""

_NAME_LENGTH: Final = 80
"""Characters of CEL text that name a function without a name."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function by what it is: two of the same runtime, code and name are one."""

    name: str
    runtime: Literal["builtin", "python", "cel"]
    code: str
    parameters: tuple[str, ...] | None = None
    """Names of its inputs in order; None: any, and only by name."""
    needed: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the inputs that every value must have."""
    func_id: str | None = field(default=None, compare=False)
    """Id of the function, if it is in the change set."""

    def update(self, func_id: str) -> PutFunc:
        """The update that defines it."""
        return PutFunc(func_id=func_id, name=self.name, runtime=self.runtime, code=self.code)


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function of the change set, known by its name until the draft is compared with that."""

    name: str
    similar: tuple[str, ...] = field(default=(), compare=False)
    """Names of functions that a file defines, which a mistyped one may mean."""


def builtin(code: str, *, name: str | None = None) -> Function:
    """A function that Rebaser brings, for instance `sum`; docs/functions.md lists them.

    Raises:
        InvalidDraft: there is no such function.
    """
    if code not in BUILTIN_PARAMETERS:
        known = ", ".join(sorted(BUILTIN_PARAMETERS))
        raise InvalidDraft(f"there is no builtin function {code!r}; there are {known}")
    parameters = BUILTIN_PARAMETERS[code]
    return Function(name or code, "builtin", code, parameters, frozenset(parameters) - _OPTIONAL)


def cel(expression: str, *, name: str | None = None) -> Function:
    """An expression in CEL, whose variables are the inputs, each given by its name."""
    return Function(name or expression[:_NAME_LENGTH], "cel", expression)


def cel_mistake(expression: str, variables: Iterable[str]) -> str | None:
    """Reason why CEL with these variables cannot be compiled, with its place; None if it can.

    Raises:
        ImportError: the engine is not installed, or not for this machine.
    """
    engine = import_module("cel_expr_python.cel")  # 16 MB, for graphs with CEL alone

    try:
        types = dict.fromkeys(variables, engine.Type.DYN)
        engine.NewEnv(variables=types).compile(expression)
    except Exception as error:  # noqa: BLE001 - the binding has no class of its own for what it refuses
        found = _CEL_PLACE.search(str(error).split("\n", 1)[0])
        if found is None:
            return " ".join(str(error).split())[:200]
        return f"line {found[1]}, column {found[2]}: {found[3]:.120}"
    return None


@overload
def function(
    python: None = None, *, code: str | None = None, version: str | None = None
) -> Callable[[F], F]: ...
@overload
def function(python: F, *, code: str | None = None, version: str | None = None) -> F: ...
def function(
    python: F | None = None, *, code: str | None = None, version: str | None = None
) -> F | Callable[[F], F]:
    """Mark a Python function as one that computes values; it stays as callable as it was.

    The function must be installed where Rebaser runs, under an entry point of the group
    `rebaser.functions`.

    Args:
        python: the function; without it, this is a decorator.
        code: the entry point's name (default: the function's name).
        version: lets values be computed by that version alone.

    Raises:
        InvalidDraft: a Rebaser could not import the function.
    """

    def mark(marked: F) -> F:
        _require_importable(marked)
        name = code or marked.__name__
        setattr(marked, _CODE, name if version is None else f"{name}@{version}")
        if version is not None:
            setattr(marked, _VERSION, version)
        return marked

    return mark if python is None else mark(python)


def as_function(given: Function | Callable[..., Any]) -> Function:
    """The function that values shall be computed by.

    Raises:
        InvalidDraft: it is no function, or a Rebaser could not find it.
    """
    if isinstance(given, Function):
        return given
    if not inspect.isfunction(given):
        raise InvalidDraft(
            f"{given!r:.80} is no function; use builtin('sum'), cel('a + b'), or a Python function"
        )
    _require_importable(given)
    code = getattr(given, _CODE, None) or _entry_point_name(given)
    return Function(code, "python", code, _parameters(given), _needed(given))


def python(code: str, *, name: str | None = None) -> Function:
    """The Python function that is installed where Rebaser runs, by its entry point's name."""
    return Function(name or code, "python", code)


def function_of(there: FunctionSnapshot) -> Function:
    """A function of the change set."""
    parameters = BUILTIN_PARAMETERS.get(there.code) if there.runtime == "builtin" else None
    return Function(
        there.name,
        cast("Any", there.runtime),
        there.code,
        parameters,
        frozenset(parameters or ()) - _OPTIONAL,
        there.id,
    )


def _require_importable(given: Callable[..., Any]) -> None:
    module, name = given.__module__, given.__qualname__
    remedy = (
        "move it to the top level of a module that is installed where Rebaser runs, and name "
        f'it in an entry point of group "{_GROUP}" (docs/functions.md); or use cel("…")'
    )
    if given.__name__ == "<lambda>":
        raise InvalidDraft(f"a lambda of {module} cannot compute values: {remedy}")
    if module == "__main__":
        raise InvalidDraft(
            f"{name} is defined in the program itself, which no Rebaser can import: {remedy}"
        )
    if "<locals>" in name:
        raise InvalidDraft(f"{name} of {module} is defined inside a function: {remedy}")


def _entry_point_name(given: Callable[..., Any]) -> str:
    target = f"{given.__module__}:{given.__qualname__}"
    names = sorted(name for name, value in _entry_points() if value == target)
    if names:
        return names[0]
    raise InvalidDraft(
        f"no entry point of group {_GROUP!r} here is {target!r}: add `{given.__name__} = "
        f'"{target}"` under [project.entry-points."{_GROUP}"] to its pyproject.toml and install '
        "it here and where Rebaser runs; or mark it with @function, if it is installed there alone"
    )


@cache
def _entry_points() -> tuple[tuple[str, str], ...]:
    return tuple((point.name, point.value) for point in entry_points(group=_GROUP))


def _needed(given: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(given).parameters.values()
    empty, several = inspect.Parameter.empty, inspect.Parameter.VAR_KEYWORD
    return frozenset(
        each.name for each in parameters if each.default is empty and each.kind is not several
    )


def _parameters(given: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of what it takes; None if it takes any names."""
    parameters = inspect.signature(given).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters)
