"""Arguments that several commands take."""

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from ulid import ULID

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId

T = TypeVar("T", bound=ULID)


def ulid(kind: type[T]) -> Callable[[str], T]:
    """A reader of ids for `add_argument(type=…)`."""

    def read(text: str) -> T:
        try:
            return kind.from_str(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a ULID") from None

    return read


def add_change_set(parser: argparse.ArgumentParser, **how: Any) -> None:
    """Two positional arguments; `change_set_in` reads them."""
    parser.add_argument("workspace", type=ulid(WorkspaceId), help="a ULID", **how)
    parser.add_argument("change_set", type=ulid(ChangeSetId), help="a ULID", **how)


def change_set_in(arguments: argparse.Namespace) -> ChangeSet:
    return ChangeSet(arguments.workspace, arguments.change_set)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
