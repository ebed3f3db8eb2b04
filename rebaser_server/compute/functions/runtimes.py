"""Finds the Python callable for a function's runtime and code.

Functions in CEL, the Common Expression Language, are text from messages, run without trust in it.
The engine is Google's (`cel-expr-python`). An expression can reach its arguments alone, loops over
nothing else, and is cut off after 10,000 steps of loops, all taken together. The engine is not
given what it cannot be trusted with: values nested deeper than `codecs.MAX_DEPTH`, which all values
are checked for, and large ones.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distribution,
    entry_points,
    version,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from blake3 import blake3

from rebaser_server.compute.errors import CodeDiffers, FunctionMissing, describe
from rebaser_server.compute.functions import builtin, vectorised
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

_ZONES: Final = find_spec("tzdata")
if _ZONES is not None and _ZONES.origin is not None:
    # The engine reads time zones from files. Those of machines differ, and slim images have none.
    os.environ["TZDIR"] = str(Path(_ZONES.origin).with_name("zoneinfo"))
_READS_ZONES: Final = re.compile("get[A-Z]")
"""Accessors of timestamps, as for hours: of all expressions these alone read time zones."""


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
    line = re.sub(r"^[A-Z_]+: (ERROR: )?| \[[A-Z_]+\]$", "", line)
    if "No matching overloads" in line and "int64" in line and "double" in line:
        line += "; CEL mixes no whole numbers with decimal ones: write double(x)"
    return line


_GROUP: Final = "rebaser.functions"
"""Group of the entry points that functions of the runtimes `INSTALLED` name."""
ARROW: Final = "arrow"
PYSPARK: Final = "pyspark"
INSTALLED: Final = ("python", ARROW, PYSPARK)
"""Runtimes of functions that are called in Python, and may do to their process what they like."""


def resolve(runtime: str, code: str) -> Callable[..., Any]:
    """Return a callable with keyword arguments, one for each input.

    One of runtime `pyspark` takes a Spark session before them. It is found once in each process:
    installed packages do not change while it runs.

    Raises:
        FunctionMissing: the function is not here; the message is meant for users.
    """
    if runtime == "builtin":
        return _builtin(code)
    if runtime in ("python", PYSPARK):
        return _installed(code)
    if runtime == "cel":
        return compile_function(code)
    if runtime == ARROW:
        # An extension's module has the runtime's name. Evaluators on Spark lack what it takes, and
        # never get such a function.
        extension = import_module(f".{runtime}", __package__)
        function: Callable[..., Any] = extension.callable_of(_installed(code))
        return function
    raise FunctionMissing(
        f"there is no runtime {runtime!r}, only 'builtin', 'python', 'cel', 'sql', 'arrow' and "
        "'pyspark'"
    )


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


_loaded: dict[str, Callable[..., Any]] = {}
"""Installed functions that this process, or the one that forked it, has loaded."""


def is_loaded(code: str) -> bool:
    """Whether an installed function can be called here without an import."""
    return code in _loaded


def _installed(code: str) -> Callable[..., Any]:
    if code not in _loaded:
        _loaded[code] = _find_installed(code)
    return _loaded[code]


def _find_installed(code: str) -> Callable[..., Any]:
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


class CodeVersion(NamedTuple):
    """The code that functions are computed with. In text it is three words."""

    name: str
    """Name of the distribution; for Rebaser's own functions `OWN_CODE`."""
    version: str
    digest: str
    """Digest of all that results depend on: equal digests, equal results."""

    def __str__(self) -> str:
        return " ".join(self)


OWN_CODE: Final = "rebaser.builtin"
_ENGINE: Final = "cel-expr-python"
_ENGINE_AND_ZONES: Final = "cel-expr-python+tzdata"
_DIGEST_DIGITS: Final = 16


def code_version(runtime: str | None, code: str) -> CodeVersion | None:
    """Return the code of a function as it was when this process first used it; None: unknown.

    Imports from other distributions are not part of it.
    """
    if runtime == "builtin":
        return installed_version(OWN_CODE)
    if runtime == "cel":
        return installed_version(_ENGINE_AND_ZONES if _READS_ZONES.search(code) else _ENGINE)
    point = _entry_point(code) if runtime in INSTALLED else None
    return installed_version(point.dist.name) if point is not None and point.dist else None


@cache
def installed_version(name: str) -> CodeVersion | None:
    """Return the code of this name that is installed here; None: it is unknown."""
    try:
        if name == OWN_CODE:
            release, digest = version("rebaser"), _files_digest(_own_files())
        elif name in (_ENGINE, _ENGINE_AND_ZONES):
            release = "+".join(map(version, name.split("+")))
            digest = blake3(release.encode()).digest()
        else:
            found = distribution(name)
            release, digest = found.version, _distribution_digest(found)
    except (PackageNotFoundError, OSError, ImportError, ValueError):
        return None
    label = _NO_WORD.sub("_", release) or "_"
    return CodeVersion(_NO_WORD.sub("_", name), label, digest.hex()[:_DIGEST_DIGITS])


_NO_WORD: Final = re.compile("[^!-~]|,")
"""Characters that a word of `CodeVersion` does not have."""


def expected_code(functions: Sequence[tuple[str | None, str]]) -> dict[int, str]:
    """Return the code of these functions here, by their place: evaluators must have the same."""
    versions = (code_version(*function) for function in functions)
    return {place: str(each) for place, each in enumerate(versions) if each is not None}


def require_code(functions: Sequence[tuple[str | None, str]], expected: Mapping[int, str]) -> None:
    """Raise `CodeDiffers` if a function has other code here than is expected."""
    for place, code in expected.items():
        own = code_version(*functions[place])
        name, release, digest = code.split()
        if own is None or own.digest != digest:
            found = "none" if own is None else f"{own.version} ({own.digest})"
            raise CodeDiffers(
                f"function {functions[place][1][:SHOWN]!r} is computed with {name} {release} "
                f"({digest}) where updates are planned, and {found} is installed where it is "
                "called, so nothing was computed: install the same version on the daemons and on "
                "Spark's executors, and restart the daemons"
            )


SHOWN: Final = 80
"""Characters of a function's code that an error shows."""


@lru_cache(10_000)
def code_digest(runtime: str, code: str) -> bytes | None:
    """Return the digest of a function's code, with its text or entry point; None: it is unknown."""
    own = code_version(runtime, code)
    if own is None:
        return None
    point = _entry_point(code) if runtime in INSTALLED else None
    return blake3(f"{own.name} {own.digest} {point.value if point else code}".encode()).digest()


@lru_cache(1_000)
def _entry_point(code: str) -> EntryPoint | None:
    points = _entry_points_of(code) or _entry_points_of(code.partition("@")[0])
    return points[0] if len({point.value for point in points}) == 1 else None


def _distribution_digest(found: Distribution) -> bytes:
    """Digest of its version, what it offers as functions, and all its modules' files."""
    points = sorted((p.name, p.value, p.module) for p in found.entry_points if p.group == _GROUP)
    files: dict[str, Path] = {}
    for path in found.files or ():  # not files that a package writes into its own folder
        if (
            not path.parts[0].startswith(("..", "__editable__"))
            and ".dist-info" not in path.parts[0]
        ):
            files[path.as_posix()] = Path(str(found.locate_file(path)))
    installed = {path.partition("/")[0].removesuffix(".py") for path in files}
    for module in {module.partition(".")[0] for _, _, module in points} - installed:
        spec = find_spec(module)  # this imports nothing for a top level module
        if spec is None or spec.origin is None:
            raise ImportError(module)
        origin, inside = Path(spec.origin), [Path(spec.origin)]
        root = origin.parent
        if spec.submodule_search_locations:
            root, inside = root.parent, [*root.rglob("*")]
        files |= {path.relative_to(root).as_posix(): path for path in inside}
    offer = repr([found.version, *(each[:2] for each in points)]).encode()
    return blake3(offer + _files_digest(files)).digest()


def _own_files() -> dict[str, Path]:
    return {Path(each).name: Path(each) for each in (builtin.__file__, vectorised.__file__)}


def _files_digest(files: Mapping[str, Path]) -> bytes:
    """Raises `ValueError`: they are too large."""
    hasher, seen = blake3(), 0
    for name, path in sorted(files.items()):
        if path.parent.name == "__pycache__" or not path.is_file():
            continue
        seen += path.stat().st_size
        if seen > _MAX_FILES_BYTES:
            raise ValueError(f"more than {_MAX_FILES_BYTES} bytes")
        hasher.update(name.encode())
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
