"""The output of `rebaser values`: the values of a change set."""

import json
from difflib import get_close_matches
from typing import Any, Final

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.cached_state import open_state_loader
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table
from rebaser_server.values.graph import Graph, Value

_NEAR: Final = 5
"""Similar names that an error offers, at most."""
_COMPARED: Final = 20_000
"""Names that are compared with the unknown one, at most; that takes a second."""


class NoSuchValue(RebaserError):
    """The change set has no value of that name or id."""


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
    """The value of that name or id.

    Raises:
        NoSuchValue: there is none.
    """
    value = graph.values.get(name) or graph.values.get(graph.names.get(name) or "")
    if value is None:
        raise NoSuchValue(
            f"there is no value {name!r}{similar_names(graph, name)}; "
            "`rebaser values tree WORKSPACE CHANGE_SET` shows all"
        )
    return value


def similar_names(graph: Graph, name: str) -> str:
    """The end of an error message: names similar to an unknown one, if there are any."""
    text = name.casefold()
    containing = [each for each in graph.names if text in each.casefold()]
    similar = containing[:_NEAR] or get_close_matches(name, [*graph.names][:_COMPARED], _NEAR)
    return f"; there is {', '.join(map(repr, similar))}" if similar else ""


def show_values(state: State, names: list[str], *, as_json: bool) -> None:
    """Print the values of these names or ids, or all of them, in their order."""
    graph = graph_of(state)
    for name in names:
        find_value(graph, name)
    chosen = [v for v in graph.values.values() if not names or {v.id, v.name} & {*names}]
    if as_json:
        rows = [plain(value, due=state.control.dvu_due) for value in chosen]
        say_json(rows)
        return
    _table(chosen, graph).show()
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


def _table(values: list[Value], graph: Graph) -> Table:
    table = Table("name or id", "value", "status", "computed by")
    for value in values:
        func = graph.funcs.get(value.func_id or "")
        status = value.status.value + (f": {value.message}" if value.message else "")
        by = "" if value.func_id is None else func.name if func else value.func_id
        table.add(value.name or value.id, json.dumps(value.value), status, by)
    return table
