"""The change set that a command's arguments address: refused if it is none."""

import argparse
from typing import TYPE_CHECKING

from rebaser_client.errors import NoSuchChangeSet
from rebaser_client.registry import Registry
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.arguments import change_set_in

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


async def addressed(at: "Deployment", arguments: argparse.Namespace) -> ChangeSet:
    """The change set, which may be new.

    Raises:
        NotInWorkspace: it is known to belong to another workspace, or to be none.
    """
    change_set = change_set_in(arguments)
    await at.client.pairs.require(change_set)
    return change_set


async def existing(at: "Deployment", arguments: argparse.Namespace, hint: str = "") -> ChangeSet:
    """The change set, which is registered or has a log or requests in line.

    Raises:
        NotInWorkspace: as `addressed`.
        NoSuchChangeSet: it is none of that; `hint` is what the message ends with.
    """
    change_set = await addressed(at, arguments)
    js, subjects = at.js, at.subjects
    places = (
        (subjects.commits_stream, subjects.commits(change_set)),
        (subjects.requests_stream, subjects.requests(change_set)),
    )
    for stream, subject in places:
        if await js.get_message(stream, last_by_subject=subject) is not None:
            return change_set
    if await Registry(js, subjects).has_change_set(change_set):
        return change_set
    raise NoSuchChangeSet(
        f"there is no change set {change_set.change_set_id} in workspace "
        f"{change_set.workspace_id}{hint}"
    )
