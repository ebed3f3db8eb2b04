"""When a change set's state is written to the store, and the log behind it purged."""

import asyncio
from typing import Final

import structlog

from rebaser_core.jetstream import JetStreamError
from rebaser_server.ownership import Ownership
from rebaser_server.store.checkpoints import changes_of

log: Final = structlog.get_logger()


class Checkpointing:
    """The checkpoints of one run. A store that fails is logged: the log still has everything."""

    def __init__(self, own: Ownership, every: int) -> None:
        self._own = own
        self._every = every
        self._whole = own.checkpointed == 0

    async def when_long(self) -> None:
        """Write one if the log has grown by enough lines since the last."""
        if self._own.lines >= self._every:
            await self.now()

    async def when_quiet(self) -> None:
        """Write one if a request was handled since the last."""
        if self._own.handled:
            await self.now()

    async def now(self) -> None:
        """Write one, then purge the log up to the one *before* it.

        So a store that loses its last write, for want of an fsync, still meets a log
        that goes back far enough.
        """
        own, archive = self._own, self._own.archive
        async with own.lock:
            state = own.state
            changes = await asyncio.to_thread(
                changes_of, state.graph, state.commit, state.small(), whole=self._whole
            )
            before, own.checkpointed = own.checkpointed, state.commit
            own.lines = own.handled = 0
        try:
            self._whole = await asyncio.to_thread(
                archive.checkpoints.save, archive.change_set, changes
            )
            if before:
                await self._forget(before)
        except (OSError, JetStreamError) as error:
            self._whole = True  # what it had to say is no longer marked as changed
            own.checkpointed = before
            log.warning("no checkpoint", change_set=str(archive.change_set), error=str(error))

    async def _forget(self, up_to: int) -> None:
        """Purge the log up to line `up_to`, and what only those lines referred to."""
        archive, state = self._own.archive, self._own.state
        await archive.log.purge(up_to)
        for line, address in list(state.stored):
            if line <= up_to:
                await archive.batches.discard(address)
                state.stored.remove((line, address))
