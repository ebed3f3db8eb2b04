"""Finds the Python callable that a function's runtime and code stand for.

Functions in CEL, the Common Expression Language: text from messages, run without trust in it.

The engine is Google's (`cel-expr-python`). An expression cannot reach anything but its
arguments, does not loop but over them, and is cut off after 10,000 steps of loops, all taken
together. What the engine cannot be trusted with is kept from it: values nested deeper than
`codecs.MAX_DEPTH`, which all values are checked for, and large ones.
"""

import re
from collections.abc import Callable
from contextvars import Context
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from rebaser_server.compute.errors import FunctionMissing, describe
from rebaser_server.compute.functions import vectorised
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.functions.vectorised import VECTOR_BUILTINS, VectorFunction
from rebaser_server.values.canonical_json import dumps, loads

MAX_CODE: Final = 16_384
"""Characters of an expression."""
_MAX_FILES_BYTES: Final = 64 << 20
"""Bytes of the files that a function's digest is made of; of larger ones there is none."""
MAX_ARGUMENTS: Final = 1 << 20
"""Characters of all arguments of a call as JSON text."""

# The engine's binding cuts text off at a NUL character.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_NUL_IN_CODE: Final = re.compile(r"\x00|\\(?:[xX]00|u0000|U00000000|000)")

_SCALARS: Final = (type(None), bool, int, float)


class CelError(Exception):
    """What the engine says of an expression or of a call."""


def compile_function(code: str) -> Callable[..., Any]:
    """What to call with the variables of the expression as keyword arguments.

    Raises:
        FunctionMissing: not to be compiled, or the engine is not installed.
    """
    if len(code) > MAX_CODE:
        raise FunctionMissing(f"an expression in CEL has at most {MAX_CODE:,} characters")
    if _NUL_IN_CODE.search(code):
        raise FunctionMissing("an expression in CEL cannot have a NUL character")
    try:
        _engine()
    except ImportError as error:
        raise FunctionMissing(f"functions in CEL need cel-expr-python: {error}") from error

    def call(**arguments: Any) -> Any:
        plain = _plain(arguments)
        compiled = _compile(code, tuple(arguments))
        try:
            output = compiled.eval(data=plain)
        except RuntimeError as error:
            raise CelError(_first_line(error)) from None
        value = output.plain_value()
        if output.type().name() == "ERROR":
            raise CelError(_first_line(value))
        return value

    return call


def _engine() -> Any:
    """Raises `ImportError`: it is not installed, or not for this machine."""
    from cel_expr_python import cel

    return cel


@lru_cache(1024)
def _compile(code: str, names: tuple[str, ...]) -> Any:
    cel = _engine()
    try:
        env = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
        return env.compile(code)
    except Exception as error:  # whatever the binding makes of it
        raise CelError(_first_line(error)) from None


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the engine takes them: no lists and objects but Python's own."""
    room = MAX_ARGUMENTS
    plain = {}
    for name, argument in arguments.items():
        if isinstance(argument, _SCALARS):
            plain[name] = argument
            continue
        text = dumps(argument)
        if _NUL.search(text):
            raise CelError("CEL cannot take text with a NUL character")
        room -= len(text)
        if room < 0:
            raise CelError(f"the arguments are longer than {MAX_ARGUMENTS:,} characters")
        plain[name] = loads(text)
    return plain


def _first_line(error: object) -> str:
    """The first line, which says what is wrong and where, without the code in front of it."""
    line = str(error).strip().split("\n", 1)[0]
    return re.sub(r"^[A-Z_]+: (ERROR: )?| \[[A-Z_]+\]$", "", line)


_GROUP: Final = "rebaser.functions"
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
        return compile_function(code)
    raise FunctionMissing(f"there is no runtime {runtime!r}, only 'builtin', 'python' and 'cel'")


def resolve_vectorised(runtime: str, code: str) -> VectorFunction | None:
    """How to call it for many values at once, if it can be."""
    if runtime == "builtin":
        return VECTOR_BUILTINS.get(code)
    if runtime != "python":
        return None
    try:
        return vectorised.vector_function_of(_installed(code))
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


@cache
def code_digest(runtime: str, code: str) -> bytes | None:
    """Digest of what a function computes with: the same digest, the same results.

    Of `cel` the text and the engine's version; of `python` the distribution's name and version
    and its module's files, as they are when this process first uses the function. What that
    imports from other distributions is not in it. None: not to be told.
    """
    try:
        if runtime == "cel":
            return blake3(f"cel {version('cel-expr-python')} {code}".encode()).digest()
        points = _entry_points_of(code) or _entry_points_of(code.partition("@")[0])
        return _distribution_digest(points[0]) if runtime == "python" and points else None
    except (PackageNotFoundError, OSError, ImportError, ValueError):
        return None


def _distribution_digest(point: EntryPoint) -> bytes | None:
    top = point.module.partition(".")[0]
    spec = find_spec(top)  # of a top level module this imports nothing
    if spec is None or spec.origin is None:
        return None
    hasher, seen = blake3(point.value.encode()), 0
    if point.dist is not None:
        hasher.update(f"{point.dist.name} {point.dist.version}".encode())
    package, files = Path(spec.origin).parent, [Path(spec.origin)]
    if spec.submodule_search_locations:
        files = sorted(path for path in package.rglob("*") if path.is_file())
    for path in files:
        if path.suffix == ".pyc":
            continue
        seen += path.stat().st_size
        if seen > _MAX_FILES_BYTES:
            return None
        hasher.update(path.relative_to(package).as_posix().encode())
        hasher.update(blake3(path.read_bytes()).digest())
    return hasher.digest()


def _entry_points_of(name: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=_GROUP, name=name))


def _load(points: tuple[EntryPoint, ...], name: str) -> Callable[..., Any]:
    if len({point.value for point in points}) > 1:
        raise FunctionMissing(f"more than one Python function {name!r} is installed here")
    code_digest("python", name)  # of what is about to be loaded, not of what replaces it later
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
        for point in entry_points(group=_GROUP)
        if point.name == name or point.name.startswith(f"{name}@")
    ]
    current = _entry_points_of(name)
    if current and (version := getattr(_load(current, name), "version", None)):
        versions.append(f"{name}@{version}")
    return f", only {', '.join(sorted(set(versions)))}" if versions else ""
