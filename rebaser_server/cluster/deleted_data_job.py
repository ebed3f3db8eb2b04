"""Remove the data of deleted change sets after their retention time, by one Rebaser."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Never

import structlog

from rebaser_client.registry import Registry
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError, KeyValue
from rebaser_core.records import ChangeSetKind, ChangeSetRecordV1, ChangeSetStatus
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import RunEnded
from rebaser_server.files import SharedFiles, change_set_directory
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()


class DeletedDataJob:
    """Each step may be repeated, also by two Rebasers at once.

    The last commit of a deleted change set stays, a few hundred bytes: because of it every
    later request is refused, and no former owner can begin the change set anew. Its batches
    are garbage then, which is collected.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        files: SharedFiles,
        members: Membership,
        *,
        keep: float,
    ) -> None:
        """`keep`: seconds between a change set's deletion and the removal of its data."""
        self._js = js
        self._subjects = subjects
        self._registry = Registry(js, subjects, self._skip)
        self._unreadable: set[str] = set()
        """Workspaces with an unreadable record: the first part of the record's key."""
        self._files = files
        self._members = members
        self._keep = keep

    async def run(self, period: float) -> Never:
        """Remove due data about every `period` seconds until cancelled; retry what fails."""
        await repeat_every(period, self._round, "forgetting")

    async def _round(self) -> None:
        if self._members.rank() == 0:
            for change_set in await self.purge():
                log.info("deleted data removed", change_set=str(change_set))

    async def purge(self) -> list[ChangeSet]:
        """Remove the due data; return the change sets that it was of.

        A workspace with a record that this release cannot read keeps all its data: the record
        may be of a branch that still needs its base.
        """
        self._unreadable.clear()
        records = [record async for record in self._registry.change_sets(None)]
        due = await self._due(records)
        pinned = await self._pinned(records) if due else set()
        gone = []
        for record in due:
            change_set = ChangeSet(record.workspace_id, record.change_set_id)
            if change_set in pinned or str(record.workspace_id) in self._unreadable:
                continue
            with contained("change set", passing=(JetStreamError,), change_set=change_set):
                await self._remove(change_set)
                if record.kind == ChangeSetKind.HEAD:
                    await self._registry.delete_workspace(record.workspace_id)
                await self._registry.delete(change_set)
                gone.append(change_set)
        return gone

    def _skip(self, key: str, error: MessageError) -> None:
        self._unreadable.add(key.partition(".")[0])
        with contained("record", key=key):
            raise error

    async def _due(self, records: Iterable[ChangeSetRecordV1]) -> list[ChangeSetRecordV1]:
        """Return those due by Rebasers' clocks and by NATS's: a wrong clock makes nothing old."""
        due = [record for record in records if self._is_due(record)]
        if not due:
            return []
        name = self._subjects.change_sets_bucket
        latest = (await self._js.stream_info(f"KV_{name}")).ts - timedelta(seconds=self._keep)
        bucket = KeyValue(self._js, name)
        keys = [f"{record.workspace_id}.{record.change_set_id}" for record in due]
        stored = [await bucket.last(key) for key in keys]
        return [
            record
            for record, entry in zip(due, stored, strict=True)
            if entry is not None and entry.created <= latest
        ]

    def _is_due(self, record: ChangeSetRecordV1) -> bool:
        if record.standing != ChangeSetStatus.DELETED or record.closed_at is None:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(record.closed_at)
        return age.total_seconds() >= self._keep

    async def _pinned(self, records: Iterable[ChangeSetRecordV1]) -> set[ChangeSet]:
        """Return the change sets that an unstarted branch was forked from."""
        pinned = set()
        for record in records:
            if record.base is None or record.standing != ChangeSetStatus.OPEN:
                continue
            branch = ChangeSet(record.workspace_id, record.change_set_id)
            try:
                _, last = await CommitLog(self._js, self._subjects, branch).last()
            except RunEnded:  # an unreadable commit: the base may be needed
                last = None
            if last is None or (last.control.branch and last.control.branch.cursor is None):
                pinned.add(ChangeSet(record.workspace_id, record.base.change_set_id))
        return pinned

    async def _remove(self, change_set: ChangeSet) -> None:
        """Remove the log but for its last commit, and the checkpoints."""
        commits = CommitLog(self._js, self._subjects, change_set)
        last, _ = await commits.last()
        await commits.purge(last)
        await asyncio.to_thread(self._files.delete_directory, change_set_directory(change_set))
