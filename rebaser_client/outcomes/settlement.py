"""Wait until what depends on a commit is computed, and show how far that is."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rebaser_client.activity_feed import ActivityFeed, watching
from rebaser_client.batches import Updates
from rebaser_client.outcomes.failures import MissingResults, changed_by, read_missing_results
from rebaser_client.value_reader import ChangeSetReader
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit, ControlState
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, deadlines
from rebaser_core.subjects import Subjects

POLL_INTERVAL: Final = 2.0
"""Seconds after which the log is read in any case: activities may be lost."""

_ENDS: Final = (ActivityKind.DVU_FINISHED, ActivityKind.DVU_FAILED, ActivityKind.DVU_CANCELLED)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the update of dependent values is."""

    done: int = 0
    """Values computed so far, of the update that runs."""
    total: int | None = None
    """Values that the update may compute; None until one has begun."""


@dataclass(frozen=True, slots=True)
class Settlement(MissingResults):
    """A commit whose dependent values are computed, and the values that have no result."""

    commit: int
    """The last commit of the change set at that moment."""


class SettlementWatch:
    """Watches one change set until what a commit left to be computed is computed."""

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._subjects = subjects
        self._change_set = change_set
        self.commit = 0
        """The last commit that was read."""

    async def settlement(
        self, reader: ChangeSetReader, commit: int | None = None, updates: Updates | None = None
    ) -> Settlement:
        """Wait until `progress` ends; return what has no result then, as the reader finds it.

        With the `updates` of the commit, values that had failed before it are in `failed_before`.
        """
        async for _ in self.progress(commit):
            pass
        if updates is None:
            missing = await read_missing_results(reader)
        else:
            missing = await read_missing_results(reader, commit, changed_by(updates))
        return Settlement(
            missing.failed,
            missing.failed_before,
            missing.blocked,
            self.commit,
            affected_blocked=missing.affected_blocked,
        )

    async def progress(self, commit: int | None = None) -> AsyncIterator[Progress]:
        """How far the work is, at least once; ends when all that `commit` left is computed.

        Without a commit, the last one counts. What later requests leave to be computed is not
        waited for. A change set without a log has nothing to compute.
        """
        wanted = await self._dirty_sequence(commit)
        latest = Progress()
        async with watching(self._js, self._subjects, self._change_set) as activities:
            while True:
                yield latest
                control = await self._last_control()
                if control is None or control.clean_sequence >= wanted:
                    return
                latest = await _next_progress(activities, latest)

    async def _dirty_sequence(self, commit: int | None) -> int:
        """Up to which sequence an update has to cover requests."""
        if commit is not None:
            subject = self._subjects.commits(self._change_set)
            entry = await self._js.get_message(self._subjects.commits_stream, sequence=commit)
            if entry is not None and entry.subject == subject:
                return Commit.decode(entry.headers, entry.payload).control.dirty_sequence
        control = await self._last_control()
        return 0 if control is None else control.dirty_sequence

    async def _last_control(self) -> ControlState | None:
        entry = await self._js.get_message(
            self._subjects.commits_stream, last_by_subject=self._subjects.commits(self._change_set)
        )
        if entry is None:
            return None
        self.commit = entry.sequence
        return Commit.decode(entry.headers, entry.payload).control


async def _next_progress(activities: ActivityFeed, latest: Progress) -> Progress:
    """Progress that differs, or the same once the log is to be read again."""
    end = asyncio.get_running_loop().time() + POLL_INTERVAL
    try:
        async with deadlines.until(end):
            while True:
                activity = await anext(activities)
                current = _progress_in(activity) or latest
                if current != latest or activity.kind in _ENDS:
                    return current
    except TimeoutError:
        return latest


def _progress_in(activity: ActivityV1) -> Progress | None:
    details = activity.details
    if activity.kind is ActivityKind.DVU_STARTED:
        return Progress(0, details["affected"])
    if activity.kind is ActivityKind.DVU_PROGRESS:
        return Progress(details["done"], details["of"])
    return None
