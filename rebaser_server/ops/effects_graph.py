"""The part of a branch's graph that differs from head, as the page draws it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rebaser_server.ops.difference_text import by_name, cut, result_text
from rebaser_server.queries.comparisons import Diff

MAX_NODES: Final = 200
"""Edits and effects that are drawn; at most half of them are edits."""
MAX_TEXT: Final = 40
"""Characters of a value."""

_Nodes = dict[str, dict[str, Any]]


def effects_graph(found: Diff) -> Any:
    """Edits and effects as nodes with `level` and `row`, their edges, and how many there are.

    Of more than `MAX_NODES`, those nearest to the edits. An edge is a pair of places in `nodes`:
    a value or a function, and what is computed with it.
    """
    nodes = _edits(found) | _effects(found)
    users = _users(found, nodes)
    drawn = _nearest(nodes, users)
    places = {node_id: place for place, node_id in enumerate(drawn)}
    edges = [
        (places[used], places[user]) for used in drawn for user in users[used] if user in places
    ]
    _place(found, drawn, edges)
    return {"nodes": list(drawn.values()), "edges": edges, "inAll": len(nodes)}


def _edits(found: Diff) -> _Nodes:
    """The edits, those that head changed, too, before the others; each by name."""
    results = {each.id: each for each in found.computed or ()}
    ordered = sorted(found.changes, key=lambda change: (not change.both, by_name(change)))
    return {
        change.id: {
            "id": change.id,
            "name": change.name,
            "what": change.what,
            "edited": True,
            "both": change.both,
            **_sides(results.get(change.id, change)),
        }
        for change in ordered
    }


def _effects(found: Diff) -> _Nodes:
    edited = {change.id for change in found.changes}
    ordered = sorted(found.computed or (), key=by_name)
    return {
        each.id: {
            "id": each.id,
            "name": each.name,
            "what": "value",
            "edited": False,
            "both": False,
            **_sides(each),
        }
        for each in ordered
        if each.id not in edited
    }


def _sides(one: Any) -> dict[str, str]:
    sides = (
        (side, getattr(one, side), getattr(one, f"{side}_status", None))
        for side in ("head", "branch")
    )
    return {side: cut(result_text(data, status), MAX_TEXT) for side, data, status in sides}


def _users(found: Diff, nodes: _Nodes) -> Mapping[str, list[str]]:
    """By values and functions: which nodes are computed with them."""
    users: dict[str, list[str]] = defaultdict(list)
    for node_id in nodes:
        value = found.graph.values.get(node_id)
        if value is not None and value.func_id is not None:
            for used in dict.fromkeys([value.func_id, *value.input_ids()]):
                if used in nodes:
                    users[used].append(node_id)
    return users


def _nearest(nodes: _Nodes, users: Mapping[str, list[str]]) -> _Nodes:
    """At most `MAX_NODES`: breadth first from the edits, then what they do not reach."""
    edits = [node_id for node_id, node in nodes.items() if node["edited"]][: MAX_NODES // 2]
    order = dict.fromkeys(edits)
    level: Iterable[str] = edits
    while level and len(order) < MAX_NODES:
        level = [user for used in level for user in users.get(used, ()) if user not in order]
        order.update(dict.fromkeys(level))
    order.update(dict.fromkeys(nodes))
    return {node_id: nodes[node_id] for node_id in list(order)[:MAX_NODES]}


def _place(found: Diff, drawn: _Nodes, edges: list[tuple[int, int]]) -> None:
    """Give each node a level behind those of its inputs, and a row near to theirs."""
    nodes, values = list(drawn.values()), found.graph.values
    inputs: dict[int, list[int]] = defaultdict(list)
    for used, user in edges:
        inputs[user].append(used)
    ranks = [value.rank if (value := values.get(node["id"])) else -1 for node in nodes]
    levels: dict[int, list[int]] = defaultdict(list)
    for place in sorted(range(len(nodes)), key=ranks.__getitem__):
        nodes[place]["level"] = 1 + max(
            (nodes[each]["level"] for each in inputs[place]), default=-1
        )
        levels[nodes[place]["level"]].append(place)
    for _, column in sorted(levels.items()):
        ordered = sorted(column)
        if inputs[ordered[0]]:
            ordered.sort(key=lambda p: sum(nodes[i]["row"] for i in inputs[p]) / len(inputs[p]))
        for row, place in enumerate(ordered):
            nodes[place]["row"] = row
