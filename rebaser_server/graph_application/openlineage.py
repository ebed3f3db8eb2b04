"""Events in the format of OpenLineage about updates of computed tables, for catalogs of data.

An update is a run, with START and then COMPLETE, FAIL or ABORT. Each table that came out changed
is a run below it, with the tables that it was computed from as inputs; a table that failed has
FAIL, with the message. A table is the dataset `<workspace>/<change set>/<value>`, by ids of the
first two; a source that lies in a folder is that folder.

Events wait in memory, are sent one after the other, and never hold up an update. If the server is
away, those beyond a number are dropped, the oldest first.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, Never
from uuid import UUID

import aiohttp
import structlog
from blake3 import blake3

from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.table_schemas import columns_of
from rebaser_core.table_values import TABLE, PinnedTable, TableHandle, is_table, table_key
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.tables import SQL, TABLE_RUNTIMES
from rebaser_server.compute.work_unit import FAILED, OK
from rebaser_server.runtime.containment import contained
from rebaser_server.settings.redaction import redact_text, redact_url
from rebaser_server.settings.settings import LineageSettings
from rebaser_server.tables import TableFiles, TableMissing
from rebaser_server.values.canonical_json import loads
from rebaser_server.values.graph import Graph

log: Final = structlog.get_logger()

_SPEC: Final = "https://openlineage.io/spec"
_PRODUCER: Final = f"https://pypi.org/project/rebaser/{version('rebaser')}"
_NAMESPACE: Final = "rebaser"
_TABLE: Final = f'{{"{TABLE}"'
"""First characters of the text of a value that is a table."""
_ENDS: Final = {
    ActivityKind.DVU_FINISHED: "COMPLETE",
    ActivityKind.DVU_FAILED: "FAIL",
    ActivityKind.DVU_CANCELLED: "ABORT",
}
_MAX_WAITING: Final = 10_000
"""Number of starts and ends of updates whose events may wait."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
_FIRST_DELAY, _MAX_DELAY = 1.0, 30.0
"""Seconds until an event is sent again that the server did not take."""
_COMPLAIN_EVERY: Final = 60.0
"""Seconds between two lines of the log about that."""
_LAST: Final = 2.0
"""Seconds for the events that wait when the process stops."""
_REFUSED: Final = range(400, 500)
_LATER: Final = (408, 429)
"""Answers that are no refusal of the event."""


class _Computed(NamedTuple):
    name: str
    runtime: str
    code: str
    inputs: list[str]


@dataclass(slots=True)
class _Update:
    computed: Mapping[str, _Computed]
    """Values of functions of tables, by their ids."""
    tables: dict[str, tuple[str, Any]]
    """Name and content of each table that one of them takes, by its id."""
    run: RequestId | None = None
    started: str = ""
    results: list[tuple[str, int, str]] = field(default_factory=list)
    """Id, status and text of the values that changed."""


class LineageEvents:
    def __init__(self, settings: LineageSettings, tables: TableFiles) -> None:
        self._target = settings.target or ""
        self._token = settings.token
        self._tables = tables
        self._updates: dict[ChangeSet, _Update] = {}
        """Updates that are planned or run, one for each change set at most."""
        self._open: dict[ChangeSet, RequestId] = {}
        """Runs that have started, and not ended."""
        self._waiting: deque[Callable[[], list[dict[str, Any]]]] = deque(maxlen=_MAX_WAITING)
        self._wakeup = asyncio.Event()
        self._dropped = 0
        self._complained = float("-inf")

    def plan(self, change_set: ChangeSet, graph: Graph) -> None:
        """Note what the next update may compute. Blocks; the caller holds the graph."""
        self._updates.pop(change_set, None)
        computed, tables = {}, {}
        for func in list(graph.funcs.values()):
            if func.runtime not in TABLE_RUNTIMES:
                continue
            for value_id in graph.users_of(func.id):
                value = graph.values[value_id]
                name, inputs = value.name or value_id, value.input_ids()
                computed[value_id] = _Computed(name, func.runtime, func.code, inputs)
                for each in inputs:
                    if each not in tables and graph.values[each].text.startswith(_TABLE):
                        taken = graph.values[each]
                        tables[each] = taken.name or each, taken.value
        if computed:
            self._updates[change_set] = _Update(computed, tables)

    def record(self, change_set: ChangeSet, results: Iterable[UnitResult]) -> None:
        """Note what the update has computed. Blocks."""
        update = self._updates.get(change_set)
        if update is None:
            return
        for result in results:
            columns = (result.table.column(name).to_pylist() for name in ("id", "status", "text"))
            for value_id, status, text in zip(*columns, strict=True):
                if value_id in update.computed:
                    update.results.append((value_id, status, text))

    def on_activity(
        self,
        change_set: ChangeSet,
        kind: ActivityKind,
        run: RequestId | None,
        details: Mapping[str, Any],
    ) -> None:
        """Queue the events of the start or the end of an update."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if kind in (ActivityKind.DVU_STARTED, ActivityKind.QUIET):
            left = self._open.pop(change_set, None)
            if left is not None:  # it was postponed, or has another owner
                self._add(partial(_update_events, "ABORT", change_set, left, now))
        if kind is ActivityKind.QUIET:
            self._updates.pop(change_set, None)
        update = self._updates.get(change_set)
        if update is None or run is None:
            return
        if kind is ActivityKind.DVU_STARTED:
            update.run, update.started = run, now
            self._open[change_set] = run
            self._add(partial(_update_events, "START", change_set, run, now))
        elif kind in _ENDS and update.run == run:
            del self._updates[change_set]
            self._open.pop(change_set, None)
            message = str(details.get("reason", ""))
            if kind is ActivityKind.DVU_FINISHED:
                self._add(partial(self._of_tables, change_set, update, now))
            self._add(partial(_update_events, _ENDS[kind], change_set, run, now, message))

    def _add(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        self._dropped += len(self._waiting) == _MAX_WAITING
        self._waiting.append(make)
        self._wakeup.set()

    def _of_tables(self, change_set: ChangeSet, update: _Update, now: str) -> list[dict[str, Any]]:
        """Return the events of the tables that changed or failed. Blocks."""
        after = {value_id: text for value_id, status, text in update.results if status == OK}
        events: list[dict[str, Any]] = []
        for result in update.results:
            with contained("lineage"):
                events += self._of_table(change_set, update, now, result, after)
        return events

    def _of_table(
        self,
        change_set: ChangeSet,
        update: _Update,
        now: str,
        result: tuple[str, int, str],
        after: Mapping[str, str],
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of one value; none if it is no table and has not failed."""
        value_id, status, text = result
        run = update.run or RequestId()
        content = loads(text) if status == OK else None
        if status not in (OK, FAILED) or (status == OK and TableHandle.of(content) is None):
            return
        computed = update.computed[value_id]
        inputs = []
        for each in dict.fromkeys(computed.inputs):
            name, table = update.tables.get(each, ("", None))
            if each in after:
                name, table = update.computed[each].name, loads(after[each])
            if is_table(table):
                inputs.append(self._dataset(change_set, name, table))
        output = self._dataset(change_set, computed.name, content)
        if (handle := TableHandle.of(content)) is not None:
            output["outputFacets"] = {
                "outputStatistics": _facet(
                    "OutputStatisticsOutputDatasetFacet", "1-0-2",
                    rowCount=handle.rows, size=handle.bytes,
                )
            }  # fmt: skip
        parent = _facet(
            "ParentRunFacet",
            "1-2-0",
            run={"runId": str(UUID(bytes=run.bytes))},
            job={"namespace": _NAMESPACE, "name": _name(change_set)},
        )
        job: dict[str, Any] = {"jobType": _job_type("TABLE")}
        if computed.runtime == SQL:
            job["sql"] = _facet("SQLJobFacet", "1-1-0", query=computed.code, dialect="spark")
        digest = blake3(run.bytes + value_id.encode()).digest(length=len(run.bytes))
        facets = {"parent": parent}
        common = (digest, _name(change_set, computed.name), job, inputs, [output])
        yield _event("START", update.started, *common, facets)
        if status == FAILED:
            yield _event(
                "FAIL",
                now,
                *common,
                facets | _error(text, "SQL" if computed.runtime == SQL else "Python"),
            )
        else:
            yield _event("COMPLETE", now, *common, facets)

    def _dataset(self, change_set: ChangeSet, name: str, content: Any) -> dict[str, Any]:
        facets = {}
        source, handle, key = PinnedTable.of(content), TableHandle.of(content), table_key(content)
        of = handle.content if handle else source.version if source else key
        if of is not None:
            facets["version"] = _facet(
                "DatasetVersionDatasetFacet", "1-0-1", datasetVersion=str(of)
            )
        if key is not None:
            with suppress(TableMissing, OSError):
                fields = self._tables.get(str(change_set.workspace_id), key).fields
                columns = [{"name": each.name, "type": each.type} for each in columns_of(fields)]
                facets["schema"] = _facet("SchemaDatasetFacet", "1-2-0", fields=columns)
        if source is not None:
            return {"namespace": "file", "name": source.path, "facets": facets}
        return {"namespace": _NAMESPACE, "name": _name(change_set, name), "facets": facets}

    async def run(self) -> Never:
        """Send events until cancelled, and then those that wait, for a moment."""
        headers = {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        async with aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers) as session:
            try:
                while True:
                    await self._wakeup.wait()
                    self._wakeup.clear()
                    await self._send_waiting(session)
            finally:
                with suppress(TimeoutError):
                    async with deadlines.within(_LAST):
                        await self._send_waiting(session)
        raise AssertionError("it sends until it is cancelled")

    async def _send_waiting(self, session: aiohttp.ClientSession) -> None:
        while self._waiting:
            make = self._waiting[0]
            with contained("lineage"):
                for event in await asyncio.to_thread(make):
                    await self._send(session, event)
            if self._waiting[0] is make:  # it was not dropped meanwhile
                self._waiting.popleft()

    async def _send(self, session: aiohttp.ClientSession, event: dict[str, Any]) -> None:
        """Send the event again and again until it is taken, or refused."""
        for delay in Backoff(_FIRST_DELAY, _MAX_DELAY):
            try:
                refused = await self._deliver(session, event)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._complain(str(error) or type(error).__name__)
            else:
                if refused:
                    self._complain(f"refused: {refused}")
                return
            await asyncio.sleep(delay)

    async def _deliver(self, session: aiohttp.ClientSession, event: dict[str, Any]) -> str:
        """Return why the event was refused; empty if it was taken."""
        text = json.dumps(event, ensure_ascii=False)
        if not self._target.startswith(("http://", "https://")):
            await asyncio.to_thread(_append, self._target, text)
            return ""
        headers = {"Content-Type": "application/json"}
        async with session.post(self._target, data=text.encode(), headers=headers) as answer:
            if answer.ok:
                return ""
            if answer.status in _REFUSED and answer.status not in _LATER:
                return f"{answer.status} {answer.reason}"
            raise aiohttp.ClientError(f"{answer.status} {answer.reason}")

    def _complain(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._complained >= _COMPLAIN_EVERY:
            self._complained = now
            waiting, target = len(self._waiting), redact_url(self._target)
            log.warning(
                "lineage not sent",
                target=target,
                reason=redact_text(reason),
                waiting=waiting,
                dropped=self._dropped,
            )


def _append(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _name(change_set: ChangeSet, *of: str) -> str:
    return "/".join([*map(str, change_set), *of])


def _facet(name: str, version: str, **fields: Any) -> dict[str, Any]:
    of_spec = f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}"
    return {"_producer": _PRODUCER, "_schemaURL": of_spec, **fields}


def _job_type(kind: str) -> dict[str, Any]:
    return _facet(
        "JobTypeJobFacet", "2-0-4", processingType="BATCH", integration="REBASER", jobType=kind
    )


def _error(message: str, language: str = "Python") -> dict[str, Any]:
    said = {"message": message, "programmingLanguage": language}
    return {"errorMessage": _facet("ErrorMessageRunFacet", "1-0-1", **said)}


def _update_events(
    kind: str, change_set: ChangeSet, run: RequestId, at: str, message: str = ""
) -> list[dict[str, Any]]:
    """Return the one event of an update as a whole."""
    job = {"jobType": _job_type("UPDATE")}
    facets = _error(message) if kind == "FAIL" else {}
    return [_event(kind, at, run.bytes, _name(change_set), job, [], [], facets)]


def _event(
    kind: str,
    at: str,
    run: bytes,
    name: str,
    job: dict[str, Any],
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    facets: dict[str, Any],
) -> dict[str, Any]:
    return {
        "eventType": kind,
        "eventTime": at,
        "run": {"runId": str(UUID(bytes=run)), "facets": facets},
        "job": {"namespace": _NAMESPACE, "name": name, "facets": job},
        "inputs": inputs,
        "outputs": outputs,
        "producer": _PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }
