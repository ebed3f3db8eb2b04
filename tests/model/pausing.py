"""Pauses (P1 to P5): an operator, clients and Rebasers, as far as it takes to lose what queued."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class State(NamedTuple):
    """One change set; nobody dies but the operator."""

    to_publish: int
    rebasers: tuple[tuple[str, bool], ...]
    """What each does, and whether it believes that there is a pause."""
    client: str = "stores"
    requests: int = 0
    task: bool = False
    """One is stored, be it held or not."""
    held: bool = False
    paused: bool = False
    pauses: int = 0
    """That the operator has begun."""
    operator: str = "ready"


@dataclass(frozen=True)
class Rules:
    asks: bool = True
    """P2: whoever sets a task aside asks the bucket's leader before leaving it."""
    asks_last: bool = True
    """P2: once the task is gone, and not before."""
    pokes: bool = True
    """P5."""
    pokes_last: bool = True
    """P5: once the pause is taken away, and not before."""
    reconciler: bool = False
    """X1; and what is paused is read once a period (P1)."""


@dataclass(frozen=True)
class Pausing:
    """A pause is heard of late or never, unless there is a reconciler."""

    requests: int = 2
    rebasers: int = 2
    pauses: int = 1
    dies: bool = False
    """The operator may, anywhere."""
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.requests, (("idle", False),) * self.rebasers)

    def broken(self, state: State) -> str:
        del state
        return ""

    def restless(self, state: State) -> str:
        if state.task:
            return "S6: a task is left"
        if state.requests and not state.paused:
            return "S1: requests are left, and no run will handle them"
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._client(state)
        yield from self._operator(state)
        for number in range(len(state.rebasers)):
            yield from self._rebaser(state, number)

    def _client(self, state: State) -> Iterator[Step]:
        if state.client == "pokes":
            yield Step("the client pokes", state._replace(client="stores", task=True))
        elif state.to_publish:
            after = state._replace(
                client="pokes", to_publish=state.to_publish - 1, requests=state.requests + 1
            )
            yield Step("the client stores a request", after)

    def _operator(self, state: State) -> Iterator[Step]:
        rules, doing = self.rules, state.operator
        if doing == "ready" and state.pauses < self.pauses:
            paused = state._replace(paused=True, pauses=state.pauses + 1, operator="pauses")
            yield Step("the operator pauses it", paused)
        elif doing == "pauses" and not rules.pokes_last:
            poked = state._replace(operator="resumes", task=state.task or state.requests > 0)
            yield Step("the operator pokes, if there are requests", poked)
        elif doing in ("pauses", "resumes"):
            after = "looks" if doing == "pauses" and rules.pokes else "ready"
            resumed = state._replace(paused=False, operator=after)
            yield Step("the operator takes the pause away", resumed)
        elif doing == "looks":
            after = state._replace(operator="pokes" if state.requests else "ready")
            yield Step("the operator looks for requests", after)
        elif doing == "pokes":
            yield Step("the operator pokes", state._replace(operator="ready", task=True))
        if self.dies and doing not in ("ready", "dead"):
            yield Step("the operator dies", state._replace(operator="dead"), fault=True)

    def _rebaser(self, state: State, number: int) -> Iterator[Step]:
        doing, knows = state.rebasers[number]
        who = f"Rebaser {number + 1}"
        if knows != state.paused:
            words = f"{who} learns of {'a pause' if state.paused else 'its end'}"
            learned = _then(state, number, doing, knows=state.paused)
            yield Step(words, learned, fault=not self.rules.reconciler)
        if doing != "idle":
            words, after = getattr(self, f"_{doing}")(state, number)
            yield Step(f"{who} {words}", after)
        elif state.task and not state.held:
            aside = "removes" if self.rules.asks_last else "asks_first"
            taken = _then(state, number, aside if knows else "works")._replace(held=True)
            yield Step(f"{who} is given the task", taken)
        elif self.rules.reconciler and state.requests and not (state.task or state.paused):
            yield Step(f"{who} pokes: no task, but requests (X1)", state._replace(task=True))

    def _works(self, state: State, number: int) -> tuple[str, State]:
        if state.rebasers[number][1]:
            return "ends its run on account of the pause", _then(state, number, "removes")
        if state.requests:
            return "handles a request", state._replace(requests=state.requests - 1)
        return "finds it quiet", _then(state, number, "removes")

    def _removes(self, state: State, number: int) -> tuple[str, State]:
        after = "looks"
        if state.rebasers[number][1]:
            rules = self.rules
            after = "idle" if not rules.asks else "asks" if rules.asks_last else "looks"
        gone = state._replace(task=False, held=False)
        return "removes the task", _then(gone, number, after)

    def _asks(self, state: State, number: int) -> tuple[str, State]:
        words = "asks the leader whether it is paused"
        if state.paused:
            return words, _then(state, number, "idle")
        return words, _then(state, number, "looks", knows=False)

    def _asks_first(self, state: State, number: int) -> tuple[str, State]:
        after = "removes_blindly" if state.paused else "removes"
        return "asks the leader whether it is paused", _then(state, number, after)

    def _removes_blindly(self, state: State, number: int) -> tuple[str, State]:
        gone = state._replace(task=False, held=False)
        return "removes the task", _then(gone, number, "idle")

    def _looks(self, state: State, number: int) -> tuple[str, State]:
        after = "pokes" if state.requests else "idle"
        return "looks again (W12)", _then(state, number, after)

    def _pokes(self, state: State, number: int) -> tuple[str, State]:
        return "pokes", _then(state, number, "idle")._replace(task=True)


def _then(state: State, number: int, doing: str, *, knows: bool | None = None) -> State:
    rebasers = list(state.rebasers)
    rebasers[number] = doing, rebasers[number][1] if knows is None else knows
    return state._replace(rebasers=tuple(rebasers))
