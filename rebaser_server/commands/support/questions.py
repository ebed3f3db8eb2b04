"""Questions that a command asks a person before it changes what cannot be changed back."""

import argparse
import sys

from rebaser_server.commands.support.arguments import Validator
from rebaser_server.terminal.lines import ask


async def confirmed(question: str) -> bool:
    """Whether the person at the terminal answers yes."""
    import asyncio

    answer = await asyncio.to_thread(ask, f"{question} [y/N]")
    return answer.lower() in ("y", "yes")


async def refused_at_terminal(question: str, arguments: argparse.Namespace) -> bool:
    """Whether a person at a terminal, asked what `--yes` and `--json` do not ask, says no.

    Programs are not asked: what the command does can be undone.
    """
    if arguments.yes or arguments.json or not sys.stdin.isatty():
        return False
    return not await confirmed(question)


def unless_confirmed(**options: str) -> Validator:
    """A command that asks takes `--json`, which a program uses, only with one of the options."""

    def validate(arguments: argparse.Namespace) -> str | None:
        if not arguments.json or any(getattr(arguments, name) for name in options):
            return None
        return f"with --json Rebaser asks no question: give {' or '.join(options.values())}"

    return validate
