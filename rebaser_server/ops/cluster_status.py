"""The status of every Rebaser of the deployment, requested over plain NATS.

An empty request gets a report. A request with a change set gets the sketch of its latest update
in that Rebaser, if there is one.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream.connection.subscription import request_all, subscribed
from rebaser_core.subjects import Subjects
from rebaser_server.runtime.containment import contained

TIMEOUT: Final = 0.3  # seconds for all replies
MOST_OCTETS: Final = 200_000
"""Octets of one reply; a longer one is not a Rebaser's."""

Report = dict[str, Any]


class StatusSource(Protocol):
    """The status of this Rebaser."""

    def own(self) -> Report: ...

    def sketch(self, change_set: ChangeSet) -> Report | None: ...


class Peers:
    """Replies with this Rebaser's status, and requests that of all Rebasers."""

    def __init__(self, nc: Client, subjects: Subjects, source: StatusSource) -> None:
        self._nc = nc
        self._subject = subjects.join("rebaser.status")
        self._source = source

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Reply to requests for as long as the body runs."""
        async with subscribed(self._nc, self._subject, self._reply):
            yield

    async def _reply(self, request: Msg) -> None:
        if request.reply:
            with suppress(nats.errors.Error, OSError, ValueError):
                reply = json.dumps(self._status(request.data))
                await self._nc.publish(request.reply, reply.encode())

    def _status(self, request: bytes) -> Report:
        if not request:
            return self._source.own()
        workspace, _, change_set = request.decode().partition(".")
        change_set_key = ChangeSet(
            WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set)
        )
        return {"sketch": self._source.sketch(change_set_key)}

    async def reports(self, expected: int) -> list[Report]:
        """Reports of `expected` Rebasers, or of those that reply in time, in stable order."""
        reports = await self._request_all(b"", expected)
        return sorted(reports, key=lambda report: str(report.get("instance", "")))

    async def sketch(self, change_set: ChangeSet, expected: int) -> Report | None:
        """The sketch of the change set's latest update in any Rebaser."""
        request = f"{change_set.workspace_id}.{change_set.change_set_id}".encode()
        answers = await self._request_all(request, expected)
        sketches: list[Report] = [answer["sketch"] for answer in answers if answer.get("sketch")]
        return max(sketches, key=lambda sketch: str(sketch.get("began")), default=None)

    async def _request_all(self, request: bytes, expected: int) -> list[Report]:
        reports: list[Report] = []

        def read(reply: Msg) -> bool:
            if len(reply.data) <= MOST_OCTETS:
                with contained("announcement"):
                    report = json.loads(reply.data)
                    reports.append(dict(report.items()))
            return len(reports) >= expected

        await request_all(self._nc, self._subject, request, read, TIMEOUT)
        return reports
