"""Calls between keys (O1 to O4): what the commits of one key send to another one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class Call(NamedTuple):
    """A call of another key."""

    request: int
    """Number of the request whose handler sent it."""
    index: int
    tried: int
    """Number of the run whose handler sent it: another one may send something else."""


class Run(NamedTuple):
    """A run of the sender; the log knows the last that took over."""

    number: int
    outgoing: tuple[Call, ...] = ()
    """Calls of commits that are not known to be sent."""
    job: tuple[Call, ...] | None = None
    """What is left of the calls that it began to send; None: it sends nothing."""
    covers: int = 0
    """Request up to which all is sent once they are."""
    told: bool = False
    """The commit that says so is written."""
    early: bool = False
    """It has sent calls of the request in hand, before its commit."""


class State(NamedTuple):
    """The sender's log, its runs, and the target, whose requests have ids that nobody knows."""

    crashes: int
    takeovers: int
    repeats: int
    refusals: int
    owner: int = 0
    """Run that took over last; 0: none did."""
    log: tuple[int, ...] = ()
    """For each request, the run whose commit it is."""
    clean: int = 0
    """Request up to which the log says that all calls are sent."""
    runs: tuple[Run, ...] = ()
    queue: tuple[Call, ...] = ()
    """The target's requests."""
    heard: tuple[int, int] = (0, 0)
    ended: tuple[Call, ...] = ()
    """Calls that took effect or were refused."""


@dataclass(frozen=True)
class Rules:
    in_commit: bool = True
    """What a call sends is in its commit (O1)."""
    behind: bool = True
    """It is sent behind that commit (O2),"""
    in_order: bool = True
    """one call after the other (O2)."""
    confirmed: bool = True
    """The log says that all is sent once all is confirmed (O3)."""
    hears: bool = True
    """The target knows up to which place it heard the sender (O4),"""
    hears_refused: bool = True
    """also calls that it refused (O4)."""


@dataclass(frozen=True)
class Sending:
    """Each request makes calls of one other key."""

    requests: int = 2
    calls: int = 2
    crashes: int = 1
    takeovers: int = 1
    """By another run while one lives."""
    repeats: int = 0
    """Receipts that are lost: a call is stored once more."""
    refusals: int = 0
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.crashes, self.takeovers, self.repeats, self.refusals)

    def broken(self, state: State) -> str:
        places = [(call.request, call.index) for call in state.ended]
        if any(state.log[: call.request][-1:] != (call.tried,) for call in state.ended[-1:]):
            return "O2: a call took effect that no commit has"
        if len(set(places)) < len(places):
            return "S3: a call took effect twice, or was refused and took effect"
        return "S2: calls took effect in another order" if places != sorted(places) else ""

    def restless(self, state: State) -> str:
        if len(state.log) < self.requests:
            return "S1: requests are left, and no run will handle them"
        expected = self.requests * self.calls
        return "" if len(state.ended) == expected else "S1: calls are lost"

    def steps(self, state: State) -> Iterator[Step]:
        if self._is_left(state):
            yield from self._takes_over(state)
        for run in state.runs:
            yield from self._handles(state, run)
            yield from self._sends(state, run)
            if state.crashes:
                dead = _without(state, run)._replace(crashes=state.crashes - 1)
                yield Step(f"run {run.number} dies", dead, fault=True)
        if state.queue:
            yield from self._hears(state)

    def _is_left(self, state: State) -> bool:
        return len(state.log) < self.requests or state.clean < len(state.log)

    def _takes_over(self, state: State) -> Iterator[Step]:
        is_owned = any(run.number == state.owner for run in state.runs)
        if is_owned and not state.takeovers:
            return
        number, outgoing = state.owner + 1, ()
        if self.rules.in_commit:
            outgoing = tuple(
                call
                for request, run in enumerate(state.log, 1)
                if request > state.clean
                for call in self._calls(request, run)
            )
        after = state._replace(
            owner=number,
            runs=(*state.runs, Run(number, outgoing)),
            takeovers=state.takeovers - is_owned,
        )
        yield Step(f"run {number} takes over", after, fault=is_owned)

    def _calls(self, request: int, run: int) -> tuple[Call, ...]:
        return tuple(Call(request, index, run) for index in range(self.calls))

    def _handles(self, state: State, run: Run) -> Iterator[Step]:
        request = len(state.log) + 1
        if run.number != state.owner or request > self.requests:
            return
        calls = self._calls(request, run.number)
        if not self.rules.behind and not run.early:
            early = _with(state, run._replace(early=True))
            sent = early._replace(queue=(*state.queue, *calls))
            yield Step(f"run {run.number} sends the calls of request {request}", sent)
            return
        outgoing = run.outgoing if run.early else (*run.outgoing, *calls)
        own = run._replace(outgoing=outgoing, early=False)
        after = _with(state, own)._replace(log=(*state.log, run.number))
        yield Step(f"run {run.number} commits request {request}", after)

    def _sends(self, state: State, run: Run) -> Iterator[Step]:
        who = f"run {run.number}"
        if run.job is None:
            if run.number == state.owner and state.clean < len(state.log):
                begun = run._replace(job=run.outgoing, covers=len(state.log), told=False)
                yield Step(f"{who} begins to send", _with(state, begun))
            return
        for place, call in enumerate(run.job[: 1 if self.rules.in_order else None]):
            stored = state._replace(queue=(*state.queue, call))
            left = run._replace(job=(*run.job[:place], *run.job[place + 1 :]))
            yield Step(f"{who} sends call {call.request}.{call.index}", _with(stored, left))
            if state.repeats:
                again = stored._replace(repeats=state.repeats - 1)
                yield Step(f"{who} hears of no receipt of {call}", again, fault=True)
        if not run.told and (not run.job or not self.rules.confirmed):
            yield self._tells(state, run)
        elif run.told and not run.job:
            yield Step(f"{who} has sent all", _with(state, run._replace(job=None)))

    def _tells(self, state: State, run: Run) -> Step:
        if run.number != state.owner:
            return Step(f"run {run.number} learns that it was overtaken", _without(state, run))
        outgoing = tuple(call for call in run.outgoing if call.request > run.covers)
        own = run._replace(outgoing=outgoing, told=True)
        after = _with(state, own)._replace(clean=run.covers)
        return Step(f"run {run.number} commits that all up to {run.covers} is sent", after)

    def _hears(self, state: State) -> Iterator[Step]:
        call, *queue = state.queue
        place, rest = (call.request, call.index + 1), state._replace(queue=tuple(queue))
        if self.rules.hears and place <= state.heard:
            yield Step("the target drops a call that it heard", rest)
            return
        ended = rest._replace(ended=(*state.ended, call))
        yield Step(f"the target makes call {call}", ended._replace(heard=place))
        if state.refusals:
            heard = place if self.rules.hears_refused else state.heard
            refused = ended._replace(heard=heard, refusals=state.refusals - 1)
            yield Step(f"the target refuses call {call}", refused, fault=True)


def _with(state: State, run: Run) -> State:
    runs = tuple(run if each.number == run.number else each for each in state.runs)
    return state._replace(runs=runs)


def _without(state: State, run: Run) -> State:
    return state._replace(runs=tuple(each for each in state.runs if each.number != run.number))
