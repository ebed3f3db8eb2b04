"""`rebaser tables`: show the values that are tables, what one has, its rows, and which differ.

And follow tables that lie outside of the store: `watch` proposes their newest versions.
"""

import argparse
import asyncio
import json
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blake3 import blake3

from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.display import package, table_text
from rebaser_client.errors import ReadRefused
from rebaser_client.plain_values import plain
from rebaser_client.reader import BranchDifference, ValueSet
from rebaser_client.table_reads import TableDifference, TableValue, differing_rows
from rebaser_core.errors import RebaserError, many
from rebaser_core.ids import RequestId
from rebaser_core.queries import ValueSnapshot
from rebaser_core.table_values import PinnedTable, is_table, source_path
from rebaser_core.updates import Inputs
from rebaser_server.commands.declarations import FIRST_ROWS
from rebaser_server.commands.support.addresses import change_set_and_names, one_value, whole_ids
from rebaser_server.commands.support.arguments import Exit, UnusableInput
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.commands.support.value_source import function_names
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain, say, say_json, say_result
from rebaser_server.terminal.tables import Table, show_cells

if TYPE_CHECKING:
    from rebaser_server.store.sources import NewestVersion

_ID_TIME, _ID_CHANCE = 6, 10
"""Bytes of a request's id: of its time in milliseconds, and the others."""


async def pin(settings: Settings, arguments: argparse.Namespace) -> int:
    found = await asyncio.to_thread(newest_version, settings, arguments.uri)
    pinned = {"uri": found.table.path, "version": found.table.version}
    text = f"{{$table: {{uri: {json.dumps(found.table.path)}, version: {found.table.version}}}}}"
    say_result(pinned, text, as_json=arguments.json)
    return Exit.OK


def newest_version(settings: Settings, uri: str) -> "NewestVersion":
    """Return the newest version of the table at that URI, which is read here. Blocks.

    Raises `UnusableInput` for no URI of a table, and as `Sources.newest`.
    """
    from rebaser_server.store.sources import Sources

    try:
        path = source_path(uri)
    except ValueError as error:
        raise UnusableInput(str(error)) from error
    return Sources(settings.store.sources).newest(path)


@with_deployment
async def watch(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments)
    handle = deployment.client.change_set(*change_set)
    names = await whole_ids(deployment, change_set, names)
    watched = _Watch(deployment.settings, handle, names, as_json=arguments.json)
    while True:
        code = await watched.look()
        if arguments.once or code == Exit.BAD_SETTINGS:
            return code
        await asyncio.sleep(max(0.1, arguments.every))


class _Watch:
    """Looks for newer versions of the tables of one change set; what was said is not repeated."""

    def __init__(
        self, settings: Settings, handle: ChangeSetHandle, names: list[str], *, as_json: bool
    ) -> None:
        self._settings = settings
        self._handle = handle
        self._names = names
        self._as_json = as_json
        self._proposed: set[RequestId] = set()
        self._complaints: set[str] = set()

    async def look(self) -> int:
        """Propose each version that is newer than its value; return how it went."""
        code = Exit.OK
        try:
            read = await self._handle.values(*self._names)
        except RebaserError as error:
            return self._failed(str(error))
        for value in read.values():
            table, name = PinnedTable.of(value.value), value.name or value.id
            if table is None:
                if self._names:
                    complain(f"rebaser: {name!r} is no table with a URI: there is nothing to watch")
                    return Exit.BAD_SETTINGS
                continue
            try:
                found = await asyncio.to_thread(newest_version, self._settings, table.path)
                if found.table != table:
                    await self._propose(value, table.key, found, read.commit)
            except RebaserError as error:
                code = self._failed(f"{name}: {error}")
        return code

    def _failed(self, message: str) -> Exit:
        if message not in self._complaints:
            self._complaints.add(message)
            complain(f"rebaser: {message}")
        return Exit.FAILED

    async def _propose(
        self, value: ValueSnapshot, before: str, found: "NewestVersion", at: int
    ) -> None:
        """Send the request, which has the id that every watcher gives it: it takes effect once.

        So a version that was taken back is not proposed again. `value` is as of the commit `at`.
        """
        change_set = await self._handle.ids()
        text = f"{change_set} {value.id} {before} {found.table.key}"
        chance = blake3(text.encode()).digest(length=_ID_CHANCE)
        request = RequestId.from_bytes(round(found.written * 1000).to_bytes(_ID_TIME) + chance)
        if request in self._proposed:
            return
        update = {"setValue": {"valueId": value.id, "value": found.table.to_value()}}
        outcome = await self._handle.enqueue([update], request_id=request, wait="committed")
        self._proposed.add(request)
        name, table = value.name or value.id, found.table
        proposed = {"uri": table.path, "version": table.version, "commit": outcome.commit}
        was = "," if (outcome.commit or 0) > at else " was proposed before, by"
        say_result(
            {"id": value.id, "name": value.name, **proposed},
            f"{name}: version {table.version} of {table.path}{was} commit {outcome.commit}",
            as_json=self._as_json,
        )


@with_deployment
async def describe(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    handle = deployment.client.change_set(*change_set)
    if not names and not arguments.lineage and arguments.rows is None:
        await _show_tables(handle, arguments)
        return Exit.OK
    name = await one_value(deployment, change_set, names, arguments)
    if name is None:
        return Exit.BAD_SETTINGS
    table = await handle.table(name, at=arguments.at)
    if arguments.lineage:
        await _show_lineage(handle, table, as_json=arguments.json)
    elif arguments.csv or arguments.rows is not None:
        rows = await table.head(arguments.rows or FIRST_ROWS)
        _show_rows(rows, arguments)
    else:
        await _show_table(handle, table, as_json=arguments.json)
    return Exit.OK


@with_deployment
async def diff(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    name = await one_value(deployment, change_set, names, arguments)
    if name is None:
        return Exit.BAD_SETTINGS
    table = await deployment.client.change_set(*change_set).table(name, at=arguments.at)
    key = arguments.key
    if key is not None:
        key = [column.strip() for column in key.split(",") if column.strip()]
    difference = await table.diff(key, commit=arguments.since)
    _show_difference(difference, as_json=arguments.json)
    return Exit.OK


_SHOWN: Final = 60
"""Characters of a value that a lineage shows."""


_AT_ONCE: Final = 4


async def _show_tables(handle: ChangeSetHandle, arguments: argparse.Namespace) -> None:
    values = await handle.values(at=arguments.at)
    names = await function_names(handle)
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(value: ValueSnapshot) -> TableValue | str:
        async with places:
            try:
                return await handle.table(value.id, at=values.commit)
            except ReadRefused as error:
                return str(error)

    wanted = [value for value in values.values() if is_table(value.value)]
    found = await asyncio.gather(*map(read, wanted))
    both = list(zip(wanted, found, strict=True))
    rows: list[tuple[object, ...]] = []
    for value, its in both:
        name = value.name or value.id
        if isinstance(its, str):
            rows.append((name, None, None, None, its))
        else:
            by = "" if value.func_id is None else names.get(value.func_id, value.func_id)
            rows.append((name, its.rows, len(its.schema), its.size, by))
    headings = ("name or id", "rows", "columns", "bytes", "computed by")
    plain_tables = [_plain(value, table, names) for value, table in both]
    show_cells(headings, rows, arguments, plain=plain_tables, nothing="no value is a table")


async def _show_table(handle: ChangeSetHandle, table: TableValue, *, as_json: bool) -> None:
    """Print what the table has, and what it is computed from."""
    around = await handle.values(table.id, inputs=1, at=table.commit)
    value, names = around[table.id], await function_names(handle)
    if as_json:
        say_json(_plain(value, table, names))
        return
    files = many(table.files, "file")
    say(f"{value.name or value.id}: {many(table.rows, 'row')}, {table.size:,} bytes in {files}")
    if (source := PinnedTable.of(value.value)) is not None:
        say(f"copied from version {source.version} of {source.path}")
    if value.func_id is not None:
        by = names.get(value.func_id, value.func_id)
        say(f"computed as {by}({_inputs_text(value.inputs, around)})")
    shown = Table("column", "type", "")
    for column in table.schema:
        shown.add(column.name, column.type, "" if column.nullable else "not null")
    shown.show()


_STEPS: Final = 1_000
_NUMBERS: Final = ("int", "float", "double", "decimal")
"""Beginnings of the names of Arrow's types that are numbers."""


async def _show_lineage(handle: ChangeSetHandle, table: TableValue, *, as_json: bool) -> None:
    """Print the values that a table is made of, and those that are made of it, by steps."""
    around = await handle.values(table.id, inputs=_STEPS, dependents=_STEPS, at=table.commit)
    names = await function_names(handle)
    inputs = {value.id: value.input_ids() for value in around.values()}
    dependents: dict[str, list[str]] = {each: [] for each in inputs}
    for value_id, taken in inputs.items():
        for each in taken:
            dependents.setdefault(each, []).append(value_id)
    up, down = _steps_from(table.id, inputs), _steps_from(table.id, dependents)
    farthest_first = sorted(up, key=lambda each: -up[each])
    made_of = [_node(around[each], up[each], names) for each in farthest_first if each != table.id]
    goes_into = [_node(around[each], down[each], names) for each in down if each != table.id]
    if as_json:
        this = _node(around[table.id], 0, names)
        plain_lineage = {"commit": table.commit, **this, "madeOf": made_of, "goesInto": goes_into}
        del plain_lineage["steps"]
        say_json(plain_lineage)
        return
    shown = Table("steps", "value", "is", "computed as", numbers=(0,))
    for sign, nodes in ((-1, made_of), (0, [_node(around[table.id], 0, names)]), (1, goes_into)):
        for node in nodes:
            by, takes = node["computedBy"], _inputs_text(node["inputs"], around)
            steps = f"{sign * node['steps']:+}" if sign else "0"
            shown.add(steps, node["name"] or node["id"], node["text"], by and f"{by}({takes})")
    shown.show()


def _node(value: ValueSnapshot, steps: int, names: dict[str, str]) -> dict[str, Any]:
    """A value of a lineage, as plain data."""
    source = PinnedTable.of(value.value)
    text = table_text(value.value)
    if text is None:
        text = _text(value.value) if value.status == "ok" else f"{value.status}"
    return {
        "id": value.id,
        "name": value.name,
        "steps": steps,
        "isTable": is_table(value.value),
        "source": None if source is None else {"uri": source.path, "version": source.version},
        "text": text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…",
        "computedBy": None if value.func_id is None else names.get(value.func_id, value.func_id),
        "inputs": value.inputs,
    }


def _steps_from(start: str, edges: dict[str, list[str]]) -> dict[str, int]:
    """Return the least number of steps to each value that edges lead to, the nearest first."""
    steps = {start: 0}
    for value_id in (queue := [start]):
        for each in edges.get(value_id, ()):
            if each not in steps and each in edges:
                steps[each] = steps[value_id] + 1
                queue.append(each)
    return steps


def _show_rows(rows: Any, arguments: argparse.Namespace) -> None:
    """Print the rows of a `pyarrow.Table`; what JSON has not is text there."""
    rows_of = package("rebaser_core.table_schemas", extra="arrow").rows_of
    plain_rows = [{name: _cell(cell) for name, cell in row.items()} for row in rows_of(rows)]
    names = rows.column_names
    kinds = [str(field.type) for field in rows.schema]
    numbers = [place for place, kind in enumerate(kinds) if kind.startswith(_NUMBERS)]
    cells = [[_text(row[name]) for name in names] for row in plain_rows]
    nothing = "no rows"
    show_cells(names, cells, arguments, plain=plain_rows, numbers=numbers, nothing=nothing)


def _show_difference(difference: TableDifference, *, as_json: bool) -> None:
    """Print which rows differ: the columns and totals that do, and a few rows."""
    if as_json:
        say_json(_plain_difference(difference))
        return
    say(f"{difference.name}: {difference.summary()}")
    if difference.may_be_stale:
        say("an update is due: it may still be of earlier inputs")
    if not difference:
        return
    facts = Table("", "before", "after", numbers=(1, 2))
    for name, before, after in difference.columns():
        facts.add(f"column {name}", before or "-", after or "-")
    for total in difference.totals:
        facts.add(f"sum({total.name})", total.before or "-", total.after or "-")
    facts.add("rows", difference.before.rows, difference.after.rows)
    facts.show()
    _show_samples(difference)


def _show_samples(difference: TableDifference) -> None:
    columns = (*difference.after.columns, *difference.before.columns)
    names = list(dict.fromkeys(column.name for column in columns))
    rows, table = differing_rows(difference, _cell), Table("", *names)
    for word, shown in rows.items():
        for states in shown:
            table.add(word, *(_both(states, name) for name in names))
    if any(rows.values()):
        table.show()
    for word, shown in rows.items():
        left = (getattr(difference, word) or 0) - len(shown)
        if left:
            say(f"and {many(left, 'row')} {word}")


def _both(states: list[dict[str, Any]], name: str) -> str:
    texts = [_text(state[name]) if name in state else "" for state in states]
    return " → ".join(text or "-" for text in texts) if len(set(texts)) > 1 else texts[0]


def _plain_difference(difference: TableDifference) -> dict[str, Any]:
    """The difference as plain data; cells as `_show_rows` has them."""
    rows = differing_rows(difference, _cell)
    return {
        "name": difference.name,
        "commit": difference.commit,
        "since": difference.since,
        "mayBeStale": difference.may_be_stale,
        "key": difference.key,
        "columns": [
            {"name": name, "before": before, "after": after}
            for name, before, after in difference.columns()
        ],
        "changed": difference.changed,
        "added": difference.added,
        "removed": difference.removed,
        "totals": [each.to_wire() for each in difference.totals],
        "changedRows": [{"before": before, "after": after} for before, after in rows["changed"]],
        "addedRows": [row for [row] in rows["added"]],
        "removedRows": [row for [row] in rows["removed"]],
    }


class ComparedTable(NamedTuple):
    """A table that differs, and which rows do; or why that is not known."""

    id: str
    name: str
    rows: TableDifference | str

    def line(self) -> str:
        words = self.rows if isinstance(self.rows, str) else self.rows.summary()
        return f"{self.name}: {words}"

    def plain(self) -> dict[str, Any]:
        if isinstance(self.rows, str):
            return {"id": self.id, "name": self.name, "problem": self.rows}
        return {"id": self.id, **_plain_difference(self.rows)}


async def compared_tables(
    handle: ChangeSetHandle, comparison: BranchDifference
) -> list[ComparedTable]:
    """Compare the rows of each table that head and the branch both have, and that differs."""
    found = []
    for one in comparison.tables():
        try:
            rows: TableDifference | str = await (await handle.table(one.id)).diff()
        except ReadRefused as error:
            rows = str(error)
        found.append(ComparedTable(one.id, one.name or one.id, rows))
    return found


def _plain(value: ValueSnapshot, table: TableValue | str, names: dict[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {"id": value.id, "name": value.name}
    if isinstance(table, str):
        described["problem"] = table
    else:
        described |= {
            "commit": table.commit,
            "rows": table.rows,
            "bytes": table.size,
            "files": table.files,
            "columns": [column.to_wire() for column in table.schema],
        }
    by = None if value.func_id is None else names.get(value.func_id, value.func_id)
    return described | {"computedBy": by, "inputs": value.inputs}


def _inputs_text(inputs: Inputs | None, around: ValueSet) -> str:
    given = {name: [of] if isinstance(of, str) else of for name, of in (inputs or {}).items()}
    return ", ".join(
        f"{argument}={' + '.join(around[each].name or each for each in taken)}"
        for argument, taken in given.items()
    )


def _cell(cell: Any) -> Any:
    match cell:
        case Decimal():
            return str(cell)
        case bytes():
            return cell.hex()
        case float() if not isfinite(cell):
            return str(cell)
        case list() | tuple():
            return list(map(_cell, cell))
        case dict():
            return {name: _cell(inner) for name, inner in cell.items()}
        case _:
            return plain(cell)


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
