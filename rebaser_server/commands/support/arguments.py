"""Arguments that several commands take, and how they are read."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Never, TypeVar

from ulid import ULID

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import visible

T = TypeVar("T", bound=ULID)

_HELP: Final = ("-h", "--help")


class Parser(argparse.ArgumentParser):
    """Takes options anywhere among the arguments, and may have a verb that need not be said."""

    def error(self, message: str) -> Never:
        super().error(visible(message))

    unsaid: str | None = None
    """The verb that is meant where none is."""

    def parse_known_args(  # type: ignore[override]  # as it is called
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        verbs = [each for each in self._actions if isinstance(each.choices, dict)]
        if verbs:
            said = list(sys.argv[1:] if args is None else args)
            if self.unsaid and said and said[0] not in (*_HELP, *(verbs[0].choices or ())):
                said.insert(0, self.unsaid)
            return super().parse_known_args(said, namespace)
        if getattr(self, "_reading", False):  # called back by what is called next
            return super().parse_known_args(args, namespace)
        self._reading = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._reading = False


def ulid(kind: type[T]) -> Callable[[str], T]:
    """A reader of ids for `add_argument(type=…)`."""

    def read(text: str) -> T:
        try:
            return kind.from_str(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a ULID; `rebaser workspaces list` and `rebaser change-sets "
                "list WORKSPACE` show those there are"
            ) from None

    return read


def add_change_set(parser: argparse.ArgumentParser, **how: Any) -> None:
    """Two positional arguments; `change_set_in` reads them."""
    parser.add_argument("workspace", type=ulid(WorkspaceId), help="a ULID", **how)
    parser.add_argument("change_set", type=ulid(ChangeSetId), help="a ULID", **how)


def change_set_in(arguments: argparse.Namespace) -> ChangeSet:
    return ChangeSet(arguments.workspace, arguments.change_set)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")


Body = Callable[[Any, Settings, argparse.Namespace], Awaitable[int | None]]


def runs(
    parser: argparse.ArgumentParser,
    body: Body,
    *,
    complaint: Callable[[argparse.Namespace], str | None] = lambda _: None,
) -> None:
    """The command is `body`, given the deployment, settings and arguments; OK unless it says.

    Unless there is a `complaint` about the arguments: then nothing is connected.
    """
    add_json(parser)

    def command(settings: Settings, arguments: argparse.Namespace) -> int:
        if (what := complaint(arguments)) is not None:
            parser.error(what)
        return asyncio.run(_connected(body, settings, arguments))

    parser.set_defaults(command=command, action=parser.prog.rpartition(" ")[2])


async def _connected(body: Body, settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.deployment import deployment

    async with deployment(settings) as at:
        return int(await body(at, settings, arguments) or Exit.OK)
