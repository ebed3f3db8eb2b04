"""`rebaser completion`: a script by which a shell completes commands and options."""

import argparse
from typing import Any, Final

from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say_script

SHELLS: Final = ("bash", "zsh", "fish")


def add(commands: Any) -> None:
    """Declare the command."""
    completion = commands.add_parser(
        "completion", help="print a completion script: `source <(rebaser completion bash)`"
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(command=_completion)


def _completion(_: Settings, arguments: argparse.Namespace) -> int:
    import shtab

    say_script(shtab.complete(arguments.parser, shell=arguments.shell))
    return Exit.OK
