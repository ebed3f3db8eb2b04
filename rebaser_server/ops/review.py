"""The review of a branch: its edits and effects as lists, as a drawing, and for a spreadsheet."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rebaser_client.display import table_text
from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_server.ops.families import families, natural
from rebaser_server.queries.comparisons import Diff

MAX_TEXT: Final = 200
"""Maximum number of characters of a value in a list."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that spreadsheets compute."""


def plain_difference(found: Diff, rows: Mapping[str, str]) -> Any:
    """Edits and effects by name, as plain data; each value is JSON text, cut to `MAX_TEXT`.

    `rows` says by id which rows of a table differ. Each effect has the pattern of its family.
    """
    computed = sorted(found.computed or (), key=_by_name)
    patterns = families([each.name or "" for each in computed])
    return {
        "digest": found.digest,
        "unknown": found.unknown(),
        "changes": [
            {
                "id": change.id,
                "name": change.name,
                "what": change.what,
                "head": side_text(change.head),
                "branch": side_text(change.branch),
                "base": side_text(change.base),
                "both": change.both,
                "rows": rows.get(change.id),
            }
            for change in sorted(found.changes, key=_by_name)
        ],
        "computed": [
            {
                "id": each.id,
                "name": each.name,
                "head": cut(result_text(each.head, each.head_status), MAX_TEXT),
                "branch": cut(result_text(each.branch, each.branch_status), MAX_TEXT),
                "rows": rows.get(each.id),
                "family": family,
            }
            for each, family in zip(computed, patterns, strict=True)
        ],
    }


def _by_name(one: ChangedDefinition | ComputedDifference) -> list[str | int]:
    return natural(one.name or one.id)


def effects_csv(found: Diff) -> str:
    """Values as JSON; a name that a spreadsheet would take for a formula has an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("value", "id", "head", "branch"))
    for each in sorted(found.computed or (), key=_by_name):
        name = each.name or ""
        safe = f"'{name}" if name.startswith(_FORMULA) else name
        head = result_text(each.head, each.head_status) or "null"
        branch = result_text(each.branch, each.branch_status) or "null"
        writer.writerow((safe, each.id, head, branch))
    return text.getvalue()


def _side_text(data: Any) -> str:
    """A side of a difference as JSON; empty if there is none."""
    return "" if data is None else table_text(data) or json.dumps(data, ensure_ascii=False)


def result_text(data: Any, status: str | None) -> str:
    """A side of a computed difference: its status if it has no value, else as `_side_text`."""
    if status in ("failed", "blocked"):
        return status
    return "null" if data is None and status else _side_text(data)


def side_text(data: Any) -> str:
    """A side of a difference for a list: JSON, cut to `MAX_TEXT`; empty if there is none."""
    return cut(_side_text(data), MAX_TEXT)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


MAX_NODES: Final = 200
"""Maximum number of edits and effects that are drawn; at most half of them are edits."""
FAMILY: Final = 4
"""Number of edits, or of effects, of one pattern from which on they are drawn as one node."""
_MAX_LABEL: Final = 40
"""Maximum number of characters of a value."""

_Nodes = dict[str, dict[str, Any]]


def effects_graph(found: Diff) -> Any:
    """Edits and effects as nodes with `level` and `row`, their edges, and their number.

    Those of one pattern are one node with their `count` and, of numbers, their sums. If there are
    more than `MAX_NODES` nodes, those nearest to the edits are drawn. An edge is a pair of places
    in `nodes`: a value or a function, and a value that is computed with it.
    """
    single = _edits(found) | _effects(found)
    nodes, node_of = _with_families(single, found)
    users = _users(found, node_of)
    drawn = _nearest(nodes, users)
    places = {node_id: place for place, node_id in enumerate(drawn)}
    edges = [
        (places[used], places[user])
        for used in drawn
        for user in users.get(used, ())
        if user in places
    ]
    _place(list(drawn.values()), edges)
    left = len(single) - sum(node.get("count", 1) for node in drawn.values())
    return {"nodes": list(drawn.values()), "edges": edges, "inAll": len(single), "left": left}


def _edits(found: Diff) -> _Nodes:
    """The edits, each by name; first those that head changed, too."""
    results = {each.id: each for each in found.computed or ()}
    ordered = sorted(found.changes, key=lambda change: (not change.both, _by_name(change)))
    return {
        change.id: _node(results.get(change.id, change), change.what, edited=True, both=change.both)
        for change in ordered
    }


def _effects(found: Diff) -> _Nodes:
    edited = {change.id for change in found.changes}
    ordered = sorted(found.computed or (), key=_by_name)
    return {
        each.id: _node(each, "value", edited=False, both=False)
        for each in ordered
        if each.id not in edited
    }


def _node(one: Any, what: str, *, edited: bool, both: bool) -> dict[str, Any]:
    sides = (
        (side, getattr(one, side), getattr(one, f"{side}_status", None))
        for side in ("head", "branch")
    )
    texts = {side: cut(result_text(data, status), _MAX_LABEL) for side, data, status in sides}
    node = {"id": one.id, "name": one.name, "what": what, "edited": edited, "both": both}
    return node | texts


def _with_families(single: _Nodes, found: Diff) -> tuple[_Nodes, dict[str, str]]:
    """Nodes to draw, and the node of each edit and effect; what is in conflict stays alone."""
    results = {each.id: each for each in [*found.changes, *(found.computed or ())]}
    patterns = families([node["name"] or "" for node in single.values()])
    members: dict[str, list[str]] = defaultdict(list)
    for (node_id, node), pattern in zip(single.items(), patterns, strict=True):
        is_alone = node["both"] or node["what"] == "function" or not pattern
        kind = "edits" if node["edited"] else "effects"
        members[node_id if is_alone else f"{kind} {pattern}"].append(node_id)
    nodes: _Nodes = {}
    node_of: dict[str, str] = {}
    for key, those in members.items():
        if len(those) < FAMILY:
            nodes |= {each: single[each] for each in those}
            node_of |= dict(zip(those, those, strict=True))
            continue
        node_of |= dict.fromkeys(those, key)
        sums = (_sum([getattr(results[each], side) for each in those]) for side in _SIDES)
        nodes[key] = {
            "id": key,
            "name": key.partition(" ")[2],
            "what": "family",
            "edited": single[those[0]]["edited"],
            "both": False,
            "count": len(those),
            **dict(zip(_SIDES, sums, strict=True)),
        }
    return nodes, node_of


_SIDES: Final = ("head", "branch")


def _sum(sides: Iterable[Any]) -> float | None:
    """The sum; None unless all are finite numbers."""
    numbers = list(sides)
    if any(not isinstance(each, int | float) or isinstance(each, bool) for each in numbers):
        return None
    try:
        total = math.fsum(numbers)
    except (OverflowError, ValueError):
        return None
    return total if math.isfinite(total) else None


def _users(found: Diff, node_of: Mapping[str, str]) -> Mapping[str, dict[str, None]]:
    """Nodes → those that are computed with them."""
    users: dict[str, dict[str, None]] = defaultdict(dict)
    for member, node in node_of.items():
        value = found.graph.values.get(member)
        if value is not None and value.func_id is not None:
            for used in (value.func_id, *value.input_ids()):
                if node_of.get(used, node) != node:
                    users[node_of[used]][node] = None
    return users


def _nearest(nodes: _Nodes, users: Mapping[str, Iterable[str]]) -> _Nodes:
    """The nodes to draw, `MAX_NODES` at most: breadth first from the edits, then the others."""
    edits = [node_id for node_id, node in nodes.items() if node["edited"]][: MAX_NODES // 2]
    order = dict.fromkeys(edits)
    level: Iterable[str] = edits
    while level and len(order) < MAX_NODES:
        level = [user for used in level for user in users.get(used, ()) if user not in order]
        order.update(dict.fromkeys(level))
    order.update(dict.fromkeys(nodes))
    return {node_id: nodes[node_id] for node_id in list(order)[:MAX_NODES]}


def _place(nodes: list[dict[str, Any]], edges: list[tuple[int, int]]) -> None:
    """Give each node a level behind those of its inputs, and a row near to theirs.

    Two families may be computed from each other; one of them is placed first then.
    """
    inputs: dict[int, set[int]] = defaultdict(set)
    for used, user in edges:
        inputs[user].add(used)
    waiting = dict.fromkeys(range(len(nodes)))
    levels: dict[int, list[int]] = defaultdict(list)
    while waiting:
        ready = [place for place in waiting if inputs[place].isdisjoint(waiting)]
        for place in ready or [next(iter(waiting))]:
            level = 1 + max(
                (nodes[each]["level"] for each in inputs[place] if each not in waiting), default=-1
            )
            nodes[place]["level"] = level
            levels[level].append(place)
            del waiting[place]
    for level, column in sorted(levels.items()):
        ordered = sorted(column)
        before = {p: [i for i in inputs[p] if nodes[i]["level"] < level] for p in ordered}
        if level:
            ordered.sort(key=lambda p: sum(nodes[i]["row"] for i in before[p]) / len(before[p]))
        for row, place in enumerate(ordered):
            nodes[place]["row"] = row
