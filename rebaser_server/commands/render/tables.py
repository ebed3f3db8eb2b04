"""The output of `rebaser tables`."""

import asyncio
import csv
import io
import json
from contextlib import suppress
from decimal import Decimal
from math import isinf
from typing import Any, Final

from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.errors import ReadRefused
from rebaser_client.plain_values import plain
from rebaser_client.table_reads import TableValue
from rebaser_core.errors import many
from rebaser_core.queries import ValueSnapshot
from rebaser_core.table_values import is_table
from rebaser_server.terminal.lines import complain, say, say_json
from rebaser_server.terminal.tables import Table

_AT_ONCE: Final = 4
"""Number of tables that are asked for at a time."""


async def show_tables(handle: ChangeSetHandle, *, at: int | None, as_json: bool) -> None:
    """Print the values that are tables; a table whose rows are gone, with the reason."""
    values = await handle.values(at=at)
    names = await _function_names(handle)
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
    if as_json:
        say_json([_plain(value, table, names) for value, table in both])
        return
    if not both:
        complain("no value is a table")
        return
    table = Table("name or id", "rows", "columns", "bytes", "computed by", numbers=(1, 2, 3))
    for value, its in both:
        by = "" if value.func_id is None else names.get(value.func_id, value.func_id)
        if isinstance(its, str):
            table.add(value.name or value.id, "", "", "", its)
        else:
            table.add(value.name or value.id, its.rows, len(its.schema), its.size, by)
    table.show()


async def show_table(handle: ChangeSetHandle, table: TableValue, *, as_json: bool) -> None:
    """Print what the table has, and what it is computed from."""
    around = await handle.values(table.id, inputs=1, at=table.commit)
    value, names = around[table.id], await _function_names(handle)
    if as_json:
        say_json(_plain(value, table, names))
        return
    files = many(table.files, "file")
    say(f"{value.name or value.id}: {many(table.rows, 'row')}, {table.size:,} bytes in {files}")
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


def show_rows(rows: Any, *, as_csv: bool, as_json: bool) -> None:
    """Print the rows of a `pyarrow.Table`; decimals, dates and bytes are text in JSON."""
    names: list[str] = rows.column_names
    plain_rows = [{name: _cell(cell) for name, cell in row.items()} for row in rows.to_pylist()]
    if as_json:
        say_json(plain_rows)
        return
    cells = [[_text(row[name]) for name in names] for row in plain_rows]
    if as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *cells])
        say(*text.getvalue().split("\n")[:-1])
        return
    numbers = [place for place, field in enumerate(rows.schema) if _is_number(str(field.type))]
    table = Table(*names, numbers=numbers)
    for row in cells:
        table.add(*row)
    table.show()


async def _function_names(handle: ChangeSetHandle) -> dict[str, str]:
    with suppress(ReadRefused):  # a Rebaser of an older release, or too many for an answer
        return {each.id: each.name for each in await handle.functions()}
    return {}


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
