"""`rebaser`: the one place where arguments, exit codes and standard streams are dealt with."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from ulid import ULID

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStreamError, Unreachable
from rebaser_server import logs
from rebaser_server.settings import Settings, unknown_variables

T = TypeVar("T", bound=ULID)


class Exit(IntEnum):
    """What the process tells its supervisor."""

    OK = 0
    FAILED = 1
    BAD_SETTINGS = 2  # as argparse has it for bad arguments; restarting will not help
    NO_NATS = 69  # EX_UNAVAILABLE; restarting later will
    INTERRUPTED = 130  # as a shell has it for Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Logs go to stderr, results to stdout."""
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings()
        code = arguments.command(settings, arguments)
    except _BadSettings as error:
        print(error, file=sys.stderr)
        return Exit.BAD_SETTINGS
    except Unreachable as error:
        print(f"rebaser: {error}", file=sys.stderr)
        return Exit.NO_NATS
    except (RebaserError, JetStreamError) as error:
        print(f"rebaser: {error}", file=sys.stderr)
        return Exit.FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return Exit.INTERRUPTED
    return int(code)


class _BadSettings(Exception):
    """The environment is not as it must be; nothing was started."""


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
            f"  REBASER_{'__'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise _BadSettings("\n".join(["rebaser: bad settings", *problems])) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rebaser",
        description="Applies each change set's updates in order, once, "
        "and recomputes what depends on them on Spark.",
        epilog="Settings are REBASER_* variables; `rebaser settings` shows those in force.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="run NATS, a Rebaser and Spark here, for trying it out")
    up.add_argument(
        "--data", type=Path, default=Path("rebaser-data"), help="where everything is kept"
    )
    up.add_argument("--port", type=int, default=4222, help="of NATS, on loopback")
    up.set_defaults(command=_up)

    serve = commands.add_parser("serve", help="run the daemon against an existing NATS")
    serve.set_defaults(command=_serve)

    demo = commands.add_parser("demo", help="which Debian packages does one security fix reach?")
    demo.add_argument("--package", default="libc6", help="the package to mark as fixed")
    demo.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    demo.set_defaults(command=_demo)

    values = commands.add_parser("values", help="show the values of a change set")
    values.add_argument("workspace", type=_ulid(WorkspaceId))
    values.add_argument("change_set", type=_ulid(ChangeSetId))
    values.add_argument("name", nargs="*", help="names or ids of the values to show; all")
    values.add_argument("--json", action="store_true", help="print one JSON array on stdout")
    values.set_defaults(command=_values)

    settings = commands.add_parser("settings", help="show the settings in force, as JSON")
    settings.set_defaults(command=_show)
    return parser


def _ulid(kind: type[T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        try:
            return kind.from_str(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a ULID") from None

    return read


# Commands import what they need themselves: Delta and Arrow take a second that
# `rebaser settings` and a mistyped variable need not wait for.


def _serve(settings: Settings, _: argparse.Namespace) -> int:
    from rebaser_server import daemon
    from rebaser_server.lifetimes import Shutdown, on_signals

    logs.configure(settings.instance_id)

    async def body() -> None:
        shutdown = Shutdown()
        with on_signals(shutdown):
            await daemon.run(settings, shutdown)

    asyncio.run(body())
    return Exit.OK


def _up(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.up import up

    logs.configure(settings.instance_id)
    asyncio.run(up(settings, arguments.data.absolute(), arguments.port))
    return Exit.OK


def _demo(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.demo.run import demo

    logs.configure(settings.instance_id, only_warnings=True)
    asyncio.run(demo(settings, arguments.package, as_json=arguments.json))
    return Exit.OK


def _values(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.show import show_values

    change_set = ChangeSet(arguments.workspace, arguments.change_set)
    asyncio.run(show_values(settings, change_set, arguments.name, as_json=arguments.json))
    return Exit.OK


def _show(settings: Settings, _: argparse.Namespace) -> int:
    print(settings.model_dump_json(indent=2))
    return Exit.OK
