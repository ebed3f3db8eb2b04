"""Presence (F6): one Rebaser asks whether another is there, in ticks of the time between checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step

HEARTBEAT = 2
"""Ticks between two heartbeats, at most."""
SILENCE = 8
"""Ticks of silence after which a member is presumed dead whatever it answers."""
LATEST = HEARTBEAT + 2
"""Ticks after its death in which it is presumed dead, if the one that asks stays connected."""
SETTLING = 4
"""Ticks after a reconnect in which no check counts."""


class State(NamedTuple):
    """A member, and the one that asks."""

    ticks: int
    """Left."""
    faults: int
    """Left."""
    member: str = "up"
    """`up`, `dead`, `frozen`, or `down`: it lives and has no connection."""
    gone: int = 0
    """Ticks since it is anything but up."""
    unknown: bool = False
    """The server of the one that asks does not know of the member's own subscription."""
    asks: bool = True
    """The one that asks is connected."""
    away: int = 0
    """Ticks since it is not."""
    settling: int = 0
    """Ticks until its checks count again."""
    silent: int = 0
    """Ticks since the last heartbeat."""
    late: int = 0
    """Ticks by which the next heartbeat may be late."""
    refused: bool = False
    """A check was, and neither an answer nor a heartbeat has come since."""
    presumed: bool = False
    undisturbed: bool = True
    """The one that asks was connected all the time."""


@dataclass(frozen=True)
class Rules:
    twice: bool = True
    """F6: one refusal is none."""
    overdue: bool = True
    """F6: refusals count once a heartbeat is overdue."""
    settles: bool = True
    """F6: none counts for a while after one's own reconnect."""
    marked: bool = True
    """F6: only members whose names say that they answer are asked."""


@dataclass(frozen=True)
class Presence:
    """A connection that breaks is back within a tick, after a restart of NATS within three."""

    answers: bool = True
    """The member does; an older one does not subscribe to a subject of its own."""
    faults: int = 1
    ticks: int = 22
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.ticks, self.faults)

    def broken(self, state: State) -> str:
        if state.presumed and state.member in ("up", "down"):
            return "F6: a member that lives was presumed dead"
        late = state.member == "dead" and state.gone > LATEST and state.undisturbed
        if late and self.answers and not state.presumed:
            return "F6: a dead member was presumed dead late"
        return ""

    def restless(self, state: State) -> str:
        if state.member in ("dead", "frozen") and not state.presumed:
            return "F6: a dead or frozen member was never presumed dead"
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        if state.presumed:
            return
        yield from self._faults(state)
        yield from self._network(state)
        if state.ticks and not self._must_come_first(state):
            yield Step("a tick passes, with a check", self._checked(_tick(state)))

    def _faults(self, state: State) -> Iterator[Step]:
        if not state.faults or state.ticks <= SILENCE + SETTLING + 1 or state.member != "up":
            return
        left = state._replace(faults=state.faults - 1)
        for words, after in (
            ("the member is killed", left._replace(member="dead")),
            ("the member is frozen", left._replace(member="frozen")),
            ("the member's connection breaks", left._replace(member="down", gone=2)),
            ("its subscription is unknown where the other asks", left._replace(unknown=True)),
            (
                "NATS is started again",
                left._replace(member="down", asks=False, undisturbed=False, refused=False),
            ),
            ("the next heartbeat is late", left._replace(late=2)),
        ):
            yield Step(words, after, fault=True)

    def _network(self, state: State) -> Iterator[Step]:
        if state.member == "up" and state.asks and state.silent:
            yield Step("a heartbeat is heard", _heard(state))
        if state.member == "down" and state.gone:
            yield Step("the member reconnects", state._replace(member="up", gone=0))
        if not state.asks and state.away:
            settling = SETTLING if self.rules.settles else 0
            back = state._replace(asks=True, away=0, settling=settling)
            yield Step("the one that asks reconnects", back)

    def _must_come_first(self, state: State) -> bool:
        """Whether something is due before the next tick."""
        beats = state.member == "up" and state.asks
        heartbeat = beats and state.silent >= HEARTBEAT + state.late
        return heartbeat or (state.member == "down" and state.gone == 3) or state.away == 3

    def _checked(self, state: State) -> State:
        """What the one that asks makes of it."""
        rules = self.rules
        if state.silent >= SILENCE and state.asks:
            return state._replace(presumed=True)
        if not state.asks or state.settling or (rules.marked and not self.answers):
            return state
        if state.member == "frozen":
            return state
        if state.member == "up" and self.answers and not state.unknown:
            return state._replace(refused=False)
        if rules.twice and not state.refused:
            return state._replace(refused=True)
        overdue = state.silent > HEARTBEAT or not rules.overdue
        return state._replace(refused=True, presumed=overdue)


def _tick(state: State) -> State:
    return state._replace(
        ticks=state.ticks - 1,
        gone=state.gone + (state.member != "up"),
        away=state.away + (not state.asks),
        settling=max(0, state.settling - 1),
        silent=min(state.silent + 1, SILENCE),
    )


def _heard(state: State) -> State:
    return state._replace(silent=0, late=0, refused=False)
