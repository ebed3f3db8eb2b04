"""The output of `rebaser values`: the values of a change set."""

import json
from typing import Any

from rebaser_client.errors import NoSuchValue
from rebaser_core.errors import offer
from rebaser_server.commands.support.addresses import one_id
from rebaser_server.commands.support.value_source import ReadValue, ReadValues
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table


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


def show_values(read: ReadValues, names: list[str], *, ids: bool, as_json: bool) -> None:
    """Print the values of these names or ids, or all of them, in their order."""
    wanted = {find_value(read, name).id for name in names}
    chosen = [value for value in read.values.values() if not names or value.id in wanted]
    if as_json:
        rows = [plain(value, due=read.is_due) for value in chosen]
        say_json(rows)
        return
    _table(chosen, read, ids=ids).show()
    say_if_due(read)


def say_if_due(read: ReadValues) -> None:
    if read.is_due:
        say("an update is due: computed values may still be those of earlier inputs")


def plain(value: ReadValue, *, due: bool) -> dict[str, Any]:
    """As plain data. `due`: an update of the change set is due, so computed values may be old."""
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


def _table(values: list[ReadValue], read: ReadValues, *, ids: bool) -> Table:
    table = Table("name or id", "value", "status", "computed by", *(["id"] if ids else []))
    for value in values:
        status = f"{value.status}: {value.message}" if value.message else str(value.status)
        by = "" if value.func_id is None else read.function_name(value.func_id)
        row = value.name or value.id, json.dumps(value.value), status, by
        table.add(*row, *([value.id] if ids else []))
    return table
