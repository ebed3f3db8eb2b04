"""A branch's edits as JSON data, which its checkpoints hold beside its graph."""

from typing import Any, Final

from pydantic import TypeAdapter

from rebaser_core.updates import PutValue, UpdateList
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase.definitions import same_value, value_definition
from rebaser_server.values.rebase.edits import Edit, Edits, FuncEdit

_LIST: Final = TypeAdapter(UpdateList)


def edits_to_json(edits: Edits, graph: Graph) -> dict[str, Any]:
    """The edits of a branch whose graph this is; without what the graph holds as well."""
    return {
        "values": [_edit_to_json(graph, *item) for item in edits.values.items()],
        "funcs": [[e.ours.to_wire(), e.base and e.base.to_wire()] for e in edits.funcs.values()],
        "under": [
            [value_id, put and put.to_wire()]
            for value_id, put in sorted(edits.theirs.items())
            if value_id not in edits.values or put is not edits.values[value_id].base
        ],
        "underFuncs": [[i, put and put.to_wire()] for i, put in edits.their_funcs.items()],
    }


def edits_from_json(stored: dict[str, Any], graph: Graph) -> Edits:
    """The edits that `edits_to_json` made beside this graph."""
    edits = Edits()
    for value_id, item in stored["values"]:
        ours: Any = (
            _update_from_json(item["want"]) if "want" in item else value_definition(graph, value_id)
        )
        base = _update_from_json(item.get("base"))
        edits.restore(value_id, Edit(ours, base, item.get("cut", False)))
    for ours, base in stored["funcs"]:
        func = FuncEdit(_update_from_json(ours), _update_from_json(base))
        edits.funcs[func.ours.func_id] = func
    edits.theirs |= {value_id: _update_from_json(put) for value_id, put in stored["under"]}
    edits.their_funcs = {i: _update_from_json(put) for i, put in stored["underFuncs"]}
    return edits


def _edit_to_json(graph: Graph, value_id: str, edit: Edit) -> list[Any]:
    """Only what the graph does not hold: nothing for a value that is as the branch defined it."""
    stored: dict[str, Any] = {}
    if not isinstance(edit.ours, PutValue) or not same_value(
        edit.ours, value_definition(graph, value_id)
    ):
        stored["want"] = edit.ours.to_wire()
    if edit.base is not None:
        stored["base"] = edit.base.to_wire()
    if edit.was_removed:
        stored["cut"] = True
    return [value_id, stored]


def _update_from_json(stored: dict[str, Any] | None) -> Any:
    return None if stored is None else _LIST.validate_python([stored])[0]
