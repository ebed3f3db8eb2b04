"""The data of deleted change sets: gone once the retention time is over, by one Rebaser."""

import asyncio
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Never

import structlog

from rebaser_client.registry import Registry
from rebaser_core.change_sets import ChangeSetRecordV1, Kind, Standing
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.files import Files
from rebaser_server.fleet.members import Members
from rebaser_server.history.commit_log import CommitLog

log: Final = structlog.get_logger()


class Forgetting:
    """Each step may be repeated; that two do it at once harms nothing.

    Of a deleted change set its last line stays, a few hundred bytes: by it whatever is
    still sent there is refused, and no former owner can begin it anew. Batches that
    nothing refers to any more are garbage, which is collected.
    """

    def __init__(
        self, js: JetStream, subjects: Subjects, files: Files, members: Members, *, keep: float
    ) -> None:
        """`keep`: seconds from when it was deleted."""
        self._js = js
        self._subjects = subjects
        self._registry = Registry(js, subjects)
        self._files = files
        self._members = members
        self._keep = keep

    async def run(self, every: float) -> Never:
        """Look every so many seconds, more or less, until cancelled; what fails is tried again."""
        while True:
            await asyncio.sleep(every * random.uniform(0.75, 1.25))  # noqa: S311 - jitter
            if self._members.rank() > 0:
                continue
            try:
                for change_set in await self.forget():
                    log.info("forgotten", change_set=str(change_set))
            except (OSError, JetStreamError) as error:
                log.warning("deleted change sets not forgotten", error=str(error))

    async def forget(self) -> list[ChangeSet]:
        """Remove what is due; which change sets that was."""
        records = [record async for record in self._registry.change_sets(None)]
        due = [record for record in records if self._is_due(record)]
        pinned = await self._pinned(records) if due else set()
        gone = []
        for record in due:
            change_set = ChangeSet(record.workspace_id, record.change_set_id)
            if change_set not in pinned:
                await self._remove(change_set)
                if record.kind == Kind.HEAD:
                    await self._registry.forget_workspace(record.workspace_id)
                await self._registry.forget(change_set)
                gone.append(change_set)
        return gone

    def _is_due(self, record: ChangeSetRecordV1) -> bool:
        if record.standing != Standing.DELETED or record.closed_at is None:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(record.closed_at)
        return age.total_seconds() >= self._keep

    async def _pinned(self, records: Iterable[ChangeSetRecordV1]) -> set[ChangeSet]:
        """Those that a branch was forked from which nobody has taken up yet."""
        pinned = set()
        for record in records:
            if record.base is None or record.standing != Standing.OPEN:
                continue
            branch = ChangeSet(record.workspace_id, record.change_set_id)
            _, last = await CommitLog(self._js, self._subjects, branch).last()
            if last is None or (last.head.branch and last.head.branch.cursor is None):
                pinned.add(ChangeSet(record.workspace_id, record.base.change_set_id))
        return pinned

    async def _remove(self, change_set: ChangeSet) -> None:
        """The log but for its last line, and the checkpoints."""
        commits = CommitLog(self._js, self._subjects, change_set)
        last, _ = await commits.last()
        await commits.purge(last)
        directory = f"change_sets/{change_set.workspace_id}/{change_set.change_set_id}"
        await asyncio.to_thread(self._files.delete_directory, directory)
