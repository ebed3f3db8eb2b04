"""`rebaser checkpoint`: store the state of a change set now, and wait until it is stored."""

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    add_address,
    add_command,
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
    checkpoint.add_argument(
        "--within",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="timeout in seconds (default: %(default)g)",
    )


@with_deployment
async def _checkpoint(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_core.jetstream import deadlines
    from rebaser_server.commands.support.addresses import change_set_of
    from rebaser_server.commands.support.deployment import warn_if_paused
    from rebaser_server.commands.support.value_source import reads_store

    change_set = await change_set_of(deployment, arguments)
    await warn_if_paused(deployment, change_set)
    if not reads_store():
        return await _request(deployment, change_set, arguments)
    from rebaser_server.errors import StoreNotKnown
    from rebaser_server.graph_application.state_machine import open_checkpoints

    try:
        settings = await deployment.settings_with_store()
    except StoreNotKnown as error:
        complain(f"rebaser: {error}")
        return await _request(deployment, change_set, arguments, f"with {_ROOT} set")
    checkpoints = open_checkpoints(settings.store)
    commit, stored = None, None
    try:
        async with deadlines.within(arguments.within):
            commit = await deployment.client.change_set(*change_set).checkpoint()
            stored = await until_stored(checkpoints, change_set, commit)
    except TimeoutError:
        complain(
            "rebaser: the request still waits in the queue: `rebaser queue`"
            if commit is None
            else f"rebaser: commit {commit} is not in {checkpoints.uri(change_set)} yet: "
            f"{_STORE_HINT}. If it is, the daemon logs the reason (`checkpoint failed`); "
            "the commit log has all commits"
        )
    if arguments.json:
        uri = checkpoints.uri(change_set)
        say_json({"commit": commit, "stored": stored, "uri": uri})
    elif stored is not None:
        say(f"commit {stored} is stored at {checkpoints.uri(change_set)}")
    return Exit.FAILED if stored is None else Exit.OK


async def _request(
    deployment: "Deployment",
    change_set: "ChangeSet",
    arguments: argparse.Namespace,
    missing: str = "with `rebaser[server]`",
) -> int:
    """Request a checkpoint, without a look at the store; `missing` is the remedy for that."""
    from rebaser_core.jetstream import deadlines

    commit = None
    with suppress(TimeoutError):
        async with deadlines.within(arguments.within):
            commit = await deployment.client.change_set(*change_set).checkpoint()
    if arguments.json:
        say_json({"commit": commit, "stored": None, "uri": None})
    elif commit is None:
        complain("rebaser: the request still waits in the queue: `rebaser queue`")
    else:
        say(f"a Rebaser stores commit {commit}; {missing} this waits until it has")
    return Exit.FAILED if commit is None else Exit.OK


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
                f"waiting until {checkpoints.uri(change_set)} has commit {commit}; {_STORE_HINT}"
            )
        delay = next(delays)
        await asyncio.sleep(delay)
        waited += delay
