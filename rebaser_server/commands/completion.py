"""`rebaser completion`: a script with which a shell completes commands, options and names.

The script calls `rebaser completion names` for names.
"""

import argparse
from contextlib import suppress
from typing import Final

from rebaser_core.jetstream import deadlines
from rebaser_server.commands.support.addresses import change_set_and_names
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.terminal.lines import say_result

_TIMEOUT: Final = 3.0
"""Seconds after which names are not offered: a person waits for them."""


@with_deployment
async def complete(deployment: Deployment, arguments: argparse.Namespace) -> None:
    *before, begun = arguments.word or [""]
    command, given = arguments.root.command_of(before)
    takes, names = command.positionals(), []
    with suppress(TimeoutError):
        async with deadlines.within(_TIMEOUT):
            if not given and takes & {"address", "workspace"}:
                found = await deployment.client.addresses.all()
                whole = "address" in takes
                names += [each.address if whole else each.workspace.name for each in found]
            if takes >= {"address", "name"}:
                names += await _values(deployment, given)
    fitting = sorted({name for name in names if name.startswith(begun)})
    say_result(fitting, *fitting, as_json=arguments.json)


async def _values(deployment: Deployment, given: list[str]) -> list[str]:
    """Names of the values of the change set that the words name, or of the one in use."""
    if not given and not deployment.settings.address:
        return []
    words = argparse.Namespace(address=given[0] if given else None, name=given[1:])
    change_set, _ = await change_set_and_names(deployment, words, closed=True)
    values = await deployment.client.change_set(*change_set).values()
    return [value.name for value in values.values() if value.name is not None]
