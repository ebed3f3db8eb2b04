"""Presentation of an application to clients and browsers, beyond replies to requests."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Never

from aiohttp import web

from rebaser_client.workspaces import AddressBook
from rebaser_server.ops.actions import Action
from rebaser_server.queries.query_service import QueryKind
from rebaser_server.runtime.tasks import wait_forever


class Presentation:
    """The queries, pages and actions of an application.

    An application without any takes this class as it is.
    """

    of_services: ClassVar = False
    """Whether its pages are about services and their keys, in place of values."""

    @property
    def queries(self) -> Sequence[QueryKind[Any, Any]]:
        """Kinds of queries, and how each is answered."""
        return ()

    @property
    def actions(self) -> Mapping[str, Action[Any]]:
        """Actions of pages, by the last part of their paths."""
        return {}

    def routes(self, addresses: AddressBook) -> list[web.RouteDef]:
        """Return the paths that its pages ask; `addresses` finds change sets by their names."""
        del addresses
        return []

    @property
    def impure(self) -> list[dict[str, Any]]:
        """Notes of functions that came to two results from the same inputs, the latest first."""
        return []

    async def run(self) -> Never:
        """Work beside the pages until cancelled."""
        await wait_forever()
