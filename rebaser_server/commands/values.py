"""`rebaser values` and `why`: show values and the edits that made one, and set one.

Values are shown as a list, or as a tree by the parts of their names between slashes, each with its
inputs. `why` shows a value, the edits that made it, and what keeps it back.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any, Final

from rebaser_client.display import table_text
from rebaser_client.documents import parse_json
from rebaser_client.effects import natural
from rebaser_client.errors import InvalidDraft, NoSuchValue
from rebaser_client.plan import is_computed
from rebaser_client.reader import Provenance
from rebaser_core.errors import offer
from rebaser_core.ids import ChangeSet
from rebaser_core.queries import ValueSnapshot
from rebaser_core.table_values import PinnedTable
from rebaser_server.commands.support.addresses import (
    change_set_and_names,
    change_set_of,
    one_id,
    one_value,
)
from rebaser_server.commands.support.arguments import (
    STDIN,
    Exit,
    UnusableInput,
    read_text,
    with_input,
)
from rebaser_server.commands.support.deployment import Deployment, warn_if_paused, with_deployment
from rebaser_server.commands.support.progress import follow
from rebaser_server.commands.support.value_source import ReadValues, read_values, reason
from rebaser_server.commands.tables import newest_version
from rebaser_server.terminal.lines import complain, is_terminal, say, say_json
from rebaser_server.terminal.tables import Part, Table, Tree, show_cells


@with_deployment
async def get_values(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    registry = deployment.client.workspaces.registry
    if await registry.is_key(change_set):
        await _show_state(deployment, change_set, names, arguments)
        return Exit.OK
    is_tree = arguments.tree or arguments.depth is not None
    if is_tree and len(names) > 1:
        complain(f"rebaser: a tree has one top: {' or '.join(names)}?")
        return Exit.BAD_SETTINGS
    read = await read_values(deployment, change_set, arguments.at)
    if is_tree:
        depth, whole = arguments.depth, arguments.all
        _show_tree(read, "".join(names), depth=depth, whole=whole, as_json=arguments.json)
    else:
        _show_values(read, names, arguments)
    return Exit.OK


def _read_value(arguments: argparse.Namespace) -> Any:
    text = arguments.value if arguments.value != STDIN else read_text(Path(STDIN))
    if arguments.table:
        uri, _, version = text.rpartition("@")
        if not uri or "/" in version:
            return text  # the newest, for which the settings are needed
        try:
            return PinnedTable.at(uri, int(version) if version.isdecimal() else version).to_value()
        except ValueError as error:
            raise UnusableInput(str(error)) from error
    try:
        return text if arguments.text else parse_json(text)
    except InvalidDraft as error:
        taken = (
            ""
            if arguments.address
            else f"; {arguments.name!r} is taken for the NAME, as no address stands before it"
        )
        raise UnusableInput(
            f"{text[:80]!r} as it is sent: {error}; --text takes it as text{taken}"
        ) from error


@with_input(_read_value)
@with_deployment
async def set_value(deployment: Deployment, arguments: argparse.Namespace) -> int:
    content = arguments.input
    if arguments.table and isinstance(content, str):
        found = await asyncio.to_thread(newest_version, deployment.settings, content)
        content = found.table.to_value()
    change_set = await change_set_of(deployment, arguments)
    read = await read_values(deployment, change_set)
    value = _find_value(read, arguments.name)
    if value.func_id is not None:
        inputs = (read.values[each].name or each for each in value.input_ids())
        raise is_computed(arguments.name, inputs)
    updates = [{"setValue": {"valueId": value.id, "value": content}}]
    return await follow(
        deployment, change_set, updates, as_json=arguments.json, computed=arguments.wait
    )


@with_deployment
async def why(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    name = await one_value(deployment, change_set, names, arguments)
    if name is None:
        return Exit.BAD_SETTINGS
    provenance = await deployment.client.change_set(*change_set).why(name, at=arguments.at)
    if provenance.waits is not None and arguments.at is None:
        await warn_if_paused(deployment, change_set, waiting="the update")
    await _show_provenance(deployment, change_set, name, provenance, as_json=arguments.json)
    return Exit.OK


def _find_value(read: ReadValues, name: str) -> ValueSnapshot:
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


def _show_values(read: ReadValues, names: list[str], arguments: argparse.Namespace) -> None:
    """Print the values of these names or ids, or all of them, in their order.

    A terminal gets the first `_ROWS` unless all are wanted.
    """
    wanted = {_find_value(read, name).id for name in names}
    chosen = [each for each in read.values if each in wanted] if names else [*read.values]
    most = len(chosen) if arguments.all or not is_terminal() else _ROWS
    if arguments.json:
        say_json([_plain(read.values[each], due=read.is_due) for each in chosen])
        return
    headings = ("name or id", "value", "status", "computed by")
    rows = [_row(read.values[each], read) for each in chosen[:most]]
    show_cells(headings, rows, arguments, nothing="no values yet")
    if arguments.csv:
        return
    if len(chosen) > most:
        say(f"and {len(chosen) - most:,} more: --all lists all, --tree by name")
    _say_if_due(read)


async def _show_state(
    deployment: Deployment,
    change_set: ChangeSet,
    names: list[str],
    arguments: argparse.Namespace,
) -> None:
    """Print the state of a service's key, or these fields of it, and the key's timers.

    Raises:
        NoSuchValue: the state has no such field.
    """
    registry = deployment.client.workspaces.registry
    service = (await registry.workspace(change_set.workspace_id)).name
    key = (await registry.change_set(change_set)).name
    found = await deployment.client.service(service).key(key).state()
    if arguments.json:
        timers = [each.to_wire() for each in found.timers]
        say_json({"commit": found.commit, "state": found.value, "timers": timers})
        return
    fields = found.value if isinstance(found.value, dict) else {"state": found.value}
    for name in names:
        if name not in fields:
            raise NoSuchValue(f"the state has no field {name!r}{offer(name, fields)}")
    rows = [
        (name, json.dumps(value, ensure_ascii=False))
        for name, value in fields.items()
        if not names or name in names
    ]
    show_cells(("field", "value"), rows, arguments, nothing="no fields in the state yet")
    if arguments.csv or names:
        return
    for timer in found.timers:
        again = f", then {timer.every!r} in {timer.zone or 'UTC'}" if timer.every else ""
        say(f"timer {timer.name!r} calls {timer.handler} at {timer.next}{again}")
    if found.sending:
        say(f"{found.sending:,} calls to other keys are on their way")


def _say_if_due(read: ReadValues) -> None:
    if read.is_due:
        say("an update is due: computed values may still be those of earlier inputs")


def _plain(value: ValueSnapshot, *, due: bool) -> dict[str, Any]:
    """The value as plain data. `due`: an update is due, so that computed values may be old."""
    said = value.to_wire()
    keys = ("id", "name", "value", "status", "message", "funcId")
    inputs, is_due = said.get("inputs", {}), due and value.func_id is not None
    return {**{key: said.get(key) for key in keys}, "inputs": inputs, "due": is_due}


def _problem(value: ValueSnapshot, read: ReadValues) -> str:
    """Status and reason of a value without a result; empty for one with a result."""
    if not value.message:
        return ""
    blocker = read.values.get(value.message)
    why = reason(value.status, value.message, {blocker.id: blocker.name} if blocker else {})
    return why if why.startswith("blocked by") else f"{value.status}: {why}"


def _row(value: ValueSnapshot, read: ReadValues) -> tuple[str, ...]:
    by = "" if value.func_id is None else read.function_name(value.func_id)
    return value.name or value.id, _text(value), _problem(value, read) or value.status, by


def _text(value: ValueSnapshot) -> str:
    return table_text(value.value) or json.dumps(value.value, ensure_ascii=False)


_WIDEST: Final = 60
"""Maximum number of characters of a value that are printed for people."""
_MOST: Final = 8
"""Maximum number of inputs of a value that are printed for people."""
_BRANCHES: Final = 20
"""Maximum number of names below one that a terminal gets unasked."""


class _Node:
    def __init__(self) -> None:
        self.value: ValueSnapshot | None = None
        self.below: dict[str, _Node] = {}


def _show_tree(
    read: ReadValues, name: str, *, depth: int | None, whole: bool, as_json: bool
) -> None:
    """Print the value of that name and those below it; all values if the name is empty.

    A terminal gets the first `_BRANCHES` names below each unless the `whole` is wanted.

    Raises:
        NoSuchValue: no value has that name, or is below it.
    """
    root, count = _Node(), 0
    above = name if name.endswith("/") or not name else f"{name}/"
    for full, value_id in read.names.items():
        if not _is_below(full, name):
            continue
        parts = [] if full == name else full.removeprefix(above).split("/")
        node = root
        for part in parts[:depth]:
            node = node.below.setdefault(part, _Node())
        if depth is None or len(parts) <= depth:
            node.value = read.values[value_id]
        count += 1
    unnamed = len(read.values) - len(read.names)
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
        say(f"and {unnamed:,} without a name: `rebaser values` lists them")
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
    text = _problem(value, read) or _text(value)
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
        "value": None if node.value is None else _plain(node.value, due=due),
        "below": {part: _plain_node(below, due=due) for part, below in sorted(node.below.items())},
    }


async def _show_provenance(
    deployment: Deployment,
    change_set: ChangeSet,
    name: str,
    provenance: Provenance,
    *,
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
    table = Table("commit", "time", "author", "what", "path")
    for edit in provenance.edits:
        where = addresses.get(edit.change_set_id)
        commit = f"{edit.commit}" if where is None else f"{edit.commit} of {where}"
        facts: list[object] = [commit, edit.time, edit.author or ""]
        for _, _, _, what, path in Provenance.rows_of(edit):
            table.add(*facts, what, path)
            facts = [""] * len(facts)
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
    text = _text(value)
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
