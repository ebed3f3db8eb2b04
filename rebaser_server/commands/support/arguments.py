"""How a command is declared: its handler, and the arguments that several commands take.

Nothing here imports NATS, pydantic or the settings: `rebaser --help` does without them.
"""

import argparse
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rebaser_server.commands.support.parser import Parser

if TYPE_CHECKING:
    from ulid import ULID

    from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings

_WORDS: Final = 2
"""Words of an address, at most: workspace and change set."""

ADDRESS: Final = "the change set: WORKSPACE for its head, or WORKSPACE/BRANCH; ids do, too"
IN_USE: Final = "the one of `rebaser use`"

Id = TypeVar("Id", bound="ULID")

COMPLETERS: Final = {
    "bash": "_rebaser_words",
    "zsh": "_rebaser_words",
    "fish": "(rebaser complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)",
    "preamble": {
        "bash": """_rebaser_words() {
  rebaser complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | grep -v " "
}""",
        "zsh": """_rebaser_words() {
  compadd -- ${(f)"$(rebaser complete -- ${words[2,CURRENT]} 2>/dev/null)"}
}""",
    },
}
"""How each shell asks `rebaser complete` for words; bash would cut words at blanks."""

Handler = Callable[["Settings", argparse.Namespace], Coroutine[Any, Any, int | None]]
"""Runs a command. Returns the exit code; None stands for 0."""

DeploymentHandler = Callable[["Deployment", argparse.Namespace], Coroutine[Any, Any, int | None]]
"""Runs a command that needs a connection to NATS."""

Validator = Callable[[argparse.Namespace], str | None]
"""Returns what is wrong with the arguments taken together, or None."""


def add_group(
    commands: Any, name: str, *, about: str, default: str | None = None
) -> "argparse._SubParsersAction[Parser]":
    """Declare a group of commands; `default` is the one that runs if no command is named.

    A group without one prints its help.
    """
    group: Parser = commands.add_parser(name, help=about, description=about)
    return make_group(group, default=default)


def make_group(
    parser: Parser, *, default: str | None = None
) -> "argparse._SubParsersAction[Parser]":
    """Let the parser take commands, and print its help if it is given none."""
    parser.default_command = default
    parser.set_defaults(parser=parser, handler=None)
    return parser.add_subparsers(metavar="COMMAND", title="commands")


def add_command(
    commands: Any,
    name: str,
    handler: Handler,
    *,
    about: str,
    validate: Validator = lambda _: None,
    json: bool = True,
) -> Parser:
    """Declare a command, with `--json` unless it prints no result.

    Arguments to which `validate` objects end the command before it connects to NATS.
    """
    parser: Parser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(parser=parser, handler=handler, validate=validate, action=name)
    if json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def with_deployment(handler: DeploymentHandler) -> Handler:
    """The handler, given a connection to the deployment that the settings name."""

    @functools.wraps(handler)
    async def connected(settings: "Settings", arguments: argparse.Namespace) -> int | None:
        from rebaser_server.commands.support.deployment import open_deployment

        async with open_deployment(settings) as deployment:
            return await handler(deployment, arguments)

    return connected


def workspace_id(text: str) -> "WorkspaceId":
    """The type of an argument: a workspace's ULID."""
    from rebaser_core.ids import WorkspaceId

    return _ulid(WorkspaceId, text)


def change_set_id(text: str) -> "ChangeSetId":
    """The type of an argument: a change set's ULID."""
    from rebaser_core.ids import ChangeSetId

    return _ulid(ChangeSetId, text)


def request_id(text: str) -> "RequestId":
    """The type of an argument: a request's ULID."""
    from rebaser_core.ids import RequestId

    return _ulid(RequestId, text)


def _ulid(kind: type[Id], text: str) -> Id:
    try:
        return kind.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ULID") from None


def add_address(
    parser: argparse.ArgumentParser, *, about: str = ADDRESS, default: str = IN_USE
) -> None:
    """Declare `address`: one word, or two that are workspace and change set; none if left out."""
    _completed(
        parser.add_argument(
            "address", nargs="*", metavar="ADDRESS", help=f"{about} (default: {default})"
        )
    )


def add_address_and_names(parser: argparse.ArgumentParser, *, about: str) -> None:
    """Declare `address` and, behind it, `name`: any number of words."""
    _completed(
        parser.add_argument(
            "address", nargs="?", metavar="ADDRESS", help=f"{ADDRESS} (default: {IN_USE})"
        )
    )
    _completed(parser.add_argument("name", nargs="*", metavar="NAME", help=about))


def add_workspace(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare `workspace`: a word, or None if left out."""
    if required:
        about = "name or id of the workspace"
        _completed(parser.add_argument("workspace", metavar="WORKSPACE", help=about))
        return
    _completed(
        parser.add_argument(
            "workspace",
            nargs="?",
            metavar="WORKSPACE",
            help=f"name or id of the workspace (default: that of {IN_USE})",
        )
    )


def add_value(parser: argparse.ArgumentParser, name: str, about: str) -> None:
    """Declare an argument that names a value."""
    _completed(parser.add_argument(name, metavar=name.upper(), help=about))


def add_ids(parser: argparse.ArgumentParser) -> None:
    """Declare `--ids`."""
    parser.add_argument("--ids", action="store_true", help="show ids, too")


def too_many_addresses(arguments: argparse.Namespace) -> str | None:
    """What is wrong with the number of words of an address."""
    address = getattr(arguments, "address", None)
    if isinstance(address, list) and len(address) > _WORDS:
        return f"give one ADDRESS, or the ids of WORKSPACE and CHANGE_SET: {' '.join(address)}"
    return None


def _completed(argument: argparse.Action) -> None:
    """Let a shell complete the argument: see `completion`."""
    vars(argument)["complete"] = COMPLETERS  # an attribute of shtab's
