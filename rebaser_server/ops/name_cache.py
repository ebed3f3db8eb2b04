"""Names of the workspaces and change sets in a status, read from the registry and cached."""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final

from rebaser_client.errors import NoSuchChangeSet
from rebaser_client.registry import Registry
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId

FRESH: Final = 30.0  # seconds for which a name, or its absence, is cached
AT_ONCE: Final = 40
"""Names that one status reads at most; later ones read the others."""

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
        old = time.monotonic() - FRESH
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
