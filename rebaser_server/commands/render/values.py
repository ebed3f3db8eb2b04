"""The output of `rebaser values`: the values of a change set."""

import json
from typing import Any

from rebaser_client.errors import NoSuchValue
from rebaser_core.ids import ChangeSet
from rebaser_core.similar_names import offer
from rebaser_server.commands.support.addresses import one_id
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.cached_state import open_state_loader
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table
from rebaser_server.values.graph import Graph, Value


async def load_state(
    deployment: Deployment, change_set: ChangeSet, commit: int | None = None
) -> State:
    """The change set as of that commit, or as of the last one, from its log and the store.

    Raises:
        NotRetained: that commit is older than the history that is kept.
    """
    loader = open_state_loader(deployment.js, deployment.settings, change_set)
    return (await loader.load(commit)).state


def find_value(graph: Graph, name: str) -> Value:
    """The value of that name or id, or of that part of its id.

    Raises:
        NoSuchValue: there is none.
        AmbiguousAddress: several ids have that part.
    """
    value_id = graph.names.get(name) or (name if name in graph.values else "")
    value = graph.values.get(value_id or one_id(graph.values, name))
    if value is None:
        raise NoSuchValue(f"there is no value {name!r}{offer(name, graph.names)}")
    return value


def show_values(state: State, names: list[str], *, ids: bool, as_json: bool) -> None:
    """Print the values of these names or ids, or all of them, in their order."""
    graph = graph_of(state)
    wanted = {find_value(graph, name).id for name in names}
    chosen = [value for value in graph.values.values() if not names or value.id in wanted]
    if as_json:
        rows = [plain(value, due=state.control.dvu_due) for value in chosen]
        say_json(rows)
        return
    _table(chosen, graph, ids=ids).show()
    say_if_due(state)


def say_if_due(state: State) -> None:
    if state.control.dvu_due:
        say("an update is due: computed values may still be those of earlier inputs")


def plain(value: Value, *, due: bool) -> dict[str, Any]:
    """As plain data. `due`: an update of the change set is due, so computed values may be old."""
    return {
        "id": value.id,
        "name": value.name,
        "value": value.value,
        "status": value.status.value,
        "message": value.message,
        "funcId": value.func_id,
        "inputs": value.inputs,
        "due": due and value.func_id is not None,
    }


def _table(values: list[Value], graph: Graph, *, ids: bool) -> Table:
    table = Table("name or id", "value", "status", "computed by", *(["id"] if ids else []))
    for value in values:
        func = graph.funcs.get(value.func_id or "")
        status = value.status.value + (f": {value.message}" if value.message else "")
        by = "" if value.func_id is None else func.name if func else value.func_id
        row = value.name or value.id, json.dumps(value.value), status, by
        table.add(*row, *([value.id] if ids else []))
    return table
