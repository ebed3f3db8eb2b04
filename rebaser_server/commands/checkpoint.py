"""`rebaser checkpoint`: save the state of a change set now, and say when it is stored."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import deadlines
from rebaser_server.commands.support.addressing import existing
from rebaser_server.commands.support.arguments import add_change_set, runs
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.store.checkpoints import Checkpoints

_FIRST_LOOK: Final = 0.05  # seconds between two looks into the store, doubled up to
_LAST_LOOK: Final = 2.0


def add(commands: Any) -> None:
    """Declare the command."""
    checkpoint = commands.add_parser("checkpoint", help="save the state of a change set now")
    add_change_set(checkpoint)
    checkpoint.add_argument(
        "--within", type=float, default=600.0, metavar="SECONDS", help="to be stored in; 600"
    )
    runs(checkpoint, _checkpoint)


async def _checkpoint(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.pauses import warn_if_paused
    from rebaser_server.store.checkpoints import Checkpoints

    change_set = await existing(at, arguments)
    await warn_if_paused(at, change_set)
    checkpoints = Checkpoints(settings.store.root, settings.store.options)
    commit, stored = None, None
    try:
        async with deadlines.within(arguments.within):
            commit = await at.client.operations.checkpoint(*change_set)
            stored = await _stored(checkpoints, change_set, commit)
    except TimeoutError:
        complain(
            "rebaser: the request still waits in line: `rebaser queue`"
            if commit is None
            else f"rebaser: commit {commit} is not in {checkpoints.uri(change_set)} yet; "
            "the Rebaser's log says why (`no checkpoint`), and the commit log has everything"
        )
    if arguments.json:
        uri = checkpoints.uri(change_set)
        say_json({"commit": commit, "stored": stored, "uri": uri})
    elif stored is not None:
        say(f"commit {stored} is stored at {checkpoints.uri(change_set)}")
    return Exit.FAILED if stored is None else Exit.OK


async def _stored(checkpoints: "Checkpoints", change_set: ChangeSet, commit: int) -> int:
    """The commit of a checkpoint that holds `commit`, once the store has it."""
    delay = _FIRST_LOOK
    while True:
        stored = await asyncio.to_thread(checkpoints.last, change_set)
        if stored >= commit:
            return stored
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LAST_LOOK)
