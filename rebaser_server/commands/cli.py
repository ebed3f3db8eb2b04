"""`rebaser`: from arguments and environment to a command, and from how it ends to an exit code."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import JetStreamError, Unreachable
from rebaser_server.commands import (
    change_sets,
    checkpoint,
    completion,
    dead_letters,
    doctor,
    dvu,
    enqueue,
    history,
    pause,
    queue,
    serve,
    train,
    values,
    watch,
)
from rebaser_server.commands.support.arguments import Parser
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.hints import remedy_for
from rebaser_server.settings.settings import Settings, unknown_variables
from rebaser_server.telemetry import tracing
from rebaser_server.terminal import lines

_SUBJECTS: Final = (
    serve,
    enqueue,
    values,
    change_sets,
    history,
    queue,
    watch,
    dvu,
    pause,
    checkpoint,
    dead_letters,
    doctor,
    train,
    completion,
)
"""In the order in which `rebaser --help` lists their commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Logs go to stderr, results to stdout."""
    lines.prepare()
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings()
        with tracing.exported(os.environ, settings.instance_id):
            code = arguments.command(settings, arguments)
    except _BadSettings as error:
        lines.complain(*error.lines)
        return Exit.BAD_SETTINGS
    except BrokenPipeError:
        lines.close()
        return Exit.OK
    except (RebaserError, JetStreamError, OSError) as error:
        lines.complain(f"rebaser: {error}")
        if (remedy := remedy_for(error)) is not None:
            lines.complain(f"  {remedy}")
        return Exit.NO_NATS if isinstance(error, Unreachable) else Exit.FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return Exit.INTERRUPTED
    return int(code)


class _BadSettings(Exception):
    """The environment is not as it must be; nothing was started."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def _settings() -> Settings:
    unknown = unknown_variables(dict(os.environ))
    if unknown:
        raise _BadSettings(
            f"rebaser: no such setting: {', '.join(unknown)}; `rebaser settings` lists them all"
        )
    try:
        return Settings()
    except ValidationError as error:
        problems = [
            f"  REBASER_{'__'.join(map(str, problem['loc'])).upper()}: {_said(problem)}"
            for problem in error.errors(include_url=False)
        ]
        raise _BadSettings("rebaser: bad settings", *problems) from error


def _said(problem: Any) -> str:
    if str(problem["type"]).startswith("time_delta"):
        return "no duration; PT5M is five minutes, PT0.5S half a second, 30 thirty seconds"
    return str(problem["msg"])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rebaser",
        description="Applies each change set's updates in order, once, "
        "and recomputes what depends on them on Spark.",
        epilog="Settings are REBASER_* variables; `rebaser settings` shows those in force.",
    )
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for subject in _SUBJECTS:
        subject.add(commands)
    return parser
