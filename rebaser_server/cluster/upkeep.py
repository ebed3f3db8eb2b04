"""Upkeep by one Rebaser for all: garbage, deleted data, configuration and capacity.

The Rebaser that does it may change at any time. `GarbageJob` removes garbage, `DeletedDataJob` the
data of deleted change sets after their retention time. `Monitor` checks whether NATS is configured
as it must be, and whether requests wait (X3). `CapacityCheck` checks whether the tasks' consumer
lets all Rebasers together fill their slots.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Never

import structlog

from rebaser_core.errors import MessageError, UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError, KeyValue
from rebaser_core.records import ChangeSetKind, ChangeSetRecordV1, ChangeSetStatus
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.provisioning import Provisioner, report
from rebaser_server.cluster.tasks import LeaseTerms
from rebaser_server.commit_log.garbage_collection import GarbageCollector
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import RunEnded
from rebaser_server.files import (
    StoreFiles,
    change_set_directory,
    impure_directory,
    memo_directory,
    tables_directory,
)
from rebaser_server.processor.context import Services
from rebaser_server.runtime.containment import contained, printable, repeat_every
from rebaser_server.settings.settings import StoreSettings

log: Final = structlog.get_logger()


_LOOKS: Final = 4
"""Number of looks for garbage in the time for which it is kept: all of it is gone soon after."""


class GarbageJob:
    """Collects garbage for as long as this Rebaser comes first among the living.

    So it is done once as a rule; doing it twice harms nothing.
    """

    def __init__(self, collector: GarbageCollector, members: Membership, period: float) -> None:
        """Collect with `period` seconds between two collections, more or less."""
        self._collector = collector
        self._members = members
        self._period = period

    @classmethod
    def of(cls, services: Services, members: Membership, store: StoreSettings) -> "GarbageJob":
        grace = store.orphan_retention.total_seconds()
        application, batches = services.application, services.batches
        read, holdings = application.kept_metadata, application.holdings
        collector = GarbageCollector(services.streams, batches, read, holdings, grace)
        return cls(collector, members, grace / _LOOKS)

    async def run(self) -> Never:
        """Collect once a period, until cancelled. A failure is logged; the next period retries."""
        await repeat_every(self._period, self.collect, "collection")

    async def collect(self) -> None:
        """Find and remove garbage, unless another Rebaser does."""
        if self._members.rank() > 0:
            return
        garbage = await self._collector.find()
        await self._collector.remove(garbage)
        if counts := garbage.counts():
            log.info("garbage collected", **counts)


class DeletedDataJob:
    """Removes the data of deleted change sets.

    Each step may be repeated, also by two Rebasers at once.

    The last commit of a deleted change set stays, a few hundred bytes: it makes every later request
    be refused, and keeps former owners from beginning the change set anew. Its batches are garbage
    then.
    """

    def __init__(
        self,
        streams: Streams,
        files: StoreFiles,
        members: Membership,
        *,
        keep: float,
        published: StoreFiles | None = None,
    ) -> None:
        """Remove data `keep` seconds after the deletion of a change set.

        `published`: the folder where the tables of heads are published, if they are.
        """
        self._streams = streams
        self._registry = Registry(streams, self._skip)
        self._unreadable: set[str] = set()
        """Workspaces with an unreadable record: the first part of the record's key."""
        self._files = files
        self._members = members
        self._keep = keep
        self._published = published

    async def run(self, period: float) -> Never:
        """Remove due data about every `period` seconds until cancelled; retry what fails."""
        await repeat_every(period, self._round, "forgetting")

    async def _round(self) -> None:
        if self._members.rank() == 0:
            for change_set in await self.purge():
                log.info("deleted data removed", change_set=str(change_set))

    async def purge(self) -> list[ChangeSet]:
        """Remove the due data; return its change sets.

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
                    for directory in (memo_directory, impure_directory, tables_directory):
                        gone_too = directory(str(record.workspace_id))
                        await asyncio.to_thread(self._files.delete_directory, gone_too)
                    if self._published is not None:
                        folder = str(record.workspace_id)
                        await asyncio.to_thread(self._published.delete_directory, folder)
                    await self._registry.delete_workspace(record.workspace_id)
                # The record goes last: if the process dies before, the next round removes the rest.
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
        js, name = self._streams.js, self._streams.change_sets_bucket
        latest = (await js.stream_info(f"KV_{name}")).ts - timedelta(seconds=self._keep)
        bucket = KeyValue(js, name)
        keys = [f"{record.workspace_id}.{record.change_set_id}" for record in due]
        stored = [await bucket.last(key) for key in keys]
        return [
            record
            for record, entry in zip(due, stored, strict=True)
            if entry is not None and entry.created <= latest
        ]

    def _is_due(self, record: ChangeSetRecordV1) -> bool:
        if record.status != ChangeSetStatus.DELETED or record.closed_at is None:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(record.closed_at)
        return age.total_seconds() >= self._keep

    async def _pinned(self, records: Iterable[ChangeSetRecordV1]) -> set[ChangeSet]:
        """Return the change sets that an unstarted branch was forked from."""
        pinned = set()
        for record in records:
            if record.base is None or record.status != ChangeSetStatus.OPEN:
                continue
            branch = ChangeSet(record.workspace_id, record.change_set_id)
            try:
                _, last = await CommitLog(self._streams, branch).last()
            except RunEnded:  # an unreadable commit: the base may be needed
                last = None
            if last is None or (last.control.branch and last.control.branch.cursor is None):
                pinned.add(ChangeSet(record.workspace_id, record.base.change_set_id))
        return pinned

    async def _remove(self, change_set: ChangeSet) -> None:
        """Remove the log but for its last commit, and the checkpoints."""
        commits = CommitLog(self._streams, change_set)
        last, _ = await commits.last()
        await commits.purge(last)
        await asyncio.to_thread(self._files.delete_directory, change_set_directory(change_set))


ALERT_AFTER: Final = 600.0
"""Seconds that a request may wait: longer than what repairs itself, as a takeover after a lease or
a rolling restart."""
_MAX_REPORTED: Final = 10
"""Maximum number of requests that one pass reads."""


class Monitor:
    """Logs what Rebasers cannot repair.

    The cost of a pass does not depend on the number of change sets.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        period: float,
        paused: Callable[[ChangeSet], bool] = lambda _: False,
        lease_terms: LeaseTerms | None = None,
    ) -> None:
        """Look once in `period` seconds.

        A request may wait for `ALERT_AFTER`, or longer if its change set is `paused`.

        `lease_terms` are kept as the tasks' consumer has them.
        """
        self._lease_terms = lease_terms
        self._paused = paused
        self._provisioner = provisioner
        self._period = period

    async def run(self) -> Never:
        """Check once a period, somewhat early or late, until cancelled."""
        await repeat_every(self._period, self._check, "inspection")

    async def _check(self) -> None:
        differences = await self._provisioner.check()
        report(differences)
        if self._lease_terms is not None:
            self._lease_terms.heed(differences)
        await self.report_old_requests()

    async def report_old_requests(self) -> None:
        """Log the oldest requests that wait for too long, and the number of all requests.

        The server's clock alone decides: it dated the requests, too.
        """
        streams = self._provisioner.streams
        js, stream = streams.js, streams.requests_stream
        info = await js.stream_info(stream)
        state, alert_after = info.state, timedelta(seconds=ALERT_AFTER)
        limit = info.ts - alert_after
        if not state.messages or state.first_ts > limit:
            return
        subjects: dict[str, float] = {}
        sequence = state.first_seq
        for _ in range(_MAX_REPORTED):
            message = await js.get_message(stream, sequence=sequence, next_by_subject=">")
            if message is None or message.time > limit:
                break
            sequence = message.sequence + 1
            if self._is_paused(message.subject):
                continue
            waits = limit + alert_after - message.time
            subjects.setdefault(printable(message.subject), round(waits.total_seconds()))
        if subjects:
            log.error("requests wait too long", seconds=subjects, requests=state.messages)

    def _is_paused(self, subject: str) -> bool:
        try:
            return self._paused(self._provisioner.streams.parse_change_set(subject))
        except UnknownSubject:
            return False


_LISTEN: Final = 5.0  # seconds until every living Rebaser was heard
_LOOK_EVERY: Final = 600.0  # seconds; Rebasers come, and consumers are edited


class CapacityCheck:
    """Checks after a start and then from time to time, and logs a warning; it changes nothing."""

    def __init__(self, streams: Streams, members: Membership, slots: int) -> None:
        """Check with `slots` for this process; each other Rebaser is assumed to have as many."""
        self._streams = streams
        self._members = members
        self._slots = slots

    async def run(self) -> Never:
        await repeat_every(_LOOK_EVERY, self.check, "capacity", first_delay=_LISTEN)

    async def check(self) -> int:
        """Return the number of slots beyond the consumer's limit; log a warning if any."""
        js, stream = self._streams.js, self._streams.tasks_stream
        config = await js.consumer_config(stream, TASKS_CONSUMER)
        most = config.max_ack_pending or -1
        slots = self._members.alive() * self._slots
        if most <= 0 or most >= slots:
            return 0
        log.warning(
            "slots stay empty",
            max_ack_pending=most,
            slots=slots,
            remedy="`nats consumer edit` with max_ack_pending -1, or lower REBASER_CONCURRENCY",
        )
        return slots - most
