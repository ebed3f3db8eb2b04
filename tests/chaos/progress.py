"""What a round waits for at its end: whether anything still moves, and where it does not."""

import time
from collections import Counter
from typing import Any, Final

from rebaser_core.streams import Streams
from tests.chaos.branches import status
from tests.chaos.history import History, Kind
from tests.chaos.recorder import named

REPORT_EVERY: Final = 30.0
"""Seconds between two notes of how far it has come."""
_LOOK: Final = 0.5
"""Seconds of a look that count at most. If one takes longer, the machine lacks processor time: then
the daemons do, too."""
_SETTLED: Final = ("applied", "dead", "refused", "duplicate")
"""A stale result is none: of those there could be ever more, and nothing done."""


class Progress:
    """Tells slow from stuck: requests that are settled, whoever asked for them."""

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
