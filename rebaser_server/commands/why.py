"""`rebaser why`: the edits that made a value what it is, and what keeps it back."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    add_address_and_names,
    add_command,
    add_ids,
    with_deployment,
)
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the command."""
    why = add_command(
        commands, "why", _why, about="show which edits made a value what it is, or keep it back"
    )
    add_address_and_names(why, about="name or id of the value (default: none; one is needed)")
    why.add_argument(
        "--at",
        type=int,
        metavar="COMMIT",
        help="explain the value as of that commit (default: latest)",
    )
    add_ids(why)


@with_deployment
async def _why(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.provenance import show_provenance
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids
    from rebaser_server.commands.support.pauses import warn_if_paused

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    if len(names) != 1:
        complain(f"rebaser: name one value: rebaser why ADDRESS {' or '.join(names) or 'NAME'}")
        return Exit.BAD_SETTINGS
    [name] = await whole_ids(deployment, change_set, names)
    provenance = await deployment.client.reader(*change_set).why(name, at=arguments.at)
    if provenance.waits is not None and arguments.at is None:
        await warn_if_paused(deployment, change_set, "the update")
    await show_provenance(
        deployment, change_set, name, provenance, ids=arguments.ids, as_json=arguments.json
    )
    return Exit.OK
