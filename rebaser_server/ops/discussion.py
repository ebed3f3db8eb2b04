"""The comments on a change set, and who looks at it, for its page."""

from typing import Any, Final

import nats.errors
from aiohttp import web

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_server.ops.change_set_page import change_set_asked
from rebaser_server.ops.cluster_status import Peers
from rebaser_server.ops.context import OpsContext

MAX_COMMENTS: Final = 100
"""Comments of a list, the latest."""


class Discussion:
    """Answers a page that is looked at, every few seconds; that it asks says who looks at it."""

    def __init__(self, context: OpsContext, peers: Peers) -> None:
        self._context = context
        self._peers = peers

    async def respond(self, request: web.Request) -> web.Response:
        """`/change-set/discussion?…&known=NUMBER`: the comments are null if they are known."""
        change_set = change_set_asked(request)
        visitor = self._context.guard.visitor(request)
        if change_set is None or visitor is None:
            return web.Response(status=400, text=f"{request.path}?workspace=ULID&changeSet=ULID\n")
        self._context.onlookers.see(change_set, visitor.name)
        try:
            names = await self._peers.onlookers(change_set, self._context.members.alive())
            names.update(self._context.onlookers.of(change_set))  # others may have been quicker
            return web.json_response(
                {
                    "onlookers": sorted(names - {visitor.name}),
                    **await self._comments(change_set, request.query.get("known", "")),
                }
            )
        except (RebaserError, JetStreamError, nats.errors.Error, OSError) as error:
            return web.Response(status=503, text=f"{error}\n")

    async def _comments(self, change_set: ChangeSet, known: str) -> dict[str, Any]:
        registry = self._context.registry
        last = await registry.last_comment(change_set)
        if known == str(last):
            return {"last": last, "comments": None}
        comments = await registry.comments(change_set)
        rows = [
            {"id": str(each.id), "at": each.created_at, "by": each.by, "text": each.text}
            for each in comments[-MAX_COMMENTS:]
        ]
        return {"last": last, "count": len(comments), "comments": rows}
