"""`rebaser demo`, which Rebaser's command line finds as an entry point in `rebaser.commands`."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_command

if TYPE_CHECKING:
    from rebaser_server.settings.settings import Settings


def add(commands: Any) -> None:
    """Declare the command."""
    demo = add_command(
        commands, "demo", _demo, about="compute which Debian packages one security fix reaches"
    )
    demo.add_argument(
        "--package", default="libc6", help="package to mark as fixed (default: %(default)s)"
    )


async def _demo(settings: "Settings", arguments: argparse.Namespace) -> None:
    from debian_demo.run import demo
    from rebaser_server.telemetry import logs

    logs.configure(settings.instance_id, level="warning")
    await demo(settings, arguments.package, as_json=arguments.json)
