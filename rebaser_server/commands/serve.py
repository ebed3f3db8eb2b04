"""`rebaser serve`, `up`, `settings` and `train`: run a Rebaser, or prepare to.

`train` builds the archive of Java classes from which Spark starts faster.
"""

import argparse
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Never

from rebaser_server.commands.declarations import ANY_PORT
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.terminal.lines import is_terminal, say_result, say_script

if TYPE_CHECKING:
    from rebaser_server.settings.settings import Settings

_PORT: Final = 4222


def _prepare(settings: "Settings") -> None:
    """Set up what a Rebaser's process has for all its life, before anything imports Arrow."""
    from rebaser_server.runtime.memory import quiet_allocators

    quiet_allocators()
    from rebaser_server.settings.redaction import redact_text
    from rebaser_server.telemetry import logs

    logs.configure(settings.instance_id, level=settings.log_level, mask=redact_text)


async def serve(settings: "Settings", arguments: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, _exit)  # until there is work to finish
    import structlog

    _prepare(settings)
    from rebaser_server.runtime.tasks import Shutdown, on_signals

    structlog.get_logger().info("starting")
    shutdown = Shutdown()
    with on_signals(shutdown):
        if arguments.app:
            from rebaser_server.service import worker

            if arguments.reload:
                words = [word for app in arguments.app for word in ("--app", app)]
                await worker.reloading(["serve", *words], shutdown)
            else:
                services = [each for app in arguments.app for each in worker.find_services(app)]
                await worker.serve(settings, services, shutdown)
        else:
            from rebaser_server.service import daemon

            await daemon.run(settings, shutdown)


def _exit(*_: object) -> Never:
    sys.exit(Exit.OK)


async def up(settings: "Settings", arguments: argparse.Namespace) -> None:
    if "instance_id" not in settings.model_fields_set:
        settings = settings.model_copy(update={"instance_id": "up"})
    if is_terminal(stderr=True) and "log_level" not in settings.model_fields_set:
        settings = settings.model_copy(update={"log_level": "warning"})
    _prepare(settings)
    from rebaser_server.service.dev_server import run_dev_server

    await run_dev_server(
        settings,
        arguments.data.absolute(),
        _free_port() if arguments.port is None else arguments.port,
        sync=arguments.sync,
        as_json=arguments.json,
    )


def _free_port() -> int:
    """Return NATS's own port, or `ANY_PORT` where it is in use."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", _PORT))
        except OSError:
            return ANY_PORT
    return _PORT


async def show_settings(settings: "Settings", _: argparse.Namespace) -> None:
    say_script(settings.model_dump_json(indent=2))


async def train(settings: "Settings", arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from rebaser_server.compute.spark.spark_executor import train
    from rebaser_server.service.daemon import spark_options

    with tempfile.TemporaryDirectory(prefix="rebaser-train-") as state:
        archive = await train(replace(spark_options(settings), state_directory=Path(state)))
    say_result({"archive": str(archive)}, archive, as_json=arguments.json)
