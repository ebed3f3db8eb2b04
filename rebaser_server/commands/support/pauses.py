"""Pauses as commands tell of them: what a pause covers, and what it holds up."""

from typing import TYPE_CHECKING

from rebaser_core.ids import ChangeSet
from rebaser_core.pause_record import Scope, scopes_of
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def told(scope: Scope) -> str:
    if scope.change_set_id is not None:
        return f"change set {scope.workspace_id} {scope.change_set_id}"
    return f"workspace {scope.workspace_id}" if scope.workspace_id is not None else "everything"


async def warn_if_paused(at: "Deployment", change_set: ChangeSet) -> None:
    """Say on stderr that what is asked of the change set will wait, and for what."""
    from rebaser_server.cluster.pauses import PauseBook

    found = await PauseBook(at.js, at.subjects).all()
    for scope in scopes_of(change_set):
        if scope in found:
            complain(f"{told(scope)} is paused: this waits for {resume_hint(scope)}")
            return


def resume_hint(scope: Scope) -> str:
    """The command that takes the pause back."""
    return f"`rebaser resume {' '.join(str(each) for each in scope if each) or '--all'}`"
