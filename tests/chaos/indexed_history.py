"""A history, sorted by what the judge's rules ask for."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rebaser_core.ids import RequestId
from tests.chaos.history import History, Kind

Asked = tuple[str, str]
"""A change set and the id of a request: another change set may have one of the same id."""


class Violation(NamedTuple):
    rule: str
    """S1 … S6; W15; VALUES; TABLES; BRANCH; CALLS; BANK; REPLY; EXIT; UNFORESEEN; GROWTH; RECORD: a
    hole of a history."""
    change_set: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule} {self.change_set or '-'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a commit log."""

    sequence: int
    id: str
    previous: int
    head: dict[str, Any]
    settled: dict[str, Any] | None
    effect: dict[str, Any] = field(default_factory=dict)
    """Effect of a call of a handler."""

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Line":
        commit = data["commit"]
        call = commit.get("call") or {}
        return cls(
            data["line"],
            commit.get("id", ""),
            commit["previous"],
            commit["control"],
            commit.get("settled"),
            call.get("effect") or {},
        )

    @property
    def stored(self) -> int:
        """When NATS stored the request that it settles, in milliseconds since 1970."""
        return RequestId.from_str(self.id).milliseconds

    @property
    def claim(self) -> dict[str, Any] | None:
        return self.head.get("claim")


class Case:
    """`logs` by change set; those in `complete` have no hole."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent: dict[Asked, dict[str, Any]] = {}
        places: dict[str, str] = {}
        for event in history.of(Kind.SENT):
            request, change_set = event.data["request"], event.data["change_set"]
            if request is not None:
                self.sent.setdefault((change_set, request), event.data)
                places.setdefault(request, change_set)
        self._places = places
        self.logs: dict[str, list[Line]] = defaultdict(list)
        for event in history.of(Kind.COMMIT):
            self.logs[event.data["change_set"]].append(Line.of(event.data))
        self.complete = {c for c, log in self.logs.items() if not list(holes(log))}
        self.by_sequence: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self.outcomes: dict[Asked, Counter[str]] = defaultdict(Counter)
        for change_set, log in self.logs.items():
            for line in log:
                if line.settled is not None and line.settled["sequence"]:  # else a result
                    self.by_sequence[line.settled["sequence"]].append((change_set, line.settled))
                    outcomes = self.outcomes[change_set, line.settled["id"]]
                    outcomes[line.settled["outcome"]] += 1
        self.rests = [event.data for event in history.of(Kind.REST)]
        self.rest = self.rests[-1] if self.rests else None

    def asked(self, data: dict[str, Any]) -> Asked:
        """Which request the event is about; the first of its id, if it names no change set."""
        request = data["request"]
        return data.get("change_set") or self._places.get(request, ""), request


def holes(log: list[Line]) -> Iterator[Line]:
    known = 0
    for line in log:
        if line.previous > known:
            yield line
        known = line.sequence
