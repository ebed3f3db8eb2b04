"""The output of `rebaser values` and `rebaser why`.

Values are shown as a list, or as a tree by the parts of their names between slashes, each with its
inputs. `why` shows a value, the edits that made it, and what keeps it back.
"""

import json
from typing import Any, Final

from rebaser_client.display import table_text, value_text
from rebaser_client.effects import natural
from rebaser_client.errors import NoSuchValue
from rebaser_client.reader import Provenance
from rebaser_core.errors import offer
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.addresses import one_id
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.value_source import ReadValue, ReadValues, reason
from rebaser_server.terminal.lines import is_terminal, say, say_json
from rebaser_server.terminal.tables import Part, Table, Tree


def find_value(read: ReadValues, name: str) -> ReadValue:
    """The value of that name or id, or of that part of its id.

    Raises:
        NoSuchValue: there is none.
        AmbiguousAddress: several ids have that part.
    """
    value_id = read.names.get(name) or (name if name in read.values else "")
    value = read.values.get(value_id or one_id(read.values, name))
    if value is None:
        raise NoSuchValue(f"there is no value {name!r}{offer(name, read.names)}")
    return value


_ROWS: Final = 40
"""Maximum number of values of a list that a terminal gets unasked."""


def show_values(
    read: ReadValues, names: list[str], *, ids: bool, whole: bool, as_json: bool
) -> None:
    """Print the values of these names or ids, or all of them, in their order.

    A terminal gets the first `_ROWS` unless the `whole` is wanted.
    """
    wanted = {find_value(read, name).id for name in names}
    chosen = [value for value in read.values.values() if not names or value.id in wanted]
    if as_json:
        rows = [plain(value, due=read.is_due) for value in chosen]
        say_json(rows)
        return
    most = len(chosen) if whole or not is_terminal() else _ROWS
    _table(chosen[:most], read, ids=ids).show()
    if len(chosen) > most:
        say(f"and {len(chosen) - most:,} more: --all lists all, `rebaser values tree` by name")
    _say_if_due(read)


def _say_if_due(read: ReadValues) -> None:
    if read.is_due:
        say("an update is due: computed values may still be those of earlier inputs")


def plain(value: ReadValue, *, due: bool) -> dict[str, Any]:
    """The value as plain data. `due`: an update is due, so that computed values may be old."""
    return {
        "id": value.id,
        "name": value.name,
        "value": value.value,
        "status": str(value.status),
        "message": value.message,
        "funcId": value.func_id,
        "inputs": value.inputs,
        "due": due and value.func_id is not None,
    }


def _problem(value: ReadValue, read: ReadValues) -> str:
    """Status and reason of a value without a result; empty for one with a result."""
    if not value.message:
        return ""
    blocker = read.values.get(value.message)
    why = reason(str(value.status), value.message, {blocker.id: blocker.name} if blocker else {})
    return why if why.startswith("blocked by") else f"{value.status}: {why}"


def _table(values: list[ReadValue], read: ReadValues, *, ids: bool) -> Table:
    table = Table("name or id", "value", "status", "computed by", *(["id"] if ids else []))
    for value in values:
        status = _problem(value, read) or str(value.status)
        by = "" if value.func_id is None else read.function_name(value.func_id)
        text = table_text(value.value) or json.dumps(value.value, ensure_ascii=False)
        row = value.name or value.id, text, status, by
        table.add(*row, *([value.id] if ids else []))
    return table


_WIDEST: Final = 60
"""Maximum number of characters of a value that are printed for people."""
_MOST: Final = 8
"""Maximum number of inputs of a value that are printed for people."""
_BRANCHES: Final = 20
"""Maximum number of names below one that a terminal gets unasked."""


class _Node:
    def __init__(self) -> None:
        self.value: ReadValue | None = None
        self.below: dict[str, _Node] = {}


def show_tree(
    read: ReadValues, name: str, *, depth: int | None, whole: bool, as_json: bool
) -> None:
    """Print the value of that name and those below it; all values if the name is empty.

    A terminal gets the first `_BRANCHES` names below each unless the `whole` is wanted.

    Raises:
        NoSuchValue: no value has that name, or is below it.
    """
    root, count = _Node(), 0
    for value in read.values.values():
        if value.name is None or not _is_below(value.name, name):
            continue
        parts = [part for part in value.name.removeprefix(name).split("/") if part]
        node = root
        for part in parts[:depth]:
            node = node.below.setdefault(part, _Node())
        if depth is None or len(parts) <= depth:
            node.value = value
        count += 1
    unnamed = sum(1 for value in read.values.values() if value.name is None)
    if name and not count:
        raise NoSuchValue(
            f"no value is called {name!r}, nor is one below it{offer(name, read.names)}"
        )
    if as_json:
        say_json(_plain_node(root, due=read.is_due))
        return
    tree = Tree(*_label(name or "/", root, read))
    _grow(tree, root, read, None if whole or not is_terminal() else _BRANCHES)
    tree.show()
    if not name and unnamed:
        say(f"and {unnamed:,} without a name: `rebaser values get` lists them")
    _say_if_due(read)


def _is_below(name: str, top: str) -> bool:
    return not top or name == top or name.startswith(top.removesuffix("/") + "/")


def _grow(tree: Tree, node: _Node, read: ReadValues, most: int | None) -> None:
    ordered = sorted(node.below.items(), key=lambda pair: natural(pair[0]))
    for part, below in ordered[:most]:
        _grow(tree.add(*_label(part, below, read)), below, read, most)
    if most is not None and len(ordered) > most:
        tree.add((f"and {len(ordered) - most:,} more: --all lists all", "dim"))


def _label(part: str, node: _Node, read: ReadValues) -> list[Part]:
    value = node.value
    if value is None:
        return [(part, "bold")]
    text = _problem(value, read) or value_text(value.text)
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."
    label: list[Part] = [(part, "bold"), f" = {text}"]
    inputs = [_name_of(read, each) for each in dict.fromkeys(value.input_ids())]
    if inputs:
        more = f" and {len(inputs) - _MOST} more" if len(inputs) > _MOST else ""
        label += ["  ", (f"from {', '.join(inputs[:_MOST])}{more}", "dim")]
    return label


def _name_of(read: ReadValues, value_id: str) -> str:
    value = read.values.get(value_id)
    return value_id if value is None else value.name or value_id


def _plain_node(node: _Node, *, due: bool) -> dict[str, Any]:
    return {
        "value": None if node.value is None else plain(node.value, due=due),
        "below": {part: _plain_node(below, due=due) for part, below in sorted(node.below.items())},
    }


async def show_provenance(
    deployment: Deployment,
    change_set: ChangeSet,
    name: str,
    provenance: Provenance,
    *,
    ids: bool,
    as_json: bool,
) -> None:
    """Print the provenance. Edits of other change sets, which a branch has, get their addresses."""
    if as_json:
        say_json(_plain_provenance(name, provenance))
        return
    say(_headline(name, provenance))
    addresses = {
        each: await deployment.client.addresses.address_of(ChangeSet(change_set.workspace_id, each))
        for each in dict.fromkeys(edit.change_set_id for edit in provenance.edits)
        if each != change_set.change_set_id
    }
    more = ["request", "trace"] if ids else []
    table = Table("commit", "time", "author", "what", "path", *more)
    for edit in provenance.edits:
        where = addresses.get(edit.change_set_id)
        commit = f"{edit.commit}" if where is None else f"{edit.commit} of {where}"
        its_ids = [str(edit.request), edit.trace or ""] if ids else []
        facts: list[object] = [commit, edit.time, edit.author or ""]
        for _, _, _, what, path in Provenance.rows_of(edit):
            table.add(*facts, what, path, *its_ids)
            facts, its_ids = [""] * len(facts), [""] * len(its_ids)
    if provenance.edits:
        table.show()
    say(*provenance.notes())


def _headline(name: str, provenance: Provenance) -> str:
    value = provenance.value
    if value is None:
        return f"{name} does not exist as of commit {provenance.commit}: it was removed"
    shown = value.name or value.id
    if value.status in ("failed", "blocked"):
        return f"{shown} is {value.status} as of commit {provenance.commit}"
    text = table_text(value.value) or json.dumps(value.value, ensure_ascii=False)
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."
    pending = ", not computed yet," if value.status == "pending" else ""
    return f"{shown} = {text}{pending} as of commit {provenance.commit}"


def _plain_provenance(name: str, provenance: Provenance) -> dict[str, Any]:
    value, waits = provenance.value, provenance.waits
    return {
        "name": name,
        "commit": provenance.commit,
        "value": None if value is None else value.to_wire(),
        "edits": [edit.to_wire() for edit in provenance.edits],
        "omitted": provenance.omitted,
        "older": provenance.older,
        "keptFrom": provenance.kept_from,
        "isWhole": provenance.is_whole,
        "failed": [each.to_wire() for each in provenance.failed],
        "waits": None if waits is None else waits.to_wire(),
    }
