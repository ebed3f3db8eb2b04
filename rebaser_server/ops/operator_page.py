"""What the operators' page lists: dead letters with their requests, pauses, and change sets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from rebaser_client.registry import Registry
from rebaser_client.workspaces import CLOSED_STATUSES
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.pauses import PauseStore, paused_since, pauses_to_json
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.ops.actions.dead_letters import NoSuchLetter, latest, load

MAX_ROWS: Final = 100
"""Change sets of a list."""
MAX_LETTERS: Final = 50
"""Dead letters of a list."""

Reading = Callable[[web.Request], Awaitable[Any]]


class OperatorPage:
    """Answers the page's questions; reads NATS when a browser asks, and changes nothing."""

    def __init__(self, js: JetStream, subjects: Subjects, batches: BatchStore) -> None:
        self._js = js
        self._subjects = subjects
        self._batches = batches
        self._listing = asyncio.Lock()
        """All change sets are read to search them: once at a time."""

    def routes(self) -> list[web.RouteDef]:
        """What a browser may ask."""
        return [
            web.get("/dead-letters", _answering(self._letters)),
            web.get("/dead-letters/{number:[0-9]{1,18}}", _answering(self._letter)),
            web.get("/change-sets", _answering(self._change_sets)),
        ]

    async def _letters(self, _: web.Request) -> Any:
        letters = await latest(self._js, self._subjects, MAX_LETTERS)
        return {"letters": [letter.summary() for letter in letters]}

    async def _letter(self, request: web.Request) -> Any:
        number = int(request.match_info["number"])
        letter = await load(self._js, self._subjects, self._batches, number)
        return {**letter.summary(), "headers": dict(letter.headers), "asked": letter.content()}

    async def _change_sets(self, request: web.Request) -> Any:
        """Open change sets with the text in their address or id, and what is paused."""
        search = request.query.get("search", "").casefold()
        registry = Registry(self._js, self._subjects)
        async with self._listing:
            pauses = await PauseStore(self._js, self._subjects).all()
            names = {each.workspace_id: each.name async for each in registry.workspaces()}
            records = [record async for record in registry.change_sets(None)]
        rows = []
        for record in records:
            if record.standing in CLOSED_STATUSES:
                continue
            address = f"{names.get(record.workspace_id, record.workspace_id)}/{record.name}"
            if search in address.casefold() or search == str(record.change_set_id).casefold():
                change_set = ChangeSet(record.workspace_id, record.change_set_id)
                row = {
                    "address": address,
                    "workspace": str(record.workspace_id),
                    "changeSet": str(record.change_set_id),
                    "kind": record.kind.value,
                    "standing": record.standing.value,
                    "pausedSince": paused_since(pauses, change_set),
                }
                rows.append(row)
        rows.sort(key=lambda row: str(row["address"]))
        paused = pauses_to_json(pauses.values())
        addresses = {str(key): name for key, name in names.items()} | {
            f"{record.workspace_id}.{record.change_set_id}": record.name for record in records
        }
        for pause in paused:
            ids = [pause["workspace"], pause["changeSet"]]
            keys = [".".join(ids[: n + 1]) for n in range(sum(each is not None for each in ids))]
            pause["address"] = "/".join(addresses.get(key, key[-26:]) for key in keys)
        return {"count": len(rows), "changeSets": rows[:MAX_ROWS], "paused": paused}


def _answering(reading: Reading) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(await reading(request))
        except NoSuchLetter as error:
            return web.Response(status=404, text=f"{error}\n")
        except (RebaserError, JetStreamError, OSError) as error:
            return web.Response(status=503, text=f"{error}\n")

    return answer
