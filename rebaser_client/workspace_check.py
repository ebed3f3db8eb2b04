"""Whether a workspace and a change set belong together, as far as the registry knows."""

import asyncio
from collections import OrderedDict
from typing import Final

from rebaser_client.errors import NotInWorkspace
from rebaser_client.registry import Registry
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.deadlines import within

LOOKUP_TIMEOUT: Final = 2.0  # seconds
RETRY_AFTER_FAILURE: Final = 60.0
"""Seconds without a lookup after one that failed: the registry may not be permitted."""

_MAX_KNOWN: Final = 10_000
"""Pairs that are remembered."""


class WorkspaceCheck:
    """Looks a pair up once: one read if it is registered, two if it is not."""

    def __init__(self, registry: Registry | None) -> None:
        """`registry`: None where this client may not read what other workspaces have."""
        self._registry = registry
        self._known: OrderedDict[ChangeSet, None] = OrderedDict()
        self._suspended_until = float("-inf")

    async def check(self, change_set: ChangeSet) -> None:
        """Return unless the pair is known not to belong together. May be cancelled and repeated.

        A pair of which the registry knows nothing may be in use all the same. Where the
        registry does not answer, or may not be asked, nothing is known of any pair.

        Raises:
            NotInWorkspace: the change set is another workspace's, or the id of a workspace.
        """
        if self._registry is None or change_set in self._known:
            return
        clock = asyncio.get_running_loop().time
        if clock() < self._suspended_until:
            return
        try:
            async with within(LOOKUP_TIMEOUT):
                objection = await _mismatch(self._registry, change_set)
        except (JetStreamError, TimeoutError, ValueError):  # a key may be anything
            self._suspended_until = clock() + RETRY_AFTER_FAILURE
            return
        if objection is not None:
            raise NotInWorkspace(objection)
        self._known[change_set] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


async def _mismatch(registry: Registry, change_set: ChangeSet) -> str | None:
    workspace_id, change_set_id = change_set
    home = await registry.workspace_of(change_set_id)
    if home == workspace_id:
        return None
    if home is not None:
        if await registry.has_change_set(change_set):
            return None
        return f"change set {change_set_id} belongs to workspace {home}, not {workspace_id}"
    workspace = WorkspaceId.from_bytes(change_set_id.bytes)
    if not await registry.has_workspace(workspace):
        return None
    swapped = ChangeSet(workspace, ChangeSetId.from_bytes(workspace_id.bytes))
    if await registry.has_change_set(swapped):
        return (
            f"these are swapped: {workspace} is the workspace, {swapped.change_set_id} the "
            "change set"
        )
    return f"{change_set_id} is a workspace, not a change set"
