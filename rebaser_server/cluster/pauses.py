"""The pauses that operators set: each Rebaser knows them, and works on nothing that is paused.

Rules P1 to P5 of the protocol. Operators also cancel updates: the Rebaser that works on the change
set hears of it by NATS.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Never

import nats.errors
import structlog
from nats.aio.msg import Msg

from rebaser_core.codecs import JSON
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import KeyNotFound, KeyValue, StreamNotFound
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.jetstream.inbox import Inbox
from rebaser_core.records import (
    PauseRecord,
    PauseRecordV1,
    PauseScope,
    decode_pause,
    enclosing_scopes,
    now,
)
from rebaser_core.requests import ensure_task
from rebaser_core.streams import Streams
from rebaser_server.commit_log.log import unfinished_subjects
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.containment import contained, repeat_every

log: Final = structlog.get_logger()

_TURN: Final = 200
"""Number of subjects that are parsed before others have a turn on the loop."""

_FOREIGN_CHECK_EVERY: Final = 5.0
"""Seconds between two reads of a bucket in another account, whose changes cannot be watched."""

_STORED_WITHIN: Final = 1.0
"""Seconds after which a change of the bucket that we hear of is stored, also by a busy disk."""

Paused = dict[PauseScope, PauseRecordV1]


class PauseStore:
    """The pauses in their bucket (P1); each coroutine may be cancelled and repeated."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._bucket = KeyValue(streams.js, streams.pauses_bucket)

    async def all(self) -> Paused:
        pauses: Paused = {}
        try:
            async with self._bucket.watch() as watch:
                while (entry := await watch.next()) is not None:
                    if not entry.is_deleted:
                        with contained("pause", key=entry.key):
                            record = decode_pause(entry.key, entry.value, entry.created)
                            pauses[record.scope] = record
        except StreamNotFound:
            return {}
        return pauses

    async def of(self, scope: PauseScope) -> PauseRecordV1 | None:
        """Return the pause of exactly this scope, as the bucket's leader has it."""
        try:
            entry = await self._bucket.get(scope.key)
        except (KeyNotFound, StreamNotFound):
            return None
        return decode_pause(entry.key, entry.value, entry.created)

    async def pause(
        self, scope: PauseScope, *, by: str | None = None, reason: str | None = None
    ) -> PauseRecordV1:
        """Pause the scope. Work under way is finished; requests queue; nothing is lost."""
        record = PauseRecordV1(
            id=RequestId(),
            workspace_id=scope.workspace_id,
            change_set_id=scope.change_set_id,
            since=now(),
            by=by,
            reason=reason,
        )
        await self._bucket.put(scope.key, PauseRecord.encode(record, JSON)[1])
        return record

    async def resume(self, scope: PauseScope) -> int:
        """Remove the pause, then make a task for all work under it (P5); return their number.

        If this process dies in between, the reconcilers do the rest.
        """
        # P5: the pause goes first. Else a Rebaser could take a task made here, find the pause still
        # in force, and remove the task for good (P2).
        await self._bucket.purge(scope.key)
        waiting = await self._with_work(scope)
        for change_set in sorted(waiting):
            await ensure_task(self._streams, change_set)
        return len(waiting)

    async def _with_work(self, scope: PauseScope) -> set[ChangeSet]:
        """Return the change sets under `scope` that have requests or are unfinished."""
        streams = self._streams
        tokens = [each or "*" for each in scope]
        requests = streams.join("rebaser", "requests", *tokens)
        found_subjects = set(await streams.js.stream_subjects(streams.requests_stream, requests))
        commits = streams.join("rebaser", "commits", *tokens)
        found_subjects.update(await unfinished_subjects(streams, commits))
        waiting = set()
        for number, subject in enumerate(found_subjects):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            with suppress(UnknownSubject):  # the reconciler logs it
                waiting.add(streams.parse_change_set(subject))
        return waiting


class PauseMonitor:
    """The pauses that this process knows, and its runs, which a pause ends."""

    def __init__(self, streams: Streams, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Begin without pauses.

        `is_stopped`: whether no change set may be worked on now, paused or not.
        """
        self._store = PauseStore(streams)
        self._is_stopped = is_stopped
        self._js = streams.js
        self._subject = f"$KV.{streams.pauses_bucket}.>"
        self.known: Paused = {}
        self._slots: defaultdict[ChangeSet, set[SlotLease]] = defaultdict(set)

    def of(self, change_set: ChangeSet) -> PauseRecordV1 | None:
        """Return the change set's pause, or None. May lag behind the bucket, which is safe."""
        for scope in enclosing_scopes(change_set) if self.known else ():
            if scope in self.known:
                return self.known[scope]
        return None

    def is_paused(self, change_set: ChangeSet) -> bool:
        return self.of(change_set) is not None

    async def is_still_paused(self, change_set: ChangeSet) -> bool:
        """Whether the change set is paused, as the bucket's leader has it; asked before a nak (P2).

        So this process learns of a resume that it missed.
        """
        for scope in enclosing_scopes(change_set):
            if scope in self.known:
                if await self._store.of(scope) is not None:
                    return True
                # `refresh` may have read the pauses meanwhile, without this one.
                self.known.pop(scope, None)
        return False

    async def refresh(self) -> None:
        """Read the pauses, and notify the runs that they concern (P4)."""
        pauses = await self._store.all()
        if pauses != self.known:
            log.info("pauses changed", paused=[scope.key for scope in pauses])
        self.known = pauses
        self.notify()

    def notify(self) -> None:
        """Tell the runs whether they may go on; a stop also ends the updates in hand."""
        for change_set, slots in self._slots.items():
            for slot in slots:
                self._notify(slot, change_set)

    def _notify(self, slot: SlotLease, change_set: ChangeSet) -> None:
        is_stopped = self._is_stopped()
        slot.pause(paused=is_stopped or self.is_paused(change_set))
        if is_stopped:
            slot.cancel_dvu.set()

    async def run(self, period: float) -> Never:
        """Read the pauses whenever the bucket changes, and once in `period` seconds."""
        wakeup, is_subscribed, is_news = Inbox(self._js.connection), False, False
        if self._js.is_remote:
            period = min(period, _FOREIGN_CHECK_EVERY)

        async def refresh() -> None:
            nonlocal is_subscribed, is_news
            is_news = bool(wakeup.queue)
            # P1: the queue is emptied before the read, so a change during the read wakes for
            # another one.
            wakeup.queue.clear()
            # P1: the subscription comes before the read. Else a change in between would be missed
            # for a whole period.
            if not is_subscribed and not self._js.is_remote:
                await wakeup.open(self._subject)
                is_subscribed = True
            await self.refresh()

        async def wait(seconds: float) -> None:
            # NATS tells subscribers of a change before it has stored it: it is read once more.
            await wakeup.wait(min(seconds, _STORED_WITHIN) if is_news else seconds)

        try:
            await repeat_every(period, refresh, "pauses", first_delay=0, pause=wait)
        finally:
            await wakeup.close()

    @contextmanager
    def registered(self, change_set: ChangeSet, slot: SlotLease) -> Iterator[None]:
        """Notify the run that holds `slot` of pauses, while the body runs."""
        self._slots[change_set].add(slot)
        # P4: a pause that came since the task was pulled has not reached this slot.
        self._notify(slot, change_set)
        try:
            yield
        finally:
            self._slots[change_set].discard(slot)
            if not self._slots[change_set]:
                del self._slots[change_set]

    def slots_of(self, change_set: ChangeSet) -> Collection[SlotLease]:
        """Return this process's runs of the change set; several if one fenced another."""
        return self._slots.get(change_set, ())

    def to_json(self) -> list[dict[str, Any]]:
        """Return the pauses as the ops endpoint shows them, the oldest first."""
        return pauses_to_json(self.known.values())


def pauses_to_json(records: Iterable[PauseRecordV1]) -> list[dict[str, Any]]:
    """Return the pauses as plain data, the oldest first; the scope decides which ids are set."""
    return [
        {
            "workspace": None if each.workspace_id is None else str(each.workspace_id),
            "changeSet": None if each.change_set_id is None else str(each.change_set_id),
            "since": each.since,
            "by": each.by,
            "reason": each.reason,
        }
        for each in sorted(records, key=lambda each: each.since)
    ]


def paused_since(paused: Paused, change_set: ChangeSet) -> str | None:
    """Return the time at which the pause of the change set began, by its narrowest pause."""
    return next((paused[s].since for s in enclosing_scopes(change_set) if s in paused), None)


@asynccontextmanager
async def serve_cancellations(streams: Streams, pauses: PauseMonitor) -> AsyncIterator[None]:
    """Serve cancellations while the body runs; only the Rebaser of the change set replies."""
    nc = streams.js.nc

    async def on_message(message: Msg) -> None:
        with suppress(UnknownSubject):
            slots = pauses.slots_of(streams.parse_change_set(message.subject))
            if not slots:
                return
            in_hand = [slot for slot in slots if slot.cancel_dvu.has_waiters]
            for slot in in_hand:
                slot.cancel_dvu.set()
            if message.reply:
                with suppress(nats.errors.Error, OSError):
                    answer = json.dumps({"cancelled": bool(in_hand)}).encode()
                    await nc.publish(message.reply, answer)

    subject = streams.join("rebaser.cancellations.*.*")
    async with subscribed(nc, subject, on_message):
        yield
