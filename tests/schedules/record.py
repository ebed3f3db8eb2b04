"""Writes down what the broker shows and the Rebasers log: for the judge, and for the trace."""

import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

from rebaser_core.commits import decode_commit_at
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import announced_id
from rebaser_server.processor.dead_letters import REASON, SEQUENCE
from tests.chaos.history import History, Kind
from tests.chaos.processes import TOLD_OF_RUNS, delivery_in
from tests.schedules.broker import Session
from tests.schedules.fake_delta import STORE_FAILS
from tests.schedules.loop import Loop, Process
from tests.schedules.result import Verdict
from tests.schedules.stream import Stored, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rebaser_core.ids import ChangeSet

_ENDS = {
    "quiet", "interrupted", "ownership lost", "retry scheduled", "NATS failed", "store failed",
    "history broken", "work failed", "turn over", "paused",
}  # fmt: skip
"""What a Rebaser logs when it is done with a task that it has taken: one of these, once."""


class Record:
    """Takes its notes where things happen, so it misses nothing and disturbs nobody."""

    def __init__(self, loop: Loop, subjects: Subjects, verdict: Verdict) -> None:
        self._loop = loop
        self._subjects = subjects
        self.verdict = verdict
        self.history = History(_began=0.0)
        self.closed = False
        self.ready: set[str] = set()
        """Rebasers that said so."""
        self.busy: Counter[str] = Counter()
        """Rebaser → tasks that it is working on."""
        self.moment: Callable[[str, Session], None]
        """Called when a Rebaser has come to one of `plan.MOMENTS`."""
        self.asked: Callable[[Session], None]
        """Called when a request is stored."""
        self.waiting: Callable[[ChangeSet], Iterable[int]]
        """Sequences of the requests that are stored for a change set."""
        self.foreseen: set[str] = set()
        """What Rebasers may log, although it is an error."""
        self._epochs: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """By the id of the change set."""
        self._taken: dict[tuple[str, str], tuple[int, int]] = {}
        """Rebaser and change set → the delivery of its task that it works on."""
        self._taken_at: dict[str, int] = {}
        """By the id of the change set, up to where its requests were handled when it was taken."""
        self._released: dict[tuple[int, int], tuple[ChangeSet, range]] = {}
        """Delivery → change set, and its requests that were handled from then to its release."""

    def owner(self, change_set_id: str) -> str:
        """Whose the change set is, as the log says; empty if it is released."""
        return self._owners.get(change_set_id, "")

    def note(self, *what: Any) -> None:
        if not self.closed:
            self.verdict.trace.append((self._loop.time(), *what))

    def violation(self, what: str) -> None:
        if not self.closed:
            self.note("VIOLATION", what)
            self.verdict.violations.append(what)

    def logged(self, event: dict[str, Any]) -> None:
        """Take a line that a process logs; an error that nobody foresaw is a violation."""
        name, what = Process.current().name, event.pop("event")
        failed = event.pop("exc_info", None)
        self.note(name, what, {k: str(v)[-60:] for k, v in sorted(event.items())})
        if what in TOLD_OF_RUNS:
            self.history.add(Kind.RUN, daemon=name, told=what, **delivery_in(event))
        if what == "ready":
            self.ready.add(name)
        elif what == "taken":
            self.busy[name] += 1
            self._taken[name, event["change_set"]] = event["task"], event["delivery"]
        elif what in _ENDS:
            self.busy[name] -= 1
        if failed and STORE_FAILS not in str(sys.exc_info()[1]):
            where = "".join(traceback.format_exc().splitlines(keepends=True)[-3:])
            self.violation(f"UNFORESEEN {name}: {what}: {where}")
        elif what == "history broken" and what not in self.foreseen:
            self.violation(f"UNFORESEEN {name}: {what}: {event}")

    def settled(self, session: Session, which: tuple[int, int], word: bytes) -> None:
        """Take the last word on a delivery of a task."""
        daemon = session.owner.process.name
        self.history.add(Kind.TASK, daemon=daemon, delivery=list(which), word=word.decode())
        if word == b"+ACK" and which in self._released:
            change_set, settled = self._released[which]
            left = [sequence for sequence in self.waiting(change_set) if sequence in settled]
            if left:
                self.violation(f"W9 {change_set}: idle, but {left} are handled and not deleted")

    def stored(self, stream: Stream, stored: Stored, session: Session) -> None:
        """Take a message that was just stored."""
        subjects = self._subjects
        if stream.name == subjects.requests_stream:
            self._request(stored)
            self.asked(session)
        elif stream.name == subjects.commits_stream:
            self.moment(self._commit(stored, session.owner.process.name), session)
        elif stream.name == subjects.dead_letters_stream:
            self.history.add(
                Kind.DEAD_LETTER,
                change_set=self._change_set(stored),
                sequence=int(stored.headers[SEQUENCE]),
                reason=stored.headers[REASON],
            )

    def done(self, verb: str, session: Session) -> None:
        """Take what the API, or a word on a task, has just brought about."""
        subjects = self._subjects
        moment = {
            f"STREAM.MSG.DELETE.{subjects.requests_stream}": "deleted",
            f"STREAM.PURGE.{subjects.requests_stream}": "deleted",
            f"STREAM.MSG.DELETE.{subjects.tasks_stream}": "removed",
            "settled": "settled",
        }.get(verb)
        if moment is not None:
            self.moment(moment, session)

    def _change_set(self, stored: Stored) -> str:
        return str(self._subjects.parse_change_set(stored.subject))

    def _request(self, stored: Stored) -> None:
        self.verdict.requests += 1
        self.history.add(
            Kind.STORED,
            request=announced_id(stored.headers),
            change_set=self._change_set(stored),
            sequence=stored.sequence,
            duplicate=False,
            expected=["applied", "stale", "refused"],
        )

    def _commit(self, stored: Stored, by: str) -> str:
        """Write the line down; which moment it is."""
        commit = decode_commit_at(stored.sequence, stored.headers, stored.payload).to_wire()
        whose = self._subjects.parse_change_set(stored.subject)
        change_set, head, settled = str(whose), commit["control"], commit.get("settled")
        if isinstance(settled, dict):
            settled.pop("updates", None)  # the judge goes by what was sent
        self.history.add(Kind.COMMIT, change_set=change_set, line=stored.sequence, commit=commit)
        shown = {k: v for k, v in head.items() if v}
        self.note("commit", change_set[-4:], stored.sequence, shown, settled)
        before = self._epochs.get(change_set, 0)
        self._epochs[change_set] = head["epoch"]
        own = str(whose.change_set_id)
        self._owners[own] = head["owner"]
        if head["epoch"] > before:
            self._taken_at[own] = head["lastSequence"]
        if not head["owner"]:
            if (by, own) in self._taken:
                # What a run before left is deleted once it comes up, unless this run is paused.
                handled_here = range(self._taken_at[own] + 1, head["lastSequence"] + 1)
                self._released[self._taken[by, own]] = whose, handled_here
            return "released"
        return "taken" if head["epoch"] > before else "committed"

    def close(self) -> None:
        """Look away from now on."""
        self.closed = True
        self.verdict.seconds = self._loop.time()
        self.verdict.steps = self._loop.steps
        self.verdict.ownerships = sum(self._epochs.values())
