"""What operators have paused: known to each Rebaser, which leaves it alone until it is resumed.

Rules P1 to P5 of the protocol.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Never

import structlog

from rebaser_client.request_publisher import ensure_task
from rebaser_core.codecs import JSON
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import (
    Drift,
    JetStream,
    KeyNotFound,
    KeyValue,
    StreamNotFound,
)
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.ordered_consumers import ordered_reader
from rebaser_core.pause_record import (
    PauseRecord,
    PauseRecordV1,
    PauseScope,
    decode_pause,
    enclosing_scopes,
)
from rebaser_core.registry_records import now
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.log import DVU_DUE
from rebaser_server.processor.slot_lease import Turn
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.periodic import repeat_every

log: Final = structlog.get_logger()

UNHEARD: Final = 5.0
"""Seconds between two looks where nothing is heard of the bucket: it is another account's."""

Paused = dict[PauseScope, PauseRecordV1]


class PauseBook:
    """The pauses as they lie in their bucket (P1); each coroutine may be cancelled and repeated."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._bucket = KeyValue(js, subjects.pauses_bucket)

    async def ensure(self, replicas: int = 1) -> list[Drift]:
        """Have the bucket; how it differs from what is wanted."""
        return await self._bucket.ensure(num_replicas=replicas)

    async def all(self) -> Paused:
        """Every pause there is."""
        found: Paused = {}
        try:
            async with self._bucket.watch() as watch:
                while (entry := await watch.next()) is not None:
                    if not entry.is_deleted:
                        with contained("pause", key=entry.key):
                            record = decode_pause(entry.key, entry.value, entry.created)
                            found[record.scope] = record
        except StreamNotFound:
            return {}
        return found

    async def of(self, scope: PauseScope) -> PauseRecordV1 | None:
        """The pause of just this scope, as the bucket's leader has it."""
        try:
            entry = await self._bucket.get(scope.key)
        except (KeyNotFound, StreamNotFound):
            return None
        return decode_pause(entry.key, entry.value, entry.created)

    async def pause(
        self, scope: PauseScope, *, by: str | None = None, reason: str | None = None
    ) -> PauseRecordV1:
        """Have it paused. What is in hand is finished; requests queue; nothing is lost."""
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
        """Take the pause away, then poke for all under it that has work (P5); how many that are.

        Whoever dies in between leaves the rest to the reconcilers.
        """
        await self._bucket.purge(scope.key)
        waiting = await self._with_work(scope)
        for change_set in sorted(waiting):
            await ensure_task(self._js, self._subjects, change_set)
        return len(waiting)

    async def _with_work(self, scope: PauseScope) -> set[ChangeSet]:
        """Change sets under `scope` that have requests, or whose head is unfinished."""
        subjects = self._subjects
        end = [each or "*" for each in scope]
        requests = subjects.join("rebaser", "requests", *end)
        found = set(await self._js.stream_subjects(subjects.requests_stream, requests))
        heads = ordered_reader(self._js)(
            self._js,
            subjects.commits_stream,
            subjects.join("rebaser", "commits", *end),
            deliver_policy="last_per_subject",
            headers_only=True,
        )
        async with heads:
            while (line := await heads.next(idle_timeout=0)) is not None:
                if DVU_DUE in line.headers:
                    found.add(line.subject)
        waiting = set()
        for subject in found:
            with suppress(UnknownSubject):  # the reconciler says so
                waiting.add(subjects.parse_change_set(subject))
        return waiting


class Pauses:
    """The pauses as this process knows them, and the runs that end on their account."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._book = PauseBook(js, subjects)
        self._js = js
        self._subject = f"$KV.{subjects.pauses_bucket}.>"
        self.known: Paused = {}
        self._turns: defaultdict[ChangeSet, set[Turn]] = defaultdict(set)

    def of(self, change_set: ChangeSet) -> PauseRecordV1 | None:
        """The pause that the change set is under, as far as is known here; seen late is fine."""
        for scope in enclosing_scopes(change_set) if self.known else ():
            if scope in self.known:
                return self.known[scope]
        return None

    def holds(self, change_set: ChangeSet) -> bool:
        return self.of(change_set) is not None

    async def still(self, change_set: ChangeSet) -> bool:
        """Whether it is paused, as the bucket's leader has it: to be asked before it is left (P2).

        A resume that is not known here yet is learned by that.
        """
        for scope in enclosing_scopes(change_set):
            if scope in self.known:
                if await self._book.of(scope) is not None:
                    return True
                self.known.pop(scope, None)
        return False

    async def look(self) -> None:
        """Learn what is paused by now, and tell the runs that it concerns (P4)."""
        found = await self._book.all()
        if found != self.known:
            log.info("pauses changed", paused=[scope.key for scope in found])
        self.known = found
        for change_set, turns in self._turns.items():
            for turn in turns:
                turn.pause(paused=self.holds(change_set))

    async def run(self, period: float) -> Never:
        """Look whenever something is heard of the bucket, and once in `period` seconds."""
        bell, heard = Inbox(self._js.connection), False
        if self._js.is_remote:
            period = min(period, UNHEARD)

        async def look() -> None:
            nonlocal heard
            bell.queue.clear()
            if not heard and not self._js.is_remote:
                await bell.open(self._subject)
                heard = True
            await self.look()

        try:
            await repeat_every(period, look, "pauses", first_delay=0, pause=bell.wait)
        finally:
            await bell.close()

    @contextmanager
    def told(self, change_set: ChangeSet, turn: Turn) -> Iterator[None]:
        """The run in `turn` is told of pauses for as long as the body runs."""
        self._turns[change_set].add(turn)
        turn.pause(paused=self.holds(change_set))
        try:
            yield
        finally:
            self._turns[change_set].discard(turn)
            if not self._turns[change_set]:
                del self._turns[change_set]

    def turns_of(self, change_set: ChangeSet) -> Collection[Turn]:
        """The runs that this process has of the change set; more than one if it overtook itself."""
        return self._turns.get(change_set, ())

    def plain(self) -> list[dict[str, Any]]:
        """What is paused, the oldest pause first, as the ops endpoint tells it."""
        return plain(self.known.values())


def plain(records: Iterable[PauseRecordV1]) -> list[dict[str, Any]]:
    """Pauses, the oldest first, as plain data; without a change set it is of a workspace or all."""
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
    """Since when the change set has been, by the narrowest pause that holds it."""
    return next((paused[s].since for s in enclosing_scopes(change_set) if s in paused), None)
