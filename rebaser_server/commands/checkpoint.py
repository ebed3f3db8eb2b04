"""`rebaser checkpoint`: store the state of a change set now, and wait until it is stored."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    add_address,
    add_command,
    add_timeout,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.store.checkpoints import Checkpoints

_FIRST_DELAY: Final = 0.05  # seconds between two reads of the store, doubled up to
_LAST_DELAY: Final = 2.0
_EXPLAIN_AFTER: Final = 5.0
"""Seconds until the command explains its wait: the store that it reads may be another one."""


_ROOT: Final = "REBASER_STORE__ROOT"
_STORE_HINT: Final = f"{_ROOT} must be what the daemons have"


def add(commands: Any) -> None:
    """Declare the command."""
    checkpoint = add_command(
        commands, "checkpoint", _checkpoint, about="store the state of a change set now"
    )
    add_address(checkpoint)
    add_timeout(checkpoint)


@with_deployment
async def _checkpoint(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import change_set_of
    from rebaser_server.commands.support.deployment import warn_if_paused
    from rebaser_server.commands.support.value_source import reads_store

    change_set = await change_set_of(deployment, arguments)
    await warn_if_paused(deployment, change_set)
    checkpoints, missing = None, "with `rebaser[server]`"
    if reads_store():
        from rebaser_server.errors import StoreNotKnown
        from rebaser_server.graph_application.state_machine import open_checkpoints

        try:
            checkpoints = open_checkpoints((await deployment.settings_with_store()).store)
        except StoreNotKnown as error:
            complain(f"rebaser: {error}")
            missing = f"with {_ROOT} set"
    commit = await deployment.client.change_set(*change_set).checkpoint()
    uri, stored = None, None
    if checkpoints is not None:
        uri = checkpoints.uri(change_set)
        stored = await until_stored(checkpoints, change_set, commit)
    if arguments.json:
        say_json({"commit": commit, "stored": stored, "uri": uri})
    elif stored is None:
        say(f"a Rebaser stores commit {commit}; {missing} this waits until it has")
    else:
        say(f"commit {stored} is stored at {uri}")


async def until_stored(
    checkpoints: "Checkpoints",
    change_set: "ChangeSet",
    commit: int,
    explain_after: float = _EXPLAIN_AFTER,
) -> int:
    """The commit of the first checkpoint that contains `commit`, once the store has one.

    A wait of more than `explain_after` seconds is explained on stderr, once.
    """
    import asyncio

    from rebaser_core.jetstream.deadlines import Backoff

    delays, waited, explained = iter(Backoff(_FIRST_DELAY, _LAST_DELAY)), 0.0, False
    while True:
        stored = await asyncio.to_thread(checkpoints.last_commit, change_set)
        if stored >= commit:
            return stored
        if waited >= explain_after and not explained:
            explained = True
            complain(
                f"waiting until {checkpoints.uri(change_set)} has commit {commit}; {_STORE_HINT}. "
                "If it is, the daemon logs the reason (`checkpoint failed`)"
            )
        delay = next(delays)
        await asyncio.sleep(delay)
        waited += delay
