"""What a command reads from files, from stdin and from arguments, before it connects to NATS."""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rebaser_core.errors import RebaserError
from rebaser_server.commands.support.arguments import Handler

STDIN: Final = "-"
"""Stands for stdin where a file or a value is expected."""


class UnusableInput(RebaserError):
    """A command cannot use what it was given; the message says why. Nothing was sent."""


def with_input(read: Callable[[argparse.Namespace], Any]) -> Callable[[Handler], Handler]:
    """Read `arguments.input` from the arguments with `read`, then run the handler.

    Put it above `with_deployment`: input that is wrong is reported without a server. Errors
    of the operating system become `UnusableInput` with the file's name.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def reading(settings: Any, arguments: argparse.Namespace) -> int | None:
            try:
                arguments.input = read(arguments)
            except OSError as error:
                raise UnusableInput(f"{error.filename}: {error.strerror}") from error
            return await handler(settings, arguments)

        return reading

    return decorate


def read_text(file: Path) -> str:
    """The text of the file, or of stdin, without a byte order mark.

    Raises:
        UnusableInput: it is not UTF-8, or too large.
        OSError: it cannot be read.
    """
    from rebaser_client import documents
    from rebaser_client.errors import InvalidDraft

    try:
        if str(file) != STDIN:
            return documents.read_text(file)
        if (octets := getattr(sys.stdin, "buffer", None)) is None:  # closed, or text in a test
            return "" if sys.stdin is None else sys.stdin.read()
        return documents.decode(octets.read())
    except InvalidDraft as error:
        raise UnusableInput(f"{file}: {error}") from error
