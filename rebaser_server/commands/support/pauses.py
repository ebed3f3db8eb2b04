"""Pauses in the words of commands: what a pause covers, and which command ends it."""

from typing import TYPE_CHECKING

from rebaser_core.ids import ChangeSet
from rebaser_core.records.pause_record import PauseScope, enclosing_scopes
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def describe(scope: PauseScope) -> str:
    if scope.change_set_id is not None:
        return f"change set {scope.workspace_id} {scope.change_set_id}"
    return f"workspace {scope.workspace_id}" if scope.workspace_id is not None else "everything"


async def warn_if_paused(deployment: "Deployment", change_set: ChangeSet) -> None:
    """Say on stderr if the request will wait for the end of a pause."""
    from rebaser_server.cluster.pauses import PauseStore

    pauses = await PauseStore(deployment.js, deployment.subjects).all()
    for scope in enclosing_scopes(change_set):
        if scope in pauses:
            complain(f"{describe(scope)} is paused: the request waits for {resume_hint(scope)}")
            return


def resume_hint(scope: PauseScope) -> str:
    """The command that ends the pause."""
    return f"`rebaser resume {' '.join(str(each) for each in scope if each) or '--all'}`"
