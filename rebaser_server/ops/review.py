"""The review of a branch: its edits and effects as lists, and as a drawing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rebaser_client.display import cut
from rebaser_client.drawing import placed
from rebaser_client.effects import (
    EffectFamily,
    by_name,
    by_pattern,
    families,
    move_text,
    particulars,
    patterns_of,
    percentage,
    result_text,
    side_text,
    total,
)
from rebaser_server.queries.comparisons import Diff

MAX_TEXT: Final = 200
"""Maximum number of characters of a value in a list."""

_FAMILIES: Final = 100
"""Maximum number of families that are listed."""


def plain_difference(found: Diff, rows: Mapping[str, str]) -> Any:
    """Edits and effects by name, as plain data; each value is JSON text, cut to `MAX_TEXT`.

    `rows` says by id which rows of a table differ. Each effect has the pattern of its family.
    """
    computed = sorted(found.computed or (), key=by_name)
    groups = by_pattern(computed)
    return {
        "digest": found.digest,
        "unknown": found.unknown(),
        "question": found.question(),
        "particulars": particulars(
            sorted(found.changes, key=by_name), computed, found.unknown(), rows
        ),
        "families": {
            "rows": [_family(each, rows) for each in groups[:_FAMILIES]],
            "of": len(groups),
        },
        "changes": [
            {
                "id": change.id,
                "name": change.name,
                "what": change.what,
                "head": cut(side_text(change.head), MAX_TEXT),
                "branch": cut(side_text(change.branch), MAX_TEXT),
                "base": cut(side_text(change.base), MAX_TEXT),
                "both": change.both,
                "rows": rows.get(change.id),
            }
            for change in sorted(found.changes, key=by_name)
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
            for each, family in zip(computed, patterns_of(computed), strict=True)
        ],
    }


def _family(family: EffectFamily, rows: Mapping[str, str]) -> dict[str, Any]:
    return {
        "pattern": family.pattern,
        "title": family.title,
        "sides": family.sides(),
        "size": family.size,
        "failed": family.failed,
        "tables": family.tables,
        "change": family.change,
        "largest": [
            {"id": each.id, "name": each.name, "text": move_text(each, rows)}
            for each in family.largest
        ],
        "rows": rows.get(family.largest[0].id) if family.size == 1 else None,
        "moves": None if family.moves is None else asdict(family.moves),
    }


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
    inputs: dict[int, set[int]] = {place: set() for place in places.values()}
    for used, user in edges:
        inputs[user].add(used)
    listed = list(drawn.values())
    for place, (level, row) in placed(inputs).items():
        listed[place] |= {"level": level, "row": row}
    left = len(single) - sum(node.get("count", 1) for node in listed)
    return {"nodes": listed, "edges": edges, "inAll": len(single), "left": left}


def _edits(found: Diff) -> _Nodes:
    """The edits, each by name; first those that head changed, too."""
    results = {each.id: each for each in found.computed or ()}
    ordered = sorted(found.changes, key=lambda change: (not change.both, by_name(change)))
    return {
        change.id: _node(results.get(change.id, change), change.what, edited=True, both=change.both)
        for change in ordered
    }


def _effects(found: Diff) -> _Nodes:
    edited = {change.id for change in found.changes}
    ordered = sorted(found.computed or (), key=by_name)
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
        head, branch = (
            total(getattr(results[each], side) for each in those) for side in ("head", "branch")
        )
        nodes[key] = {
            "id": key,
            "name": key.partition(" ")[2],
            "what": "family",
            "edited": single[those[0]]["edited"],
            "both": False,
            "count": len(those),
            "head": head,
            "branch": branch,
            "change": percentage(head, branch),
        }
    return nodes, node_of


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
