"""When a change set's state is written to the store, and the log behind it purged."""

import asyncio
import time
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStreamError
from rebaser_server.commit_log.retention import KEPT, Kept, Retention
from rebaser_server.commit_log.table_maintenance import Upkeep
from rebaser_server.errors import RetryLater
from rebaser_server.processor.ownership import Ownership
from rebaser_server.store.checkpoints import CheckpointChanges, restore_touched, take_changes
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

STORE_DELAY: Final = 5.0  # seconds until a store is asked again that work cannot go on without

MANY: Final = 50_000
"""Values that, changed since the last checkpoint, are reason for the next, if they are a part
of all: what is replayed from the log takes some fifty times as long as what is loaded."""

PART: Final = 16
"""Which part of all they have to be."""


class Checkpointing:
    """The checkpoints of one run, written beside its requests, one at a time.

    A store that fails is logged: the log still has everything.
    """

    def __init__(self, own: Ownership, every: int, retention: Retention, upkeep: Upkeep) -> None:
        """`every`: lines of the log from one checkpoint to the next while requests come."""
        self._own = own
        self._every = every
        self._retention = retention
        self._upkeep = upkeep
        self._due = asyncio.Event()
        self._one = asyncio.Lock()
        self._missed = 0
        """Lines that checkpoints which failed would have covered."""

    async def run(self) -> Never:
        """Write one whenever the log has become long enough, until cancelled.

        Requests wait only while it is noted what has changed since the last one.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            await self.now()

    def when_long(self) -> None:
        """Have one written if the log has grown by enough since the last: in lines or in values.

        So loading takes a bounded time longer than loading a checkpoint alone.
        """
        graph = self._own.state.graph
        many = max(MANY, len(graph.values) // PART)
        if self._own.lines >= self._every or len(graph.touched) >= many:
            self._due.set()

    def soon(self) -> None:
        """Have one written now, beside the requests."""
        self._due.set()

    async def when_quiet(self) -> None:
        """Write one if a request was handled since the last."""
        async with self._one:
            if self._own.handled:
                await self._now()

    async def now(self) -> None:
        """Write one, then purge the log as far as the past need not be kept."""
        async with self._one:
            await self._now()

    async def require(self) -> None:
        """Write one of what the log has not; raise `RetryLater` if that cannot be done now."""
        await self.now()
        if self._own.checkpointed != self._own.state.commit:
            raise RetryLater("the store did not take a branch's first checkpoint", STORE_DELAY)

    async def _now(self) -> None:
        own, archive = self._own, self._own.archive
        async with own.lock:
            if own.state.commit == own.checkpointed:
                return  # asked for twice; counted twice it would be the one before itself
            if own.spoiled:
                return
            state, before, lines, handled = own.state, own.kept, own.lines, own.handled
            kept = [*before, Kept(state.commit, time.time(), self._missed + lines)]
            small = {**state.small(), KEPT: kept}
            changes = await asyncio.to_thread(
                take_changes, state.graph, state.commit, small, whole=own.checkpointed == 0
            )
            own.lines = own.handled = 0
        try:
            with metrics.CHECKPOINT_SECONDS.time():
                await asyncio.to_thread(archive.checkpoints.save, archive.change_set, changes)
        except OSError as error:
            metrics.CHECKPOINTS.labels("failed").inc()
            log.warning("checkpoint failed", change_set=str(archive.change_set), error=str(error))
            await self._not_written(changes, lines, handled)
            return
        metrics.CHECKPOINTS.labels("written").inc()
        metrics.CHECKPOINT_ROWS.inc(changes.rows.num_rows)
        own.checkpointed, own.kept, self._missed = changes.commit, kept, 0
        try:
            await self._forget()
        except (OSError, JetStreamError) as error:
            log.warning("log purge failed", change_set=str(archive.change_set), error=str(error))

    async def _not_written(self, changes: CheckpointChanges, lines: int, handled: int) -> None:
        """What it had to say is for the next one to say."""
        own = self._own
        async with own.lock:
            restore_touched(own.state.graph, changes)
            own.handled += handled
            self._missed += lines  # not to those due: it is tried again after as many more

    async def _forget(self) -> None:
        """Purge the log up to where the past may begin, and what only those lines referred to."""
        own, archive, stored = self._own, self._own.archive, self._own.state.stored
        start = self._retention.start(own.kept, [line for line, _ in stored], time.time())
        if start:
            own.kept = [checkpoint for checkpoint in own.kept if checkpoint.commit >= start]
            await archive.log.purge(start)
            for line, address in list(stored):
                if line <= start:
                    await archive.batches.forget(address)
                    stored.remove((line, address))
        self._upkeep.look_after(archive.change_set, start)
