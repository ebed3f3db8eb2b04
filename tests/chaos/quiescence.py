"""Whether all is at rest, and what is left where it is not."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from tests.chaos.branches import status
from tests.chaos.history import History, Kind
from tests.chaos.recorder import Recorder, named
from tests.helpers.deployment import Deployment

REPORT_EVERY: Final = 30.0
"""Seconds between two notes of how far it has come."""
_LOOK: Final = 0.5
"""Seconds of a look that count at most. If one takes longer, the machine lacks processor time: then
the daemons do, too."""
_SETTLED: Final = ("applied", "dead", "refused", "duplicate")
"""A stale result is none: of those there could be ever more, and nothing done."""


class Progress:
    """The judge of whether daemons are slow or stuck, by the requests that they have settled."""

    def __init__(self, history: History, patience: float) -> None:
        """`patience`: seconds without any progress after which it is stuck: more than the longest
        pause of a daemon, 60 s after an update that failed again and again."""
        self._history = history
        self._patience = patience
        self._seen = self._settled = 0
        self._silent = 0.0
        self._looked = self._told = time.monotonic()

    def stopped(self, left: dict[str, int]) -> bool:
        """Whether nothing was settled for too long; writes down now and then what is `left`."""
        now, before = time.monotonic(), self._settled
        self._silent += min(now - self._looked, _LOOK)
        self._looked = now
        new, self._seen = self._history.events[self._seen :], len(self._history.events)
        for event in new:
            if event.kind is Kind.COMMIT:
                settled = event.data["commit"].get("settled")
                self._settled += settled is not None and settled["outcome"] in _SETTLED
        if self._settled > before:
            self._silent = 0.0
        if now - self._told > REPORT_EVERY:
            self._told = now
            self._history.add(Kind.WAIT, settled=self._settled, **left)
        return self._silent > self._patience


async def stuck(streams: Streams, history: History) -> dict[str, dict[str, Any]]:
    """Change set → its head, its task, its requests and its owners, where work is left."""
    requests = await streams.js.stream_subjects(streams.requests_stream)
    tasks = await streams.js.stream_subjects(streams.tasks_stream)
    heads: dict[str, dict[str, Any]] = {}
    owners: dict[str, Counter[str]] = {}
    for event in history.of(Kind.COMMIT):
        change_set, head = event.data["change_set"], event.data["commit"]["control"]
        owners.setdefault(change_set, Counter())[head["owner"].partition("/")[0]] += 1
        heads[change_set] = head
    waiting = {named(streams, subject): n for subject, n in requests.items()}
    at_work = {named(streams, subject) for subject in tasks}
    found = {}
    for change_set in sorted({*heads, *waiting, *at_work}):
        head = heads.get(change_set, {})
        due = head.get("dirtySequence", 0) > head.get("cleanSequence", 0)
        if change_set in waiting or change_set in at_work or due or status(head) == "applying":
            found[change_set] = {
                "requests": waiting.get(change_set, 0),
                "task": change_set in at_work,
                "due": due,
                "head": {name: value for name, value in head.items() if value},
                "lines by owner": dict(owners.get(change_set, Counter()).most_common(5)),
            }
    return found


LOOKS: Final = 50
"""Looks until what is left counts: a reconciler has idle change sets looked at now and then."""


class Resting:
    """Looks at one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        history: History,
        recorder: Recorder,
        patience: float,
        *,
        consumers_count: bool = True,
    ) -> None:
        """`patience`: seconds in which nothing is settled; then it is stuck.

        `consumers_count`: whether a consumer that is left counts. A cluster that starts anew
        takes a minute to delete those of readers that are no more.
        """
        self._consumers_count = consumers_count
        self._streams = deployment.streams
        self._history = history
        self._recorder = recorder
        self._patience = patience
        self._seen = 0
        """Events of the history that `_heads` goes by."""
        self._heads: dict[str, dict[str, Any]] = {}
        self.stuck = False
        """Whether it did not come: nothing moves any more."""

    async def come(self) -> float:
        """Wait until nothing is left, as long as requests are settled. How long that took."""
        began = time.monotonic()
        progress = Progress(self._history, self._patience)
        left: dict[str, int] = {}
        while True:
            with suppress(JetStreamError):
                left = await self._left()
                if not any(left.values()) and await self._recorded():
                    break
            if progress.stopped(left):
                self.stuck = True
                why = await stuck(self._streams, self._history)
                await self.write_down(stuck=why)
                break
            await asyncio.sleep(0.1)
        return round(time.monotonic() - began, 2)

    async def write_down(self, **more: object) -> dict[str, int]:
        """Tell the judge of what is left; that."""
        js, names = self._streams.js, self._streams
        for _ in range(LOOKS):
            left = await self._left()
            info = await js.consumer_info(names.tasks_stream, TASKS_CONSUMER)
            if self.stuck or not (any(left.values()) or info.num_ack_pending):
                break
            await asyncio.sleep(0.1)
        state = (await js.stream_info(names.requests_stream)).state
        streams = {"requests": names.requests_stream, "tasks": names.tasks_stream}
        self._history.add(
            Kind.REST,
            **left,
            held=info.num_ack_pending,
            last_sequence=state.last_seq,
            details={n: await js.stream_subjects(s) for n, s in streams.items() if left[n]},
            **more,
        )
        return left

    async def first_line(self, change_set: ChangeSet) -> int:
        """Where the log of the change set begins by now: the lines before were purged."""
        message = await self._streams.js.get_message(
            self._streams.commits_stream,
            sequence=1,
            next_by_subject=self._streams.commits(change_set),
        )
        return message.sequence if message else 0

    async def _left(self) -> dict[str, int]:
        requests = (await self._streams.js.stream_info(self._streams.requests_stream)).state
        tasks = (await self._streams.js.stream_info(self._streams.tasks_stream)).state
        return {
            "requests": requests.messages,
            "consumers": requests.consumer_count if self._consumers_count else 0,
            "tasks": tasks.messages,
            "due": sum(self._heads_due()),
        }

    async def _recorded(self) -> bool:
        return await self._recorder.caught_up() and not sum(self._heads_due())

    def _heads_due(self) -> list[bool]:
        new, self._seen = self._history.events[self._seen :], len(self._history.events)
        for event in new:
            if event.kind is Kind.COMMIT:
                self._heads[event.data["change_set"]] = event.data["commit"]["control"]
        return [
            head["dirtySequence"] > head["cleanSequence"] or status(head) == "applying"
            for head in self._heads.values()
        ]
