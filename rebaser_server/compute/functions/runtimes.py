"""Finds the Python callable for a function's runtime and code.

Functions in CEL, the Common Expression Language, are text from messages, run without trust in it.
The engine is Google's (`cel-expr-python`). An expression can reach its arguments alone, loops over
nothing else, and is cut off after 10,000 steps of loops, all taken together. The engine is not
given what it cannot be trusted with: values nested deeper than `codecs.MAX_DEPTH`, which all values
are checked for, and large ones.
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
"""Maximum number of characters of an expression."""
_MAX_FILES_BYTES: Final = 64 << 20
"""Maximum bytes of the files that a function's digest is made of; larger ones have none."""
MAX_ARGUMENTS: Final = 1 << 20
"""Maximum number of characters of all arguments of a call as JSON text."""

# The engine's binding cuts text off at a NUL character.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_NUL_IN_CODE: Final = re.compile(r"\x00|\\(?:[xX]00|u0000|U00000000|000)")

_SCALARS: Final = (type(None), bool, int, float)


class CelError(Exception):
    """Error of the engine about an expression or a call."""


def compile_function(code: str) -> Callable[..., Any]:
    """Return a callable with the variables of the expression as keyword arguments.

    Raises:
        FunctionMissing: the text cannot be compiled, or the engine is not installed.
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
    """Import the engine; raise `ImportError` if it is not installed, or not for this machine."""
    from cel_expr_python import cel

    return cel


@lru_cache(1024)
def _compile(code: str, names: tuple[str, ...]) -> Any:
    cel = _engine()
    try:
        env = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
        return env.compile(code)
    except Exception as error:  # the binding may raise anything
        raise CelError(_first_line(error)) from None


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the engine takes them: with lists and objects of Python alone."""
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
    """Return the first line, which has mistake and place, without the code in front of it."""
    line = str(error).strip().split("\n", 1)[0]
    return re.sub(r"^[A-Z_]+: (ERROR: )?| \[[A-Z_]+\]$", "", line)


_GROUP: Final = "rebaser.functions"
"""Group of the entry points that runtime `python` can name."""


def resolve(runtime: str, code: str) -> Callable[..., Any]:
    """Return a callable with keyword arguments, one for each input.

    It is found once in each process: installed packages do not change while it runs.

    Raises:
        FunctionMissing: the function is not here; the message is meant for users.
    """
    if runtime == "builtin":
        return _builtin(code)
    if runtime == "python":
        return _installed(code)
    if runtime == "cel":
        return compile_function(code)
    raise FunctionMissing(f"there is no runtime {runtime!r}, only 'builtin', 'python' and 'cel'")


def resolve_vectorised(runtime: str, code: str) -> VectorFunction | None:
    """Return a callable for many values at once; None if there is none."""
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
    """Return the function `name`, of the installed version, or `name@version`."""
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
    """Return the digest of a function's code: equal digests, equal results; None: it is unknown.

    For `cel` it is of the text and the engine's version; for `python` of the distribution's name
    and version and its module's files, as they are when this process first uses the function.
    Imports from other distributions are not in it.
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
    spec = find_spec(top)  # this imports nothing for a top level module
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
    code_digest("python", name)  # taken before the loading: files may be replaced later
    try:
        # Another context, so that settings of a module hold in no call, on any machine.
        function: Callable[..., Any] = Context().run(points[0].load)
    except BaseException as error:
        raise FunctionMissing(
            f"Python function {name!r} does not load: {describe(error)}"
        ) from error
    return function


def _other_versions(name: str) -> str:
    """Return the end of a message, with the existing versions of that name."""
    versions = [
        point.name
        for point in entry_points(group=_GROUP)
        if point.name == name or point.name.startswith(f"{name}@")
    ]
    current = _entry_points_of(name)
    if current and (version := getattr(_load(current, name), "version", None)):
        versions.append(f"{name}@{version}")
    return f", only {', '.join(sorted(set(versions)))}" if versions else ""
