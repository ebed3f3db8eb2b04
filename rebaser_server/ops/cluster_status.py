"""The status of every Rebaser of the deployment, requested over plain NATS.

An empty request gets a report. A request with a change set gets the sketch of its latest update
in that Rebaser, if there is one; with `onlookers` before it, who looks at it there.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream.connection import request_all, subscribed
from rebaser_core.subjects import Subjects
from rebaser_server.runtime.containment import contained

TIMEOUT: Final = 0.3  # seconds for all replies
MOST_OCTETS: Final = 200_000
"""Octets of one reply; a longer one is not a Rebaser's."""
ONLOOKERS: Final = "onlookers"

Report = dict[str, Any]


class StatusSource(Protocol):
    """The status of this Rebaser."""

    def own(self) -> Report: ...

    def sketch(self, change_set: ChangeSet) -> Report | None: ...

    def onlookers(self, change_set: ChangeSet) -> list[str]: ...


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
        kind, _, key = request.decode().rpartition(" ")
        workspace, _, change_set = key.partition(".")
        change_set_key = ChangeSet(
            WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set)
        )
        if kind == ONLOOKERS:
            return {"onlookers": self._source.onlookers(change_set_key)}
        return {"sketch": self._source.sketch(change_set_key)}

    async def reports(self, expected: int) -> list[Report]:
        """Reports of `expected` Rebasers, or of those that reply in time, in stable order."""
        reports = await self._request_all(b"", expected)
        return sorted(reports, key=lambda report: str(report.get("instance", "")))

    async def sketch(self, change_set: ChangeSet, expected: int) -> Report | None:
        """The sketch of the change set's latest update in any Rebaser."""
        answers = await self._request_all(str(change_set).encode(), expected)
        sketches: list[Report] = [answer["sketch"] for answer in answers if answer.get("sketch")]
        return max(sketches, key=lambda sketch: str(sketch.get("began")), default=None)

    async def onlookers(self, change_set: ChangeSet, expected: int) -> set[str]:
        """Who looks at the change set on a page of any Rebaser; older ones do not say."""
        answers = await self._request_all(f"{ONLOOKERS} {change_set}".encode(), expected)
        return {str(name) for answer in answers for name in answer.get("onlookers", ())}

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
