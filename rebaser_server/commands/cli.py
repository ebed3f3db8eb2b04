"""The command `rebaser`: finds the command in the arguments, runs it, and returns its exit code."""

import argparse
import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from rebaser_server.commands import declarations
from rebaser_server.commands.support.arguments import (
    Exit,
    Parser,
    PrintText,
    make_group,
    too_many_addresses,
)
from rebaser_server.terminal import lines

_SECTIONS: Final = {
    "try it": ("up", "init", "demo"),
    "values": ("load", "enqueue", "values", "tables", "why"),
    "workspaces and branches": ("workspaces", "change-sets", "diff", "log", "revert"),
    "work under way": ("queue", "dvu", "pause", "resume", "dead-letters"),
    "run a deployment": ("serve", "services", "settings", "checkpoint", "doctor", "train"),
    "terminals": ("completion",),
}
"""Sections of `rebaser --help`, with their commands; others are listed behind them."""

_EXAMPLES: Final = """\
examples:
  rebaser up                            start NATS, a Rebaser and Spark here
  rebaser load shop graph.yaml --wait   make the values that a file describes
  rebaser change-sets fork shop july    create a branch, which follows head
  rebaser diff shop/july                show what applying it would change
  rebaser why shop price/cup/UK         show which edits made a value so

`rebaser COMMAND --help` shows what a command takes. REBASER_* variables are the
settings; `rebaser settings` shows those in force."""

_GROUP: Final = "rebaser.commands"
"""Group of entry points that add commands: each names a function like `declarations.add`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Logs go to stderr, results to stdout."""
    lines.prepare()
    try:
        arguments, unknown = build_parser().parse_known_args(argv)
        if unknown:
            arguments.parser.refuse(unknown)
        if arguments.handler is None:
            arguments.parser.print_help()
            return Exit.OK
        problem = (
            _foreign(arguments) or too_many_addresses(arguments) or arguments.validate(arguments)
        )
        if problem is not None:
            arguments.parser.error(problem)
        # NATS, pydantic and the settings take a second to import; what ended above needs none.
        from rebaser_server.commands.support.execution import execute

        return execute(arguments)
    except BrokenPipeError:
        lines.close()
        return Exit.OK
    except KeyboardInterrupt:  # during an import
        return Exit.INTERRUPTED
    except (SystemExit, ModuleNotFoundError):  # argparse's; an extra is missing: see `__main__`
        raise
    except BaseException as error:  # noqa: BLE001 - a fault of ours, or a library's panic
        _report(error)
        return Exit.FAILED


def _foreign(arguments: argparse.Namespace) -> str | None:
    """Fault of an argument that is not UTF-8, or None; the path of a file may be any bytes."""
    for given in vars(arguments).values():
        for word in given if isinstance(given, list | tuple) else [given]:
            try:
                str(word if isinstance(word, str) else "").encode()
            except UnicodeEncodeError:
                return f"{word!a} is not UTF-8"
    return None


def _report(error: BaseException) -> None:
    """Report the error on one line, with the place of the traceback. Raises nothing."""
    try:
        import traceback

        from rebaser_server.settings.redaction import redact_text

        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"at {Path(last.filename).name}:{last.lineno} in {last.name}"
        details = _written(redact_text("".join(traceback.format_exception(error))))
        cause = redact_text(str(error))[:300]
        lines.complain(
            f"rebaser: a fault of Rebaser's own: {type(error).__name__}: {cause} ({place}). "
            f"{details}; please report it with that and the output of `rebaser --version`"
        )
    except Exception:  # noqa: BLE001 — stderr is gone, say
        lines.close()


def _written(details: str) -> str:
    """Write details to the user's directory of states, or a temporary file; return the place."""
    import hashlib
    import tempfile

    name = f"error-{hashlib.sha256(details.encode(errors='replace')).hexdigest()[:12]}.txt"
    try:
        state = os.environ.get("XDG_STATE_HOME", "")
        base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
        file = base / "rebaser" / name  # equal faults share one file
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except (OSError, RuntimeError, ValueError):  # no home, no room
        try:
            descriptor, path = tempfile.mkstemp(prefix="rebaser-", suffix=f"-{name}")
        except OSError:
            return "No directory takes the details"
        file = Path(path)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as opened:
        opened.write(details)
    return f"The details are in {file}"


def build_parser() -> Parser:
    parser = Parser(
        prog="rebaser",
        description="Rebaser applies the updates of each change set in order, once, "
        "and recomputes the values that depend on them.",
        epilog=_EXAMPLES,
    )
    parser.sections = _SECTIONS
    parser.add_argument(
        "--version",
        action=PrintText,
        nargs=0,
        text=_version,
        help="print the version of Rebaser and of Python, and exit",
    )
    commands = make_group(parser)
    declarations.add(commands)
    for installed in sorted(entry_points(group=_GROUP)):
        installed.load()(commands)
    declarations.add_completion(commands, parser)
    return parser


def _version(_: object) -> str:
    import platform
    from importlib.metadata import version

    return f"rebaser {version('rebaser')} (Python {platform.python_version()})"
