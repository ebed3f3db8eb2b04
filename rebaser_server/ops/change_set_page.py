"""What the page of a change set shows: values, why one is what it is, commits, a branch's effect.

Everything is read when a browser asks for it. Nothing is changed, except that a branch whose
effects are not known because it is behind head is made to follow it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from rebaser_client.errors import ClientError, NoSuchChangeSet
from rebaser_client.reader import read_log
from rebaser_client.registry import Registry
from rebaser_client.requests import publish_request
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.queries import ProvenanceQueryV1
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV2, ChangeSetStatus
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.ops.difference_text import MAX_TEXT, cut, effects_csv, plain_difference
from rebaser_server.ops.effects_graph import effects_graph
from rebaser_server.queries.comparisons import NotABranch
from rebaser_server.queries.query_service import QueryService
from rebaser_server.values.graph import Graph, Value

MAX_ROWS: Final = 100
"""Values of a list."""
MAX_COMMITS: Final = 100
MAX_DETAIL: Final = 10_000
"""Characters of the value that is looked at."""

Reading = Callable[[ChangeSet, web.Request], Awaitable[Any]]


class ChangeSetPage:
    """Answers the page's questions about one change set each."""

    def __init__(self, js: JetStream, subjects: Subjects, queries: QueryService) -> None:
        self._js = js
        self._subjects = subjects
        self._queries = queries
        self._refreshed: dict[ChangeSet, int] = {}
        """Branches that were made to follow head, and their last commit then."""

    def routes(self) -> list[web.RouteDef]:
        """What a browser may ask: `/change-set/values?workspace=…&changeSet=…` and so on."""
        readings: dict[str, Reading] = {
            "about": self._about,
            "values": self._values,
            "value": self._value,
            "why": self._why,
            "log": self._log,
            "difference": self._difference,
        }
        return [
            web.get("/change-set/effects.csv", _answering(self._effects)),
            *(
                web.get(f"/change-set/{name}", _answering(reading))
                for name, reading in readings.items()
            ),
        ]

    async def _about(self, change_set: ChangeSet, _: web.Request) -> Any:
        registry = Registry(self._js, self._subjects)
        try:
            workspace = await registry.workspace(change_set.workspace_id)
            record = await registry.change_set(change_set)
        except NoSuchChangeSet:
            return {"name": None}
        return {
            "workspace": workspace.name,
            "name": record.name,
            "kind": record.kind.value,
            "standing": record.standing.value,
            "createdAt": record.created_at,
            "by": record.by,
            "head": str(record.head),
            "problem": record.problem,
        }

    async def _values(self, change_set: ChangeSet, request: web.Request) -> Any:
        search = request.query.get("search", "").casefold()
        async with self._queries.values.cache.state_of(change_set) as state:
            return await asyncio.to_thread(_list_values, state, search)

    async def _value(self, change_set: ChangeSet, request: web.Request) -> Any:
        async with self._queries.values.cache.state_of(change_set) as state:
            return await asyncio.to_thread(_describe, graph_of(state), request.query.get("id", ""))

    async def _why(self, change_set: ChangeSet, request: web.Request) -> Any:
        query = ProvenanceQueryV1(
            id=RequestId(),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            value=request.query.get("id", ""),
        )
        reply = await self._queries.provenance.find(query)
        return reply.model_copy(update={"value": None}).to_wire()

    async def _log(self, change_set: ChangeSet, _: web.Request) -> Any:
        entries = await read_log(self._js, self._subjects, change_set, limit=MAX_COMMITS)
        return {"commits": [entry.as_dict() for entry in reversed(entries)]}

    async def _difference(self, change_set: ChangeSet, _: web.Request) -> Any:
        try:
            found = await self._queries.comparisons.diff(change_set, computed=True)
        except NotABranch as error:
            return {"problem": str(error)}
        if found.uncomputed and found.behind != 0:
            await self._refresh(change_set, found.commit)
        plain = await asyncio.to_thread(plain_difference, found)
        return plain | {"graph": await asyncio.to_thread(effects_graph, found)}

    async def _refresh(self, branch: ChangeSet, commit: int) -> None:
        """Have an open branch follow head, once for each of its commits that is behind."""
        if self._refreshed.get(branch, -1) >= commit:
            return
        with suppress(ClientError):
            record = await Registry(self._js, self._subjects).change_set(branch)
            if record.standing is not ChangeSetStatus.OPEN:
                return
            request = ChangeSetRequestV2(
                id=RequestId(),
                workspace_id=branch.workspace_id,
                change_set_id=branch.change_set_id,
                action="refresh",
            )
            encoded = ChangeSetRequest.encode(request)
            await publish_request(self._js, self._subjects, branch, *encoded)
            self._refreshed[branch] = commit

    async def _effects(self, change_set: ChangeSet, _: web.Request) -> web.Response:
        """The computed values that differ, whole, for a spreadsheet."""
        found = await self._queries.comparisons.diff(change_set, computed=True)
        headers = {"Content-Disposition": 'attachment; filename="effects.csv"'}
        text = await asyncio.to_thread(effects_csv, found)
        return web.Response(text=text, content_type="text/csv", headers=headers)


def change_set_asked(request: web.Request) -> ChangeSet | None:
    """The change set that the request names; None if it names none."""
    try:
        return ChangeSet(
            WorkspaceId.from_str(request.query.get("workspace", "")),
            ChangeSetId.from_str(request.query.get("changeSet", "")),
        )
    except ValueError:
        return None


def _answering(reading: Reading) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        change_set = change_set_asked(request)
        if change_set is None:
            return web.Response(status=400, text=f"{request.path}?workspace=ULID&changeSet=ULID\n")
        try:
            answer = await reading(change_set, request)
        except (NoSuchChangeSet, NotABranch) as error:
            return web.Response(status=404, text=f"{error}\n")
        except (RebaserError, JetStreamError, OSError) as error:
            return web.Response(status=503, text=f"{error}\n")
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    return respond


def _list_values(state: State, search: str) -> Any:
    """Those with the text in their name or id, at most `MAX_ROWS`, and how many there are."""
    graph = graph_of(state)
    found: list[dict[str, Any]] = []
    count = 0
    for value in graph.values.values():
        if search and search not in (value.name or "").casefold() and value.id.casefold() != search:
            continue
        count += 1
        if len(found) < MAX_ROWS:
            found.append(_row(graph, value))
    return {
        "commit": state.commit,
        "due": state.control.dvu_due,
        "count": count,
        "inAll": len(graph.values),
        "values": found,
    }


def _row(graph: Graph, value: Value) -> dict[str, Any]:
    func = graph.funcs.get(value.func_id or "")
    return {
        "id": value.id,
        "name": value.name,
        "status": value.status.value,
        "text": cut(value.text, MAX_TEXT),
        "func": None if value.func_id is None else func.name if func else value.func_id,
    }


def _describe(graph: Graph, value_id: str) -> Any:
    value = graph.values.get(value_id)
    if value is None:
        return {"problem": "there is no such value"}
    func = graph.funcs.get(value.func_id or "")
    takes = [
        {"argument": argument, **_row(graph, graph.values[input_id])}
        for argument, given in value.inputs.items()
        for input_id in ([given] if isinstance(given, str) else given)
    ]
    takers = sorted(value.dependents)
    return {
        **_row(graph, value),
        "text": cut(value.text, MAX_DETAIL),
        "message": value.message,
        "runtime": None if func is None else func.runtime,
        "code": None if func is None else cut(func.code, MAX_DETAIL),
        "inputs": takes[:MAX_ROWS],
        "inputCount": len(takes),
        "dependents": [_row(graph, graph.values[each]) for each in takers[:MAX_ROWS]],
        "dependentCount": len(takers),
    }
