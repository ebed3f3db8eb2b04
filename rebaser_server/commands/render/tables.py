"""The output of `rebaser tables`."""

import argparse
import asyncio
import json
from decimal import Decimal
from math import isinf
from typing import Any, Final, NamedTuple

from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.display import package, table_text
from rebaser_client.errors import ReadRefused
from rebaser_client.plain_values import plain
from rebaser_client.plan import input_ids
from rebaser_client.reader import BranchDifference
from rebaser_client.table_reads import TableDifference, TableValue
from rebaser_core.errors import many
from rebaser_core.queries import ValueSnapshot
from rebaser_core.table_values import PinnedTable, is_table
from rebaser_server.commands.support.value_source import function_names
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table, show_cells

_SHOWN: Final = 60
"""Characters of a value that a lineage shows."""
_AT_ONCE: Final = 4
"""Number of tables that are asked for at a time."""


async def show_tables(handle: ChangeSetHandle, arguments: argparse.Namespace) -> None:
    """Print the values that are tables; a table whose rows are gone, with the reason."""
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


async def show_table(handle: ChangeSetHandle, table: TableValue, *, as_json: bool) -> None:
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
        inputs = ", ".join(
            f"{argument}={' + '.join(around[each].name or each for each in _listed(given))}"
            for argument, given in (value.inputs or {}).items()
        )
        say(f"computed as {names.get(value.func_id, value.func_id)}({inputs})")
    shown = Table("column", "type", "")
    for column in table.schema:
        shown.add(column.name, column.type, "" if column.nullable else "not null")
    shown.show()


_STEPS: Final = 1_000
"""Maximum number of steps of a lineage that is shown."""


async def show_lineage(handle: ChangeSetHandle, table: TableValue, *, as_json: bool) -> None:
    """Print the values that a table is made of, and those that are made of it, by steps."""
    around = await handle.values(table.id, inputs=_STEPS, dependents=_STEPS, at=table.commit)
    names = await function_names(handle)
    inputs = {value.id: input_ids(value) for value in around.values()}
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
            by, takes = node["computedBy"], node["inputs"] or {}
            arguments = ", ".join(
                f"{argument}={' + '.join(around[each].name or each for each in _listed(given))}"
                for argument, given in takes.items()
            )
            steps = f"{sign * node['steps']:+}" if sign else "0"
            shown.add(steps, node["name"] or node["id"], node["text"], by and f"{by}({arguments})")
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


def show_rows(rows: Any, arguments: argparse.Namespace) -> None:
    """Print the rows of a `pyarrow.Table`; decimals, dates and bytes are text in JSON."""
    rows_of = package("rebaser_core.table_schemas", extra="arrow").rows_of
    plain_rows = [{name: _cell(cell) for name, cell in row.items()} for row in rows_of(rows)]
    names = rows.column_names
    numbers = [place for place, field in enumerate(rows.schema) if _is_number(str(field.type))]
    cells = [[_text(row[name]) for name in names] for row in plain_rows]
    show_cells(names, cells, arguments, plain=plain_rows, numbers=numbers)


def show_difference(difference: TableDifference, *, as_json: bool) -> None:
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
    rows, table = _differing_rows(difference), Table("", *names)
    for word, shown in rows.items():
        for states in shown:
            table.add(word, *(_both(states, name) for name in names))
    if any(rows.values()):
        table.show()
    for word, shown in rows.items():
        left = (getattr(difference, word) or 0) - len(shown)
        if left:
            say(f"and {many(left, 'row')} {word}")


def _differing_rows(difference: TableDifference) -> dict[str, list[list[dict[str, Any]]]]:
    """Rows by what became of them: of each the state before and after, if there are both."""
    rows_of = package("rebaser_core.table_schemas", extra="arrow").rows_of
    sides = {
        "changed": difference.changed_rows(),
        "added": (difference.added_rows(),),
        "removed": (difference.removed_rows(),),
    }
    return {
        word: [
            [{name: _cell(cell) for name, cell in state.items()} for state in states]
            for states in zip(*(rows_of(side) for side in its if side is not None), strict=True)
        ]
        for word, its in sides.items()
    }


def _both(states: list[dict[str, Any]], name: str) -> str:
    texts = [_text(state[name]) if name in state else "" for state in states]
    return " → ".join(text or "-" for text in texts) if len(set(texts)) > 1 else texts[0]


def _plain_difference(difference: TableDifference) -> dict[str, Any]:
    """The difference as plain data; cells as `show_rows` has them."""
    rows = _differing_rows(difference)
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
        """The difference as plain data."""
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


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _cell(cell: Any) -> Any:
    match cell:
        case Decimal():
            return str(cell)
        case bytes():
            return cell.hex()
        case float() if isinf(cell):
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


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "float", "double", "decimal"))
