"""Questions that a command asks a person before it changes what cannot be changed back."""

import argparse

from rebaser_server.commands.support.arguments import Validator
from rebaser_server.terminal.lines import ask


async def confirmed(question: str) -> bool:
    """Whether the person at the terminal answers yes."""
    import asyncio

    answer = await asyncio.to_thread(ask, f"{question} [y/N]")
    return answer.lower() in ("y", "yes")


def unless_confirmed(**options: str) -> Validator:
    """A command that asks takes `--json`, which a program uses, only with one of the options."""

    def validate(arguments: argparse.Namespace) -> str | None:
        if not arguments.json or any(getattr(arguments, name) for name in options):
            return None
        return f"with --json Rebaser asks no question: give {' or '.join(options.values())}"

    return validate
