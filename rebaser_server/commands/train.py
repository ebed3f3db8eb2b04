"""`rebaser train`: what makes Spark start faster, done once, where it is installed."""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from rebaser_server.commands.support.arguments import add_json
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say, say_json


def add(commands: Any) -> None:
    """Declare the command."""
    train = commands.add_parser("train", help="have Spark start in less than half of the time")
    add_json(train)
    train.set_defaults(command=_train)


def _train(settings: Settings, arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from rebaser_server.compute.spark.cds_training import train
    from rebaser_server.service.daemon import spark_options

    with tempfile.TemporaryDirectory(prefix="rebaser-train-") as state:
        options = replace(spark_options(settings), state_directory=Path(state))
        made = asyncio.run(train(options))
    if arguments.json:
        say_json({"archive": str(made)})
    else:
        say(made)
    return Exit.OK
