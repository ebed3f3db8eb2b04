"""`rebaser services`: list services; print a typed client of one, or a caller's permissions."""

import argparse
import json
from collections.abc import Iterable

from rebaser_core.calls import service_id
from rebaser_core.subjects import Subjects
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.commands.support.stubs import stub
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say
from rebaser_server.terminal.tables import show_cells


async def show_services(settings: Settings, arguments: argparse.Namespace) -> int | None:
    if arguments.permissions is None:
        return await _list(settings, arguments)
    granted = permissions(Subjects(settings.nats.prefix), arguments.permissions)
    say(*f"permissions: {json.dumps(granted, indent=2)}".splitlines())
    return None


@with_deployment
async def _list(deployment: Deployment, arguments: argparse.Namespace) -> None:
    if arguments.stub is not None:
        say(*stub(await deployment.client.service(arguments.stub).describe()).splitlines())
        return
    records = await deployment.client.workspaces.services()
    rows = [(each.name, each.version, ", ".join(sorted(each.handlers))) for each in records]
    plain = [record.to_wire() for record in records]
    show_cells(("service", "version", "handlers"), rows, arguments, plain=plain)


def permissions(subjects: Subjects, services: Iterable[str]) -> dict[str, list[str]]:
    """Return the subjects of a user in the account CLIENTS of `deploy/nats/accounts.conf`."""
    publish, bucket = [], subjects.change_sets_bucket
    for workspace in map(service_id, services):
        kinds = (("requests",), ("tasks", "process"), ("outcomes",), ("states",))
        publish += [subjects.join(f"rebaser.{kind}", workspace, "*", *end) for kind, *end in kinds]
        record = f"$KV.{bucket}.{workspace}.service.description"
        publish.append(f"js.rebaser.DIRECT.GET.KV_{bucket}.{record}")
    return {"subscribe": ["_INBOX.client.NAME.>"], "publish": publish}
