"""Lines for a terminal: text from outside reaches it as text, and never controls it.

Names, values, messages and reasons come from clients. Only this module writes to stdout and stderr,
and only `tables` imports Rich, so that a new command cannot forget it.
"""

import io
import json
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, Final, TextIO

from rebaser_core.errors import RebaserError

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that control, are invisible, reorder text or break a line."""


class OutputRefused(RebaserError):
    """Stdout or stderr takes nothing more, as on a full disk; what was done before stands."""


def visible(text: str) -> str:
    r"""Return `text` on one line, each invisible character written as `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _UNSEEN:
        return character
    return ascii(character)[1:-1]


def prepare() -> None:
    r"""Let stdout accept every character: characters that its encoding lacks become `\u2026`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before Python started
            setattr(sys, name, io.StringIO())
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's replacement has none
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether a person reads stdout, or stderr."""
    return (sys.stderr if stderr else sys.stdout).isatty()


def close() -> None:
    """Discard stdout: its reader is gone, as when `head` has read enough."""
    sys.stdout = io.StringIO()


def say(*lines: object) -> None:
    """Print each as one line on stdout, at once."""
    _write(sys.stdout, (visible(str(line)) for line in lines))


def complain(*lines: object) -> None:
    """Print each as one line on stderr."""
    _write(sys.stderr, (visible(str(line)) for line in lines))


def say_json(data: Any, *, indent: int | None = None) -> None:
    """Print JSON in ASCII, whose own escapes make it safe for a terminal."""
    _write(sys.stdout, [json.dumps(data, indent=indent)])


def say_result(plain: Any, *lines: object, as_json: bool) -> None:
    """Print a result for programs, `plain` as JSON, or for people, the lines."""
    if as_json:
        say_json(plain)
    else:
        say(*lines)


def say_script(text: str) -> None:
    """Print a text without changes; it must not contain foreign text."""
    _write(sys.stdout, [text])


def say_csv(text: str) -> None:
    """Print CSV, each cell as it is; to a terminal, as lines that do not control it."""
    if is_terminal():
        say(*text.splitlines())
    else:
        _write(sys.stdout, [text.removesuffix("\n")])


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    try:
        stream.writelines(f"{line}\n" for line in lines)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "stderr" if stream is sys.stderr else "stdout"
        setattr(sys, name, io.StringIO())  # else the end of the process fails once more
        raise OutputRefused(
            f"{name} takes nothing more: {error.strerror}; what the command did before stands"
        ) from error


def ask(question: str) -> str:
    """Return the line of stdin that answers the question on stderr. Blocks."""
    sys.stderr.write(f"{visible(question)} ")
    sys.stderr.flush()
    if (buffer := getattr(sys.stdin, "buffer", None)) is None:  # closed, or text in a test
        return "" if sys.stdin is None else sys.stdin.readline().strip()
    # Not through the buffer, whose lock the end of the process would wait for.
    return str(buffer.raw.readline().decode(errors="replace").strip())
