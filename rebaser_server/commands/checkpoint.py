"""`rebaser checkpoint`: store the state of a change set now, and wait until it is stored."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Final

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_server.commands.support.addresses import change_set_of
from rebaser_server.commands.support.deployment import Deployment, warn_if_paused, with_deployment
from rebaser_server.commands.support.value_source import reads_store
from rebaser_server.errors import StoreNotKnown
from rebaser_server.terminal.lines import complain, say_result

if TYPE_CHECKING:
    from rebaser_server.store.checkpoints import Checkpoints

_FIRST_DELAY: Final = 0.05  # seconds between two reads of the store, doubled up to
_LAST_DELAY: Final = 2.0
_EXPLAIN_AFTER: Final = 5.0
"""Seconds until the command explains its wait: the store that it reads may be another one."""


_ROOT: Final = "REBASER_STORE__ROOT"
_STORE_HINT: Final = f"{_ROOT} must be what the daemons have"


@with_deployment
async def checkpoint(deployment: Deployment, arguments: argparse.Namespace) -> None:
    change_set = await change_set_of(deployment, arguments)
    await warn_if_paused(deployment, change_set)
    checkpoints, missing = None, "with `rebaser[server]`"
    if reads_store():
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
    text = f"commit {stored} is stored at {uri}"
    if stored is None:
        text = f"a Rebaser stores commit {commit}; {missing} this waits until it has"
    say_result({"commit": commit, "stored": stored, "uri": uri}, text, as_json=arguments.json)


async def until_stored(
    checkpoints: "Checkpoints",
    change_set: ChangeSet,
    commit: int,
    explain_after: float = _EXPLAIN_AFTER,
) -> int:
    """The commit of the first checkpoint that contains `commit`, once the store has one.

    A wait of more than `explain_after` seconds is explained on stderr, once.
    """
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
