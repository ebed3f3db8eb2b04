"""Presentation of values to clients and browsers: queries, actions, and the data of pages.

A change set's page shows values by name pattern, why one is what it is, what each commit changed,
and of a branch the review.

Everything is read when a browser asks for it. Nothing is changed, except that a branch behind head,
whose effects are therefore not known, is made to follow it.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Never

import pyarrow as pa
from aiohttp import web

from rebaser_client.display import cut, value_text
from rebaser_client.effects import effects_csv, families, natural, side_text
from rebaser_client.table_reads import TableDifference, differing_rows
from rebaser_client.workspaces import AddressBook
from rebaser_core.errors import ClientError, RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.queries import ProvenanceQueryV1, TableDifferenceQueryV1, TableQueryV1
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1, ChangeSetStatus
from rebaser_core.registry import Registry
from rebaser_core.requests import publish_request
from rebaser_core.table_schemas import cells_of, decode_rows
from rebaser_core.table_values import TABLE, PinnedTable
from rebaser_server.commit_log.state import State
from rebaser_server.compute.memo import ImpureFunctions
from rebaser_server.errors import NotABranch
from rebaser_server.files import shared_files
from rebaser_server.graph_application.content import graph_of
from rebaser_server.ops.actions import Action
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.queue_pages import (
    MAX_ROWS,
    NUMBER,
    ChangeSetReading,
    answering_for_change_set,
    rows_asked,
)
from rebaser_server.ops.review import MAX_TEXT, effects_graph, plain_difference
from rebaser_server.ops.value_actions import VALUE_ACTIONS
from rebaser_server.processor.context import Services
from rebaser_server.queries.comparisons import changes_of
from rebaser_server.queries.query_service import QueryKind
from rebaser_server.queries.value_queries import ValueQueries
from rebaser_server.runtime.containment import repeat_every
from rebaser_server.values.columns import Func, ValueStatus
from rebaser_server.values.graph import Graph, Value

_COMPARED_ROWS: Final = 200_000
"""Maximum number of rows of two tables that are compared for the page."""
_COMPARED_WITHIN: Final = 2.0
"""Seconds for comparing rows of tables each time that the page asks for the difference."""
_NOT_COMPARED: Final = "its rows are not compared here; rebaser tables diff does"

_FIRST_ROWS: Final = 3
"""Number of rows of a table that are shown."""
_MAX_CELL: Final = 100
"""Maximum number of characters of one of their cells."""

_MAX_DETAIL: Final = 10_000
"""Maximum number of characters of the value that is looked at."""


_LOOK_EVERY: Final = 60.0
"""Seconds between two looks whether functions were found that are not pure."""


class ValuePresentation(Presentation):
    """The queries, pages and actions of the value graph."""

    def __init__(self, services: Services) -> None:
        self._streams = services.streams
        self._queries = ValueQueries(services.loader)
        self._impure = ImpureFunctions(shared_files(services.batches.files))
        self._refreshed: dict[ChangeSet, int] = {}
        """Branches that were made to follow head, and their last commit then."""

    @property
    def queries(self) -> Sequence[QueryKind[Any, Any]]:
        return self._queries.kinds()

    @property
    def actions(self) -> Mapping[str, Action[Any]]:
        return VALUE_ACTIONS

    @property
    def impure(self) -> list[dict[str, Any]]:
        return self._impure.latest

    async def run(self) -> Never:
        """Look again and again whether functions were found that are not pure."""
        await repeat_every(
            _LOOK_EVERY, lambda: asyncio.to_thread(self._impure.look), "impure", first_delay=0
        )

    def routes(self, addresses: AddressBook) -> list[web.RouteDef]:
        """Paths of a change set's page: `/change-set/values?workspace=…&changeSet=…` and so on."""
        readings: dict[str, ChangeSetReading] = {
            "values": self._values,
            "value": self._value,
            "why": self._why,
            "commit": self._commit,
            "difference": self._difference,
            "effects.csv": self._effects,
        }
        return [
            web.get(f"/change-set/{name}", answering_for_change_set(reading, addresses))
            for name, reading in readings.items()
        ]

    async def _values(self, change_set: ChangeSet, request: web.Request) -> Any:
        search, status, family = (
            request.query.get(name, "") for name in ("search", "status", "family")
        )
        return await self._queries.open_loader(change_set).read(
            partial(_list_values, search=search.casefold(), status=status, family=family)
        )

    async def _value(self, change_set: ChangeSet, request: web.Request) -> Any:
        value_id = request.query.get("id", "")
        loader = self._queries.open_loader(change_set)
        describe = partial(_describe, value_id=value_id, most=rows_asked(request))
        described, func = await loader.read(lambda state: describe(graph_of(state)))
        note = None
        if func is not None:
            function = str(change_set.workspace_id), func.runtime, func.code
            note = await asyncio.to_thread(self._impure.of_function, *function)
        if note is not None:
            noted = str(note["value"])
            its = await loader.read(lambda state: graph_of(state).values.get(noted))
            note = {**note, "name": None if its is None else its.name}
        table = None
        if described.pop("isTable", False):
            table = await self._table(change_set, value_id) | {"source": described.pop("source")}
            if await loader.read(lambda state: state.control.branch is not None):
                table["differing"] = await self._compared(change_set, value_id)
        return {**described, "impure": note, "table": table}

    async def _table(self, change_set: ChangeSet, value_id: str) -> dict[str, Any]:
        """Return the columns of a table, each with its cells in the first rows."""
        query = TableQueryV1(
            id=RequestId(), **change_set._asdict(), value=value_id, rows=True, limit=_FIRST_ROWS
        )
        try:
            async with aclosing(self._queries.tables.replies(query, {})) as parts:
                replies = [reply async for reply in parts]
        except (RebaserError, OSError) as error:  # the rows are gone, or the store is away
            return {"problem": str(error)}
        table = replies[0].table
        if table is None:
            return {"problem": replies[0].error}
        first = pa.Table.from_batches(decode_rows(reply.rows or "") for reply in replies[1:])
        columns = [
            {**column.to_wire(), "first": list(map(_cell_text, cells_of(cells)))}
            for column, cells in zip(table.columns, first.columns, strict=True)
        ]
        return {"rows": table.rows, "size": table.size, "columns": columns}

    async def _why(self, change_set: ChangeSet, request: web.Request) -> Any:
        value = request.query.get("id", "")
        query = ProvenanceQueryV1(id=RequestId(), **change_set._asdict(), value=value)
        reply = await self._queries.provenance.find(query)
        return reply.model_copy(update={"value": None}).to_wire()

    async def _commit(self, change_set: ChangeSet, request: web.Request) -> Any:
        """Definitions that the commit changed, and the number of all."""
        asked = request.query.get("commit", "")
        if not NUMBER.fullmatch(asked):
            raise web.HTTPBadRequest(text=f"{request.path}?…&commit=NUMBER\n")
        changes = await changes_of(self._queries.open_loader(change_set), int(asked))
        rows = [
            {
                "id": each.id,
                "name": each.name,
                "what": each.what,
                "before": cut(side_text(each.before), MAX_TEXT),
                "after": cut(side_text(each.after), MAX_TEXT),
            }
            for each in changes[: rows_asked(request)]
        ]
        return {"count": len(changes), "changes": rows}

    async def _difference(self, change_set: ChangeSet, _: web.Request) -> Any:
        try:
            found = await self._queries.comparisons.diff(change_set, computed=True)
        except NotABranch as error:
            return {"problem": str(error)}
        if found.uncomputed and found.behind != 0:
            await self._refresh(change_set, found.commit)
        rows = dict[str, str]()
        with suppress(TimeoutError):
            async with deadlines.within(_COMPARED_WITHIN):
                for one in found.tables():
                    rows[one.id] = _NOT_COMPARED
                    its = await self._table_difference(change_set, one.id)
                    rows[one.id] = its if isinstance(its, str) else its.summary()
        plain = await asyncio.to_thread(plain_difference, found, rows)
        return plain | {"graph": await asyncio.to_thread(effects_graph, found)}

    async def _compared(self, branch: ChangeSet, value_id: str) -> dict[str, Any]:
        """Return the first rows of a table that differ from head's, or say why it has none."""
        found: TableDifference | str = _NOT_COMPARED
        with suppress(TimeoutError):
            async with deadlines.within(_COMPARED_WITHIN):
                found = await self._table_difference(branch, value_id)
        if isinstance(found, str):
            return {"summary": found}
        both = [*found.after.columns, *found.before.columns]
        rows = differing_rows(found, _cell_text)
        return {
            "summary": found.summary(),
            "columns": list({column.name: column.type for column in both}.items()),
            "rows": [[word, *states] for word, its in rows.items() for states in its],
        }

    async def _table_difference(self, branch: ChangeSet, value_id: str) -> TableDifference | str:
        """Compare the rows of a table with head's, or say why they are not, as of many rows."""
        query = TableDifferenceQueryV1(id=RequestId(), **branch._asdict(), value=value_id)
        replies = []
        try:
            async with aclosing(self._queries.table_differences.replies(query, {})) as parts:
                async for reply in parts:
                    replies.append(reply)
                    tables = filter(None, (reply.before, reply.after))
                    if sum(table.rows for table in tables) > _COMPARED_ROWS:
                        return _NOT_COMPARED
            return TableDifference(value_id, replies)
        except RebaserError as error:
            return str(error)

    async def _refresh(self, branch: ChangeSet, commit: int) -> None:
        """Make an open branch follow head, once for each of its commits that is behind."""
        if self._refreshed.get(branch, -1) >= commit:
            return
        with suppress(ClientError):
            record = await Registry(self._streams).change_set(branch)
            if record.status is not ChangeSetStatus.OPEN:
                return
            request = ChangeSetRequestV1(id=RequestId(), **branch._asdict(), action="refresh")
            encoded = ChangeSetRequest.encode(request)
            await publish_request(self._streams, branch, *encoded)
            self._refreshed[branch] = commit

    async def _effects(self, change_set: ChangeSet, _: web.Request) -> web.Response:
        """The differing computed values, whole, for a spreadsheet."""
        found = await self._queries.comparisons.diff(change_set, computed=True)
        headers = {"Content-Disposition": 'attachment; filename="effects.csv"'}
        text = await asyncio.to_thread(effects_csv, found.computed or ())
        return web.Response(text=text, content_type="text/csv", headers=headers)


_ALONE: Final = 3
"""Maximum number of values of one family that are listed one by one."""
_MAX_FAILING: Final = 20
"""Maximum number of failed and blocked values that are listed before the others."""


def _list_values(state: State, search: str, status: str, family: str) -> Any:
    """Values with the text in their name, or as their id, and with the status, as families.

    With `family`, the values of that one. At most `MAX_ROWS` are listed, in natural order and the
    failed first; all are counted.
    """
    graph = graph_of(state)
    ids: list[str] = []
    names: list[str] = []
    statuses: list[str] = []
    counts = Counter[str]()
    # A part once found stays where it is, so that no text takes long to be compared.
    parts = (f"(?>.*?{re.escape(part)})" for part in search.split("*"))
    is_named = re.compile("".join(parts), re.DOTALL).match
    for value in graph.values.values():
        if search and not is_named((value.name or "").casefold()) and value.id.casefold() != search:
            continue
        counts[value.status.value] += 1
        if status in ("", value.status.value):
            ids.append(value.id)
            names.append(value.name or "")
            statuses.append(value.status.value)
    grouped = defaultdict[str, list[int]](list)
    for place, pattern in enumerate(families(names)):
        grouped[pattern].append(place)

    def rows(places: Iterable[int], most: int) -> list[dict[str, Any]]:
        ordered = sorted(places, key=lambda n: (_URGENCY[statuses[n]], natural(names[n] or ids[n])))
        return [_row(graph, graph.values[ids[n]]) for n in ordered[:most]]

    found = {
        "commit": state.commit,
        "due": state.control.dvu_due,
        "count": len(ids),
        "inAll": len(graph.values),
        "statuses": counts,
    }
    if family:
        return {**found, "values": rows(grouped[family], MAX_ROWS)}
    failing = [n for n, each in enumerate(statuses) if each in ("failed", "blocked")]
    ordered = sorted(grouped, key=lambda pattern: (not pattern, natural(pattern)))
    return {
        **found,
        "failing": rows(failing, _MAX_FAILING),
        "families": len(ordered),
        "groups": [
            {
                "family": pattern,
                "count": len(those := grouped[pattern]),
                "statuses": Counter(statuses[n] for n in those),
                "values": rows(those, _ALONE) if len(those) <= _ALONE else [],
            }
            for pattern in ordered[:MAX_ROWS]
        ],
    }


_URGENCY: Final = {"failed": 0, "blocked": 1, "pending": 2, "ok": 2}
"""Rank of a status in a list."""


def _row(graph: Graph, value: Value) -> dict[str, Any]:
    func = graph.funcs.get(value.func_id or "")
    return {
        "id": value.id,
        "name": value.name,
        "status": value.status.value,
        "text": cut(value_text(value.text), MAX_TEXT),
        "message": _message(graph, value),
        "func": None if value.func_id is None else func.name if func else value.func_id,
    }


def _message(graph: Graph, value: Value) -> str | None:
    """Reason why there is no value; of a blocked one the name of the input that it waits for."""
    if value.message is None or value.status is not ValueStatus.BLOCKED:
        return value.message and cut(value.message, MAX_TEXT)
    blocker = graph.values.get(value.message)
    return f"waits for {(blocker and blocker.name) or value.message}, which has no value"


def _describe(graph: Graph, value_id: str, most: int) -> tuple[dict[str, Any], Func | None]:
    """Return a value's data with at most `most` inputs and dependents, and its function."""
    value = graph.values.get(value_id)
    if value is None:
        return {"problem": "there is no such value"}, None
    func = graph.funcs.get(value.func_id or "")
    takes = [
        {"argument": argument, **_row(graph, graph.values[input_id])}
        for argument, given in value.inputs.items()
        for input_id in ([given] if isinstance(given, str) else given)
    ]
    takers = sorted(value.dependents, key=lambda each: natural(graph.values[each].name or each))
    row = _row(graph, value)
    described = {
        **row,
        "text": cut(value_text(value.text), _MAX_DETAIL),
        "message": value.message if value.status is ValueStatus.FAILED else row["message"],
        "runtime": None if func is None else func.runtime,
        "code": None if func is None else cut(func.code, _MAX_DETAIL),
        "inputs": takes[:most],
        "inputCount": len(takes),
        "dependents": [_row(graph, graph.values[each]) for each in takers[:most]],
        "dependentCount": len(takers),
    }
    if value.text.startswith(f'{{"{TABLE}"'):
        source = PinnedTable.of(value.value)
        described["isTable"] = True
        described["source"] = source and {"uri": source.path, "version": source.version}
    return described, func


def _cell_text(cell: Any) -> str:
    """Return a cell as people read it, or its beginning."""
    if cell is None:
        return "null"
    if isinstance(cell, bytes):
        return cut(cell.hex(), _MAX_CELL)
    if isinstance(cell, list | dict):
        return cut(json.dumps(cell, ensure_ascii=False, default=str), _MAX_CELL)
    return cut(str(cell), _MAX_CELL)
