"""What an operator would complain of: exits, unforeseen errors, growth without work, delays."""

from collections.abc import Iterator
from typing import Final

from tests.chaos.history import Kind
from tests.chaos.indexed_history import Case, Violation

RSS: Final = 1 << 30
"""Octets that a daemon may hold at the end of a round; those of its children do not count."""

HELD: Final = 0.1
"""Seconds of processor time that one turn of an event loop may take: twice what is aimed at, since
a core that is shared takes longer for the same."""


def exits(case: Case) -> Iterator[Violation]:
    """A daemon ends when it is asked to, within its grace, and at no other time.

    At its start it may find no NATS: then it waits for it.
    """
    for event in case.history.of(Kind.DAEMON):
        data = event.data
        if data["what"] == "hung":
            yield Violation("EXIT", "", f"{data['name']} did not stop in time")
        if data["what"] == "exited" and not data["asked"]:
            yield Violation("EXIT", "", f"{data['name']} ended by itself with {data['code']}")


def unforeseen(case: Case) -> Iterator[Violation]:
    """No daemon logs an error that the code does not expect."""
    for event in case.history.of(Kind.UNFORESEEN):
        data = event.data
        what = f"{data['daemon']}: {data['event']}: {data['exception'][-300:]}"
        yield Violation("UNFORESEEN", "", what)


def growth(case: Case) -> Iterator[Violation]:
    """A change set at rest gets no lines, however many tasks come; memory stays bounded."""
    for event in case.history.of(Kind.IDLE_TASKS):
        lines = event.data["lines"]
        if lines:
            what = f"{lines} lines written for {event.data['tasks']} tasks with nothing to do"
            yield Violation("GROWTH", event.data["change_set"], what)
    for event in case.history.of(Kind.MEMORY):
        if event.data["rss"] > RSS:
            what = f"{event.data['name']} holds {event.data['rss'] >> 20} MiB"
            yield Violation("GROWTH", "", what)


def held(case: Case) -> Iterator[Violation]:
    """Nothing holds the event loop of a daemon for long: all that it does would wait."""
    for event in case.history.of(Kind.HELD):
        data = event.data
        if data["seconds"] > HELD:
            what = f"{data['daemon']}: {data['seconds']} s in one turn: {data['what'][:1000]}"
            yield Violation("HELD", "", what)
