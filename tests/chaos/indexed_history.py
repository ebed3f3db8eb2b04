"""A history, sorted by what the judge's rules ask for."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.chaos.history import History, Kind


class Violation(NamedTuple):
    rule: str
    """S1 … S6; W15; VALUES; BRANCH; REPLY; EXIT; UNFORESEEN; GROWTH; RECORD: a history's hole."""
    change_set: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule} {self.change_set or '-'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a commit log."""

    sequence: int
    previous: int
    head: dict[str, Any]
    handled: dict[str, Any] | None

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Line":
        commit = data["commit"]
        return cls(data["line"], commit["previous"], commit["head"], commit.get("handled"))

    @property
    def claim(self) -> dict[str, Any] | None:
        return self.head.get("claim")


class Case:
    """`logs` by change set; those in `complete` have no hole."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent: dict[str, dict[str, Any]] = {}
        for event in history.of(Kind.SENT):
            if event.data["request"] is not None:
                self.sent.setdefault(event.data["request"], event.data)
        self.logs: dict[str, list[Line]] = defaultdict(list)
        for event in history.of(Kind.COMMIT):
            self.logs[event.data["change_set"]].append(Line.of(event.data))
        self.complete = {c for c, log in self.logs.items() if not list(holes(log))}
        self.by_sequence: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        for change_set, log in self.logs.items():
            for line in log:
                if line.handled is not None and line.handled["sequence"]:  # else a result
                    self.by_sequence[line.handled["sequence"]].append((change_set, line.handled))
                    self.outcomes[line.handled["id"]][line.handled["outcome"]] += 1
        self.rests = [event.data for event in history.of(Kind.REST)]
        self.rest = self.rests[-1] if self.rests else None


def holes(log: list[Line]) -> Iterator[Line]:
    known = 0
    for line in log:
        if line.previous > known:
            yield line
        known = line.sequence
