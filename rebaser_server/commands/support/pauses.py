"""Pauses in the words of commands: what a pause covers, and which command ends it."""

import shlex
from typing import TYPE_CHECKING

from rebaser_client.workspaces import HEAD
from rebaser_core.ids import ChangeSet
from rebaser_core.records import PauseScope, enclosing_scopes
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


async def describe(deployment: "Deployment", scope: PauseScope) -> str:
    """What the scope covers, by name."""
    if scope.workspace_id is None:
        return "everything"
    return f"{_kind(scope)} {await _name(deployment, scope)!r}"


async def warn_if_paused(
    deployment: "Deployment", change_set: ChangeSet, waiting: str = "the request"
) -> None:
    """Say on stderr if what is `waiting` will wait for the end of a pause."""
    text = await pause_text(deployment, change_set, waiting)
    if text is not None:
        complain(text)


async def pause_text(deployment: "Deployment", change_set: ChangeSet, waiting: str) -> str | None:
    """Which pause keeps back what is `waiting`, and the command that ends it; None without one."""
    from rebaser_server.cluster.pauses import PauseStore

    pauses = await PauseStore(deployment.js, deployment.subjects).all()
    for scope in enclosing_scopes(change_set):
        if scope in pauses:
            what, how = await describe(deployment, scope), await resume_hint(deployment, scope)
            return f"{what} is paused: {waiting} waits for {how}"
    return None


async def resume_hint(deployment: "Deployment", scope: PauseScope) -> str:
    """The command that ends the pause."""
    return f"`rebaser resume {shlex.quote(await _name(deployment, scope))}`"


def _kind(scope: PauseScope) -> str:
    return "workspace" if scope.change_set_id is None else "change set"


async def _name(deployment: "Deployment", scope: PauseScope) -> str:
    """The words that name the scope in `rebaser pause`; of a head `shop/head`."""
    addresses = deployment.client.addresses
    if scope.workspace_id is None:
        return "--all"
    name = await addresses.name_of(scope.workspace_id)
    if scope.change_set_id is None:
        return name
    address = await addresses.address_of(ChangeSet(scope.workspace_id, scope.change_set_id))
    return f"{address}/{HEAD}" if address == name else address
