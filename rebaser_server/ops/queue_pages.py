"""The pages that every application has, and the ways in which pages answer: data for a browser.

Change sets, what each was sent and its commits; dead letters with their requests, and pauses.

Everything is read when a browser asks for it, and nothing is changed. `NameCache` reads names from
the registry.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

import nats.errors
from aiohttp import web
from pydantic import ValidationError

from rebaser_client.effects import natural
from rebaser_client.errors import AmbiguousAddress
from rebaser_client.reader import read_log
from rebaser_client.workspaces import CLOSED_STATUSES, AddressBook
from rebaser_core.errors import MessageError, NoSuchChangeSet, RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import ordered_reader
from rebaser_core.records import ChangeSetKind, ChangeSetRecordV1, utc_text
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.versioning import EDITED, first_error
from rebaser_server.cluster.pauses import PauseStore, paused_since, pauses_to_json
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.errors import NotABranch, NotRetained, NotRevertible
from rebaser_server.ops.dead_letters import NoSuchLetter, latest, load

T = TypeVar("T")

MAX_ROWS: Final = 100
"""Maximum number of rows of a list."""
_MOST_ROWS: Final = 10_000
"""Maximum number of them that a request can ask for."""
NUMBER: Final = re.compile(r"[0-9]{1,18}")

ChangeSetReading = Callable[[ChangeSet, web.Request], Awaitable[Any]]


def change_set_asked(request: web.Request) -> ChangeSet | None:
    """The change set that the request names; None if it names none."""
    try:
        return ChangeSet(
            WorkspaceId.from_str(request.query.get("workspace", "")),
            ChangeSetId.from_str(request.query.get("changeSet", "")),
        )
    except ValueError:
        return None


def rows_asked(request: web.Request) -> int:
    """Return the number of rows that the request asks for, at most `_MOST_ROWS`."""
    asked = request.query.get("rows", str(MAX_ROWS))
    if not NUMBER.fullmatch(asked):
        raise web.HTTPBadRequest(text=f"{request.path}?…&rows=NUMBER\n")
    return min(int(asked), _MOST_ROWS)


def answering_for_change_set(
    reading: ChangeSetReading, addresses: AddressBook | None = None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Handler that answers with what `reading` returns of the change set that is named."""

    async def read(request: web.Request) -> Any:
        change_set = change_set_asked(request)
        if change_set is None:
            raise web.HTTPBadRequest(text=f"{request.path}?workspace=ULID&changeSet=ULID\n")
        try:
            return await reading(change_set, request)
        except _MISSING as error:  # which has ids, and people know names
            name = await addresses.address_of(change_set) if addresses else str(change_set)
            return web.Response(status=404, text=f"{error}\n".replace(str(change_set), name))

    return answering(read)


_MAX_LETTERS: Final = 50
"""Maximum number of dead letters of a list."""

_Reading = Callable[[web.Request], Awaitable[Any]]


_SHARED_FOR: Final = 5.0  # seconds, at most


class RarelyRead(Generic[T]):
    """Result of a slow read, which pages that ask at about one time share."""

    def __init__(self, read: Callable[[], Awaitable[T]], fresh: float | None = None) -> None:
        """Share a result for `fresh` seconds, by default for ten times as long as reading takes."""
        self._read = read
        self._fresh = fresh
        self._reading = asyncio.Lock()
        self._found: T | None = None
        self._good_until = -math.inf

    async def get(self) -> T:
        """Return what a read found that began now or lately."""
        async with self._reading:
            began = time.monotonic()
            if self._found is None or began >= self._good_until:
                self._found = await self._read()
                took = time.monotonic() - began
                shared = min(_SHARED_FOR, 10 * took) if self._fresh is None else took + self._fresh
                self._good_until = began + shared
            return self._found


class OperatorPage:
    """Answers the queries of these pages; reads NATS when a browser asks, and changes nothing.

    Its change sets are those of values or, with `of_services`, keys.
    """

    def __init__(
        self, streams: Streams, batches: BatchStore, addresses: AddressBook, *, of_services: bool
    ) -> None:
        self._streams = streams
        self._batches = batches
        self._addresses = addresses
        self._of_services = of_services
        self._names = RarelyRead(self._read_names)
        self._records = RarelyRead(self._read_records)
        self._times = RarelyRead(self._edit_times)
        self._counts = RarelyRead(self._read_counts)

    def routes(self) -> list[web.RouteDef]:
        services = web.get("/services", answering(self._services))
        return [
            *([services] if self._of_services else []),
            web.get("/dead-letters", answering(self._letters)),
            web.get("/dead-letters/{number:[0-9]{1,18}}", answering(self._letter)),
            web.get("/change-sets", answering(self._change_sets)),
            web.get("/change-set/about", answering(self._about)),
            web.get("/change-set/log", answering_for_change_set(self._log, self._addresses)),
        ]

    async def _about(self, request: web.Request) -> Any:
        """The record of the change set with these ids, or with the address `at`."""
        registry = Registry(self._streams)
        change_set = change_set_asked(request)
        if change_set is None:
            found = await self._addresses.find(request.query.get("at", ""), closed=True)
            change_set = found.change_set
        ids = {"workspaceId": str(change_set.workspace_id), "id": str(change_set.change_set_id)}
        try:
            workspace = await registry.workspace(change_set.workspace_id)
            record = await registry.change_set(change_set)
        except NoSuchChangeSet:
            return {**ids, "name": None}
        return {
            **ids,
            "workspace": workspace.name,
            "name": record.name,
            "kind": record.kind.value,
            "status": record.status.value,
            "createdAt": record.created_at,
            "by": record.by,
            "head": str(record.head),
            "problem": record.problem,
        }

    async def _log(self, change_set: ChangeSet, request: web.Request) -> Any:
        """The latest commits that settle a request, and the number of all that are kept."""
        entries = await read_log(self._streams, change_set, limit=None)
        shown = islice(reversed(entries), rows_asked(request))
        return {"count": len(entries), "commits": [entry.as_dict() for entry in shown]}

    async def _letters(self, _: web.Request) -> Any:
        letters = await latest(self._streams, _MAX_LETTERS)
        return {"letters": [letter.summary() for letter in letters]}

    async def _letter(self, request: web.Request) -> Any:
        number = int(request.match_info["number"])
        letter = await load(self._streams, self._batches, number)
        return {**letter.summary(), "headers": dict(letter.headers), "asked": letter.content()}

    async def _change_sets(self, request: web.Request) -> Any:
        """Open change sets with the text in their address or id, and what is paused.

        They come by name, or the last edited first; keys then come with what waits for them, those
        with dead letters before all others. With a workspace, they are those of it with the text in
        their names.
        """
        search, workspace = (request.query.get(each, "") for each in ("search", "workspace"))
        search = search.casefold()
        pauses = await PauseStore(self._streams).all()
        names, records = await self._names.get(), await self._records.get()
        is_recent = request.query.get("order") == "recent"
        times = await self._times.get() if is_recent else {}
        waiting, dead = await self._counts.get() if is_recent and self._of_services else ({}, {})
        rows = []
        for record in self._open(records):
            address = f"{names.get(record.workspace_id, record.workspace_id)}/{record.name}"
            if workspace not in ("", str(record.workspace_id)):
                continue
            text = record.name if workspace else address
            if search in text.casefold() or search == str(record.change_set_id).casefold():
                change_set = ChangeSet(record.workspace_id, record.change_set_id)
                row = {
                    "address": address,
                    "workspaceName": names.get(record.workspace_id),
                    "name": record.name,
                    **change_set.plain(),
                    "kind": record.kind.value,
                    "status": record.status.value,
                    "pausedSince": paused_since(pauses, change_set),
                    "createdAt": record.created_at,
                    "by": record.by,
                    "edited": times.get(self._streams.commits(change_set)),
                    "requests": waiting.get(self._streams.requests(change_set), 0),
                    "deadLetters": dead.get(self._streams.dead_letters(change_set), 0),
                }
                rows.append(row)
        rows.sort(key=lambda row: natural(str(row["address"])))
        if is_recent:
            rows.sort(key=lambda row: str(row["edited"] or row["createdAt"]), reverse=True)
            rows.sort(key=lambda row: (not row["deadLetters"], not row["requests"]))
        paused = pauses_to_json(pauses.values())
        addresses = {str(key): name for key, name in names.items()} | {
            f"{record.workspace_id}.{record.change_set_id}": record.name for record in records
        }
        for pause in paused:
            ids = [pause["workspace"], pause["changeSet"]]
            keys = [".".join(ids[: n + 1]) for n in range(sum(each is not None for each in ids))]
            pause["address"] = "/".join(addresses.get(key, key[-26:]) for key in keys)
        return {"count": len(rows), "changeSets": rows[:MAX_ROWS], "paused": paused}

    def _open(self, records: Iterable[ChangeSetRecordV1]) -> Iterable[ChangeSetRecordV1]:
        for record in records:
            is_key = record.kind is ChangeSetKind.KEY
            if record.status not in CLOSED_STATUSES and is_key is self._of_services:
                yield record

    async def _services(self, request: web.Request) -> Any:
        """Services, or the one of that name, with sums over their keys: the failing ones first."""
        name, streams = request.query.get("name"), self._streams
        found: dict[WorkspaceId, dict[str, Any]] = {
            each.workspace_id: {
                "name": each.name,
                "workspace": str(each.workspace_id),
                "version": each.version,
                "handlers": each.handlers,
                **dict.fromkeys(("keys", "requests", "deadLetters"), 0),
                "edited": None,
            }
            async for each in Registry(streams).services()
            if name in (None, each.name)
        }
        times, (waiting, dead) = await self._times.get(), await self._counts.get()
        for record in self._open(await self._records.get()):
            if (row := found.get(record.workspace_id)) is not None:
                key = ChangeSet(record.workspace_id, record.change_set_id)
                row["keys"] += 1
                row["requests"] += waiting.get(streams.requests(key), 0)
                row["deadLetters"] += dead.get(streams.dead_letters(key), 0)
                edited = times.get(streams.commits(key))
                row["edited"] = max(filter(None, (row["edited"], edited)), default=None)
        if name is not None and not found:
            raise NoSuchChangeSet(f"no worker ever served a service {name!r}")
        rows = sorted(found.values(), key=lambda row: (not row["deadLetters"], row["name"]))
        return {"services": rows}

    async def _read_names(self) -> dict[WorkspaceId, str]:
        registry = Registry(self._streams)
        return {each.workspace_id: each.name async for each in registry.workspaces()}

    async def _read_records(self) -> list[ChangeSetRecordV1]:
        return [record async for record in Registry(self._streams).change_sets(None)]

    async def _read_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Numbers of waiting requests and of dead letters, by subject."""
        read, streams = self._streams.js.stream_subjects, self._streams
        waiting, dead = await asyncio.gather(
            read(streams.requests_stream), read(streams.dead_letters_stream)
        )
        return waiting, dead

    async def _edit_times(self) -> dict[str, str]:
        """Subjects of all change sets with a commit, and when they were last edited."""
        lasts = ordered_reader(
            self._streams.js,
            self._streams.commits_stream,
            deliver_policy="last_per_subject",
            headers_only=True,
        )
        times = {}
        async with lasts:
            while (entry := await lasts.next(idle_timeout=0)) is not None:
                times[entry.subject] = entry.headers.get(EDITED) or utc_text(entry.timestamp)
        return times


_MISSING: Final = (
    *(NoSuchLetter, NoSuchChangeSet, AmbiguousAddress),
    *(NotABranch, NotRetained, NotRevertible),
)
_AWAY: Final = (RebaserError, nats.errors.Error, OSError)


def answering(reading: _Reading) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that answers with what `reading` returns, or with its error."""

    async def answer(request: web.Request) -> web.Response:
        try:
            found = await reading(request)
        except ValidationError as error:
            return web.Response(status=400, text=f"{first_error(error)}\n")
        except _MISSING as error:
            return web.Response(status=404, text=f"{error}\n")
        except _AWAY as error:
            return web.Response(status=503, text=f"{error}\n")
        if isinstance(found, web.Response):
            return found
        return web.json_response(text=await asyncio.to_thread(json.dumps, found))

    return answer


_FRESH: Final = 30.0  # seconds for which a name, or its absence, is cached
AT_ONCE: Final = 40
"""Maximum number of names that one status reads; later ones read the others."""

Row = Mapping[str, Any]


class NameCache:
    """Names by `<workspace>` and `<workspace>.<change set>`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[str, tuple[float, str | None]] = {}

    async def lookup(self, rows: Iterable[Row]) -> dict[str, str]:
        """The names of the workspaces and change sets in these rows.

        Raises:
            NatsUnreachable, ApiError: NATS does not answer.
        """
        wanted = dict.fromkeys(key for row in rows for key in _keys(row))
        self._known = {key: known for key, known in self._known.items() if key in wanted}
        old = time.monotonic() - _FRESH
        missing = (key for key in wanted if key not in self._known)
        stale = (key for key, (looked, _) in self._known.items() if looked < old)
        await asyncio.gather(*map(self._look_up, [*islice(chain(missing, stale), AT_ONCE)]))
        return {key: name for key, (_, name) in self._known.items() if name is not None}

    async def _look_up(self, key: str) -> None:
        workspace, _, change_set = key.partition(".")
        try:
            found: Awaitable[Any] = (
                self._registry.change_set(
                    ChangeSet(WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set))
                )
                if change_set
                else self._registry.workspace(WorkspaceId.from_str(workspace))
            )
            name = (await found).name
        except (NoSuchChangeSet, MessageError, ValueError):
            name = None
        self._known[key] = time.monotonic(), name


def _keys(row: Row) -> list[str]:
    workspace, change_set = row.get("workspace"), row.get("changeSet")
    if not workspace:
        return []
    return [workspace, f"{workspace}.{change_set}"] if change_set else [workspace]
