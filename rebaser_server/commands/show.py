"""`rebaser values`: what the values of a change set are."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import connected
from rebaser_server.connection import connect_options, jetstream
from rebaser_server.graph import Graph, Value
from rebaser_server.questions.reading import archive_of
from rebaser_server.settings import Settings


async def show_values(
    settings: Settings,
    change_set: ChangeSet,
    names: list[str],
    *,
    at: int | None = None,
    as_json: bool,
) -> None:
    """Print the values as of commit `at`, or those of these names or ids, in their order.

    Raises:
        NotRetained: the past does not go back to `at`.
    """
    async with connected(connect_options(settings)) as nc:
        js = jetstream(nc, settings.nats)
        restored = await archive_of(js, settings, change_set).restored(at)
        graph = restored.state.graph
    chosen = [v for v in graph.values.values() if not names or {v.id, v.name} & {*names}]
    if as_json:
        sys.stdout.write(json.dumps([_plain(value) for value in chosen]) + "\n")
    else:
        Console().print(_table(chosen, graph))


def _plain(value: Value) -> dict[str, Any]:
    return {
        "id": value.id,
        "name": value.name,
        "value": value.value,
        "status": value.status.value,
        "message": value.message,
        "funcId": value.func_id,
        "inputs": value.inputs,
    }


def _table(values: list[Value], graph: Graph) -> Table:
    table = Table("name or id", "value", "status", "computed by", box=None)
    for value in values:
        func = graph.funcs.get(value.func_id or "")
        status = value.status.value + (f": {value.message}" if value.message else "")
        by = "" if value.func_id is None else func.name if func else value.func_id
        table.add_row(value.name or value.id, json.dumps(value.value), status, by)
    return table
