"""`rebaser serve`, `up`, `demo` and `settings`: run it, or say how it would run."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, Final, Never

import structlog

from rebaser_server.commands.support.arguments import add_json
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry import logs
from rebaser_server.terminal.lines import say_script

log: Final = structlog.get_logger()


def add(commands: Any) -> None:
    """Declare the commands."""
    up = commands.add_parser("up", help="run NATS, a Rebaser and Spark here, for trying it out")
    up.add_argument(
        "--data", type=Path, default=Path("rebaser-data"), help="where everything is kept"
    )
    up.add_argument("--port", type=int, default=4222, help="of NATS, on loopback")
    add_json(up)
    up.set_defaults(command=_up)

    serve = commands.add_parser("serve", help="run the daemon against an existing NATS")
    serve.set_defaults(command=_serve)

    demo = commands.add_parser("demo", help="which Debian packages does one security fix reach?")
    demo.add_argument("--package", default="libc6", help="the package to mark as fixed")
    add_json(demo)
    demo.set_defaults(command=_demo)

    settings = commands.add_parser("settings", help="show the settings in force, as JSON")
    add_json(settings)
    settings.set_defaults(command=_show)


def _serve(settings: Settings, _: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _nothing_began)  # until there is something to finish
    from rebaser_server.runtime.concurrency import Shutdown, on_signals
    from rebaser_server.service import daemon

    logs.configure(settings.instance_id, settings.log_format)
    log.info("starting")

    async def body() -> None:
        shutdown = Shutdown()
        with on_signals(shutdown):
            await daemon.run(settings, shutdown)

    asyncio.run(body())
    return Exit.OK


def _nothing_began(*_: object) -> Never:
    sys.exit(Exit.OK)


def _up(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.service.dev_server import up

    logs.configure(settings.instance_id, settings.log_format)
    asyncio.run(up(settings, arguments.data.absolute(), arguments.port, as_json=arguments.json))
    return Exit.OK


def _demo(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.demo.run import demo

    logs.configure(settings.instance_id, settings.log_format, only_warnings=True)
    asyncio.run(demo(settings, arguments.package, as_json=arguments.json))
    return Exit.OK


def _show(settings: Settings, _: argparse.Namespace) -> int:
    say_script(settings.model_dump_json(indent=2))
    return Exit.OK
