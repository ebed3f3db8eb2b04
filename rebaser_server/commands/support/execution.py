"""A command's run: with the settings in force, from its errors to messages and exit codes."""

import argparse
import asyncio
import os
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import SettingsError

from rebaser_core.errors import RebaserError, offer
from rebaser_core.jetstream import JetStreamError, NatsUnreachable
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.hints import hint_for
from rebaser_server.commands.support.waiting import NotInTime, limited
from rebaser_server.settings.settings import (
    BothNamesGiven,
    Settings,
    malformed_objects,
    rename_variables,
    service_variables,
    setting_names,
    unknown_variables,
)
from rebaser_server.telemetry import tracing
from rebaser_server.terminal.lines import complain


def execute(arguments: argparse.Namespace) -> int:
    """Run the handler of the command; return the exit code. Errors go to stderr."""
    try:
        settings = _settings()
        with tracing.exported(os.environ, settings.instance_id):
            command = arguments.handler(settings, arguments)
            limit = getattr(arguments, "timeout", None)
            return int(asyncio.run(limited(command, limit)) or Exit.OK)
    except _BadSettings as error:
        complain(*error.lines)
        return Exit.BAD_SETTINGS
    except (asyncio.CancelledError, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except (RebaserError, JetStreamError, OSError) as error:
        complain(f"rebaser: {error}")
        if (hint := hint_for(error)) is not None:
            complain(f"  {hint}")
        return _code_of(error)


def _code_of(error: Exception) -> Exit:
    if isinstance(error, NotInTime):
        return Exit.NOT_IN_TIME
    return Exit.NO_NATS if isinstance(error, NatsUnreachable) else Exit.FAILED


_DURATION: Final = (
    "not a duration; PT5M is five minutes, PT0.5S is half a second, 30 is thirty seconds"
)


class _BadSettings(Exception):
    """The environment has unknown or malformed settings. No command was started."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def _settings() -> Settings:
    for name in service_variables(os.environ):
        del os.environ[name]
    try:
        warnings = rename_variables(os.environ)
    except BothNamesGiven as error:
        raise _BadSettings(f"rebaser: {error}") from error
    complain(*(f"rebaser: {warning}" for warning in warnings))
    unknown = unknown_variables(dict(os.environ))
    if unknown:
        raise _BadSettings(
            *(f"rebaser: no such setting: {_with_similar(name)}" for name in unknown),
            "  `rebaser settings` lists them all",
        )
    foreign = [name for name in os.environ if name.startswith("REBASER_") and not _is_text(name)]
    if foreign:
        raise _BadSettings(*(f"rebaser: {name!a}: not UTF-8" for name in foreign))
    try:
        return Settings()
    except ValidationError as error:
        problems = [f"  {_describe(problem)}" for problem in error.errors(include_url=False)]
        raise _BadSettings("rebaser: bad settings", *problems) from error
    except SettingsError as error:
        raise _BadSettings(
            "rebaser: bad settings",
            *(f"  {name}: an object of JSON is expected" for name in malformed_objects(os.environ)),
        ) from error


def _is_text(name: str) -> bool:
    """Whether a variable and its value are UTF-8."""
    try:
        f"{name}{os.environ[name]}".encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(problem: Any) -> str:
    name = f"REBASER_{'__'.join(map(str, problem['loc'])).upper()}"
    if problem["type"] == "extra_forbidden":
        return f"no such setting: {_with_similar(name)}"
    if str(problem["type"]).startswith("time_delta"):
        return f"{name}: {_DURATION}"
    return f"{name}: {problem['msg']}"


def _with_similar(name: str) -> str:
    return f"{name}{offer(name, setting_names(), 2)}"
