"""States that processes keep of what they released (W2c): which one the next run may begin with."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class Line(NamedTuple):
    """A commit: only `id` is its own; another one of the same place has another one."""

    id: int
    request: int = 0
    """That it settles; 0: it takes the change set over or releases it."""


class Kept(NamedTuple):
    """What a process left behind at its release."""

    end: int
    """Sequence of the last commit that is in it."""
    id: int
    """That commit's."""
    effects: tuple[int, ...]


class Process(NamedTuple):
    """A Rebaser, and its run of the change set."""

    doing: str = "idle"
    end: int = 0
    """Sequence of the last commit that its run knows."""
    id: int = 0
    """That commit's."""
    effects: tuple[int, ...] = ()
    """What its run's state holds."""
    spoiled: bool = False
    """The state may hold what the log does not."""
    kept: Kept | None = None


class State(NamedTuple):
    """One change set; its log starts with an empty commit."""

    processes: tuple[Process, ...]
    rooms: int
    takeovers: int
    refusals: int
    restores: int
    crashes: int
    log: tuple[Line, ...] = (Line(0),)
    lines: int = 1
    """Commits that were ever stored, also those that a restore lost."""
    broken: str = ""


@dataclass(frozen=True)
class Rules:
    last_line: bool = True
    """A kept state is used only if the log ends with a commit of the sequence that it ends with."""
    by_id: bool = True
    """And of the same id."""
    sound: bool = True
    """A state that may hold what the log does not is not kept."""


@dataclass(frozen=True)
class Keeping:
    """Requests are handled in order; the control record says which was the last one."""

    requests: int = 2
    processes: int = 2
    rooms: int = 1
    """Runs that make room for another change set before they are idle."""
    takeovers: int = 1
    """By another process while a run lives."""
    refusals: int = 1
    """Commits that the server refuses, as if they were too large."""
    restores: int = 1
    """NATS is restored from a backup and has lost the last commits."""
    crashes: int = 0
    rules: Rules = Rules()

    def initial(self) -> State:
        processes = (Process(),) * self.processes
        return State(
            processes, self.rooms, self.takeovers, self.refusals, self.restores, self.crashes
        )

    def broken(self, state: State) -> str:
        return state.broken

    def restless(self, state: State) -> str:
        handled = len(_effects(state.log)) == self.requests
        return "" if handled else "S1: requests are left, and no run will handle them"

    def steps(self, state: State) -> Iterator[Step]:
        for number, process in enumerate(state.processes):
            yield from self._steps(state, number, process)
        is_at_rest = all(process.doing == "idle" for process in state.processes)
        if state.restores and is_at_rest and len(state.log) > 1:
            for end in range(1, len(state.log)):
                lost = state._replace(log=state.log[:end], restores=state.restores - 1)
                yield Step(f"NATS is restored as of commit {end}", lost, fault=True)

    def _steps(self, state: State, number: int, process: Process) -> Iterator[Step]:
        who = "AB"[number]
        if process.doing == "idle":
            yield from self._takes_over(state, number, process)
            return
        if process.doing == "works":
            yield from self._handles(state, number, process)
        elif process.doing == "releases":
            after = self._written(state, number, process, 0)
            ended = after.processes[number]
            if ended.doing != "idle":
                keeps = not (process.spoiled and self.rules.sound)
                kept = Kept(ended.end, ended.id, process.effects) if keeps else None
                after = _with(after, number, Process(kept=kept))
            yield Step(f"{who} releases the change set", after)
        if state.crashes:
            dead = _with(state, number, Process())._replace(crashes=state.crashes - 1)
            yield Step(f"{who} dies", dead, fault=True)

    def _takes_over(self, state: State, number: int, process: Process) -> Iterator[Step]:
        if len(_effects(state.log)) == self.requests:
            return
        is_owned = any(other.doing != "idle" for other in state.processes)
        if is_owned and not state.takeovers:
            return
        before, kept = state.log[-1], process.kept
        after = _stored(state, 0)
        effects, how = _effects(state.log), "loads the state"
        if kept is not None and self._is_true(kept, len(state.log), before.id):
            effects, how = kept.effects, "has kept the state"
        own = Process("works", len(after.log), after.log[-1].id, effects)
        after = _with(after, number, own)._replace(takeovers=state.takeovers - is_owned)
        yield Step(f"{'AB'[number]} takes over and {how}", after, fault=is_owned)

    def _is_true(self, kept: Kept, end: int, last: int) -> bool:
        rules = self.rules
        return not rules.last_line or (kept.end == end and (kept.id == last or not rules.by_id))

    def _handles(self, state: State, number: int, process: Process) -> Iterator[Step]:
        who, request = "AB"[number], len(_effects(state.log[: process.end])) + 1
        leaves = _with(state, number, process._replace(doing="releases"))
        if request > self.requests:
            yield Step(f"{who} is idle", leaves)
            return
        if state.rooms:
            leaves = leaves._replace(rooms=state.rooms - 1)
            yield Step(f"{who} makes room for another", leaves, fault=True)
        if state.refusals:
            effects = (*process.effects, request)
            spoiled = process._replace(doing="releases", effects=effects, spoiled=True)
            refused = _with(state, number, spoiled)._replace(refusals=state.refusals - 1)
            yield Step(f"{who} has its commit of request {request} refused", refused, fault=True)
        after = self._written(state, number, process, request)
        yield Step(f"{who} commits request {request}", after)

    def _written(self, state: State, number: int, process: Process, request: int) -> State:
        """A commit was appended; or the log ends otherwise, and the run with it."""
        if len(state.log) != process.end or state.log[-1].id != process.id:
            return _with(state, number, Process())
        broken = ""
        if request and process.effects != _effects(state.log):
            broken = f"S1: request {request} was applied to a state that the log does not make"
        after = _stored(state, request)
        effects = (*process.effects, request) if request else process.effects
        own = process._replace(end=len(after.log), id=after.log[-1].id, effects=effects)
        return _with(after, number, own)._replace(broken=broken)


def _stored(state: State, request: int) -> State:
    log = (*state.log, Line(state.lines, request))
    return state._replace(log=log, lines=state.lines + 1)


def _effects(log: tuple[Line, ...]) -> tuple[int, ...]:
    return tuple(line.request for line in log if line.request)


def _with(state: State, number: int, process: Process) -> State:
    processes = state.processes
    return state._replace(processes=(*processes[:number], process, *processes[number + 1 :]))
