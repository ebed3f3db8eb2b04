"""Presentation of values to clients and browsers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Never

from aiohttp import web

from rebaser_client.workspaces import AddressBook
from rebaser_server.compute.memo import ImpureFunctions
from rebaser_server.files import shared_files
from rebaser_server.ops.actions import Action
from rebaser_server.ops.pages import ChangeSetPage
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.value_actions import VALUE_ACTIONS
from rebaser_server.processor.context import Services
from rebaser_server.queries.query_service import QueryKind
from rebaser_server.queries.value_queries import ValueQueries
from rebaser_server.runtime.containment import repeat_every

_LOOK_EVERY: Final = 60.0
"""Seconds between two looks whether functions were found that are not pure."""


class ValuePresentation(Presentation):
    """The queries, pages and actions of the value graph."""

    def __init__(self, services: Services) -> None:
        self._streams = services.streams
        self._queries = ValueQueries(services.loader)
        self._impure = ImpureFunctions(shared_files(services.batches.files))

    @property
    def queries(self) -> Sequence[QueryKind[Any, Any]]:
        return self._queries.kinds()

    @property
    def actions(self) -> Mapping[str, Action[Any]]:
        return VALUE_ACTIONS

    def routes(self, addresses: AddressBook) -> list[web.RouteDef]:
        return ChangeSetPage(self._streams, self._queries, self._impure, addresses).routes()

    @property
    def impure(self) -> list[dict[str, Any]]:
        return self._impure.latest

    async def run(self) -> Never:
        """Look again and again whether functions were found that are not pure."""
        await repeat_every(
            _LOOK_EVERY, lambda: asyncio.to_thread(self._impure.look), "impure", first_delay=0
        )
