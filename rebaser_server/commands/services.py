"""`rebaser services`: list services; print a typed client of one, or a caller's permissions."""

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_command, new_name, with_deployment
from rebaser_server.terminal.lines import say

if TYPE_CHECKING:
    from rebaser_core.subjects import Subjects
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings


def add(commands: Any) -> None:
    """Declare the command."""
    services = add_command(
        commands,
        "services",
        _services,
        about="list services of handlers; with --json, their schemas",
    )
    printed = services.add_mutually_exclusive_group()
    printed.add_argument(
        "--stub",
        type=new_name,
        metavar="SERVICE",
        help="print a module of Python with a typed client of it (default: list services)",
    )
    printed.add_argument(
        "--permissions",
        nargs="+",
        type=new_name,
        metavar="SERVICE",
        help="print the permissions of a NATS user that may call these services and nothing else "
        "(default: list services)",
    )


async def _services(settings: "Settings", arguments: argparse.Namespace) -> int | None:
    from rebaser_core.subjects import Subjects

    if arguments.permissions is None:
        return await _list(settings, arguments)
    granted = permissions(Subjects(settings.nats.prefix), arguments.permissions)
    say(*f"permissions: {json.dumps(granted, indent=2)}".splitlines())
    return None


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.history import show_services
    from rebaser_server.commands.render.stubs import stub

    if arguments.stub is not None:
        say(*stub(await deployment.client.service(arguments.stub).describe()).splitlines())
        return
    show_services(await deployment.client.workspaces.services(), arguments)


def permissions(subjects: "Subjects", services: Iterable[str]) -> dict[str, list[str]]:
    """Return the subjects of a user in the account CLIENTS of `deploy/nats/accounts.conf`."""
    from rebaser_core.calls import service_id

    publish, bucket = [], subjects.change_sets_bucket
    for workspace in map(service_id, services):
        kinds = (("requests",), ("tasks", "process"), ("outcomes",), ("states",))
        publish += [subjects.join(f"rebaser.{kind}", workspace, "*", *end) for kind, *end in kinds]
        record = f"$KV.{bucket}.{workspace}.service.description"
        publish.append(f"js.rebaser.DIRECT.GET.KV_{bucket}.{record}")
    return {"subscribe": ["_INBOX.client.NAME.>"], "publish": publish}
