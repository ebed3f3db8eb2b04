"""`rebaser train`: build the archive of Java classes from which Spark starts faster."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_command
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_server.settings.settings import Settings


def add(commands: Any) -> None:
    """Declare the command."""
    add_command(
        commands, "train", _train, about="build a class archive that halves the start of Spark"
    )


async def _train(settings: "Settings", arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from rebaser_server.compute.spark.spark_executor import train
    from rebaser_server.service.daemon import spark_options

    with tempfile.TemporaryDirectory(prefix="rebaser-train-") as state:
        archive = await train(replace(spark_options(settings), state_directory=Path(state)))
    if arguments.json:
        say_json({"archive": str(archive)})
    else:
        say(archive)
