"""`rebaser completion`: a script with which a shell completes commands and options."""

import argparse
from typing import Any, Final

from rebaser_server.commands.support.arguments import PrintText

SHELLS: Final = ("bash", "zsh", "fish")


def add(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Declare the command, which completes what `parser` takes; it reads no settings."""

    def script(shell: str) -> str:
        import shtab

        return str(shtab.complete(parser, shell=shell))

    about = "print a completion script: `source <(rebaser completion bash)`"
    completion = commands.add_parser("completion", help=about, description=about)
    completion.add_argument(
        "shell", choices=SHELLS, action=PrintText, text=script, help="the shell to complete for"
    )
