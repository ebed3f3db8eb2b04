"""How a command is declared: its parser, its handler, and the arguments that several commands take.

Nothing here imports NATS, pydantic or the settings: `rebaser --help` does without them.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

from rebaser_server.terminal.lines import say_script, visible

if TYPE_CHECKING:
    from ulid import ULID

    from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings

_HELP: Final = ("-h", "--help")
_LISTS: Final = "; `rebaser workspaces list` and `rebaser change-sets list WORKSPACE` show the ids"

Id = TypeVar("Id", bound="ULID")

Handler = Callable[["Settings", argparse.Namespace], Coroutine[Any, Any, int | None]]
"""Runs a command. Returns the exit code; None stands for 0."""

DeploymentHandler = Callable[["Deployment", argparse.Namespace], Coroutine[Any, Any, int | None]]
"""Runs a command that needs a connection to NATS."""

Validator = Callable[[argparse.Namespace], str | None]
"""Returns what is wrong with the arguments taken together, or None."""


class Parser(argparse.ArgumentParser):
    """Takes options anywhere among the arguments; a group of commands may have a default one."""

    default_command: str | None = None
    """The command of the group that runs if the first argument names none."""

    def error(self, message: str) -> Never:
        super().error(visible(message))

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        groups = [action for action in self._actions if isinstance(action.choices, dict)]
        if groups:
            words = list(sys.argv[1:] if args is None else args)
            known = (*_HELP, *(groups[0].choices or ()))
            if self.default_command and words and words[0] not in known:
                words.insert(0, self.default_command)
            return super().parse_known_args(words, namespace)
        if getattr(self, "_intermixed", False):  # parse_known_intermixed_args calls this method
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


class PrintText(argparse.Action):
    """An option or argument that prints `text` of its value and exits, as `--help` does."""

    def __init__(self, *, text: Callable[[Any], str], **options: Any) -> None:
        super().__init__(**options)
        self._text = text

    def __call__(
        self, parser: argparse.ArgumentParser, _: argparse.Namespace, value: Any, *__: Any
    ) -> None:
        say_script(self._text(value))
        parser.exit()


def add_group(
    commands: Any, name: str, *, about: str, default: str | None = None
) -> "argparse._SubParsersAction[Parser]":
    """Declare a group of commands; `default` is the one that runs if no command is named.

    The group alone prints its help.
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

    return _ulid(RequestId, text, hint="")


def _ulid(kind: type[Id], text: str, hint: str = _LISTS) -> Id:
    try:
        return kind.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ULID{hint}") from None


def add_workspace(parser: argparse.ArgumentParser) -> None:
    """Declare the argument `workspace`."""
    parser.add_argument("workspace", type=workspace_id, help="the workspace's ULID")


def add_change_set(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments `workspace` and `change_set`, both ULIDs."""
    add_workspace(parser)
    parser.add_argument("change_set", type=change_set_id, help="the change set's ULID")


def add_named_change_set(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments `workspace` and `change_set`; the latter may be a name."""
    add_workspace(parser)
    parser.add_argument("change_set", help="the change set's name or ULID")
