"""A branch's difference on its way to head: runs that sleep, a head that forgets and purges."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class Sender(NamedTuple):
    """A run of the branch; the last one owns it, the others do not know that they do not."""

    attempt: int
    doing: str = "looks"


class State(NamedTuple):
    """A branch that may be applied anew after head refused it."""

    attempt: int = 1
    """The request to apply that counts: its number."""
    standing: str = "applying"
    runs: tuple[Sender, ...] = (Sender(1),)
    queue: tuple[int, ...] = ()
    """Head's: the differences, by attempt."""
    remembered: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    """Of those that are remembered."""
    logged: frozenset[int] = frozenset()
    """Attempts whose commit is in head's log behind the cursor of the branch."""
    purged: bool = False
    """Head's log begins behind the cursor of the branch."""
    effects: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rules:
    asks: bool = True
    """Head asks the branch's control record whether it is being applied by that request."""
    reads_log: bool = True
    """Head looks for the difference in its own log, from the branch's cursor on."""


@dataclass(frozen=True)
class Applying:
    """Head forgets ids and purges its log at any moment; a run is displaced `displaced` times."""

    displaced: int = 2
    attempts: int = 2
    purges: bool = True
    rules: Rules = Rules()

    def initial(self) -> State:
        return State()

    def broken(self, state: State) -> str:
        twice = len(set(state.effects)) < len(state.effects)
        return "S3: a difference took effect twice" if twice else ""

    def restless(self, state: State) -> str:
        if state.queue:
            return "S1: requests are left, and no run will handle them"
        return "the branch waits for ever" if state.standing == "applying" else ""

    def steps(self, state: State) -> Iterator[Step]:
        for number in range(len(state.runs)):
            yield from self._run(state, number)
        if state.queue:
            yield self._head(state)
        if state.remembered:
            gone = state._replace(remembered=frozenset(), refused=frozenset())
            yield Step("head forgets the ids", gone, fault=True)
        if self.purges and not state.purged:
            purged = state._replace(purged=True, logged=frozenset())
            yield Step("head's log is purged", purged, fault=True)
        if state.standing == "open" and state.attempt < self.attempts:
            number = state.attempt + 1
            again = state._replace(
                attempt=number,
                standing="applying",
                runs=(*state.runs, Sender(number)),
                purged=False,
                logged=frozenset(),
            )
            yield Step("the branch is applied anew", again, fault=True)
        if state.standing == "applying" and len(state.runs) <= self.displaced:
            runs = (*state.runs, Sender(state.attempt))
            yield Step("another run takes the branch over", state._replace(runs=runs), fault=True)

    def _run(self, state: State, number: int) -> Iterator[Step]:
        run, owns = state.runs[number], number == len(state.runs) - 1
        owns = owns and state.standing == "applying"
        who = f"run {number + 1}"
        known = run.attempt in state.remembered | state.logged
        if run.doing == "sends":
            sent = state._replace(queue=(*state.queue, run.attempt))
            yield Step(f"{who} sends the difference", _doing(sent, number, "waits"))
        elif run.doing == "looks" and not known and run.attempt not in state.queue:
            words = f"{who} finds no outcome"
            yield Step(words, _doing(state, number, "sends"), fault=not owns)
        elif owns and known:
            standing = "open" if run.attempt in state.refused else "applied"
            done = _doing(state, number, "ended")._replace(standing=standing)
            yield Step(f"{who} commits that the branch is {standing}", done)
        elif owns and run.attempt not in state.queue:
            yield Step(f"{who} looks again", _doing(state, number, "looks"))
        elif owns and run.doing == "looks":
            yield Step(f"{who} waits for head", _doing(state, number, "waits"))

    def _head(self, state: State) -> Step:
        attempt, *queue = state.queue
        state = state._replace(queue=tuple(queue))
        if attempt in state.remembered:
            return Step("head finds a duplicate", state)
        current = state.standing == "applying" and state.attempt == attempt
        if self.rules.asks and not current:
            return _refuses(state, attempt)
        if self.rules.reads_log:
            if attempt in state.logged:
                return Step("head finds it in its log", state)
            if state.purged:
                return _refuses(state, attempt)
        done = state._replace(
            remembered=state.remembered | {attempt},
            logged=state.logged | {attempt} if attempt == state.attempt else state.logged,
            effects=(*state.effects, attempt),
        )
        return Step(f"head commits difference {attempt}", done)


def _refuses(state: State, attempt: int) -> Step:
    refused = state.refused | {attempt}
    after = state._replace(remembered=state.remembered | {attempt}, refused=refused)
    return Step(f"head refuses difference {attempt}", after)


def _doing(state: State, number: int, doing: str) -> State:
    runs = list(state.runs)
    runs[number] = runs[number]._replace(doing=doing)
    return state._replace(runs=tuple(runs))
