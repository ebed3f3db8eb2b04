"""A stream of requests that is made anew (S-5): which of its requests were handled before."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class State(NamedTuple):
    """One change set in a stream that others use, too."""

    to_publish: int
    others: int
    """Requests of other change sets that are to come."""
    crashes: int
    remakes: int
    requests: tuple[tuple[int, int, int], ...] = ()
    """Of the change set: sequence, time and id of each."""
    ends: int = 0
    """Last sequence of the stream."""
    clock: int = 0
    """The server's. It only runs on."""
    handled: int = 0
    """Last sequence that was handled."""
    handled_time: int = 0
    """When the last one that was handled had been stored."""
    known: int = 0
    """The id of the last request that was handled, 0 once it is forgotten."""
    effects: int = 0
    """Ids that took effect, as bits."""
    refused: bool = False
    broken: str = ""


@dataclass(frozen=True)
class Rules:
    identity: bool = True
    """S-5: a request that was stored after the last handled one was not handled before it."""


@dataclass(frozen=True)
class MadeAnew:
    """Whoever handles requests may die between a commit and the delete; ids are forgotten."""

    requests: int = 2
    others: int = 2
    crashes: int = 1
    remakes: int = 1
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.requests, self.others, self.crashes, self.remakes)

    def broken(self, state: State) -> str:
        return state.broken

    def restless(self, state: State) -> str:
        return "S1: requests are left, and no run will handle them" if state.requests else ""

    def steps(self, state: State) -> Iterator[Step]:
        if state.to_publish:
            number = state.to_publish
            stored = _advanced(state)
            message = (stored.ends, stored.clock, number)
            requests = (*stored.requests, message)
            after = stored._replace(to_publish=number - 1, requests=requests)
            yield Step(f"a client stores request {number}", after)
        if state.others:
            after = _advanced(state)._replace(others=state.others - 1)
            yield Step("another change set's request is stored", after)
        if state.remakes:
            anew = state._replace(remakes=state.remakes - 1, requests=(), ends=0)
            yield Step("the stream is made anew", anew, fault=True)
        if state.known:
            yield Step("the id is forgotten", state._replace(known=0), fault=True)
        if state.refused:
            yield Step("an operator has what waits stored again", _stored_again(state))
        elif state.requests:
            yield from self._handle(state)

    def _handle(self, state: State) -> Iterator[Step]:
        sequence, time, number = state.requests[0]
        deleted = state._replace(requests=state.requests[1:])
        if sequence > state.handled:
            done = deleted._replace(
                handled=sequence,
                handled_time=max(time, state.handled_time),
                known=number,
                effects=state.effects | 1 << number,
                broken="S3: a request took effect twice" if state.effects >> number & 1 else "",
            )
            yield Step(f"a run handles request {number}", done)
            if state.crashes:
                died = done._replace(requests=state.requests, crashes=state.crashes - 1)
                yield Step(f"a run commits request {number}, and dies", died, fault=True)
        elif state.ends < state.handled or (
            self.rules.identity and number != state.known and time > state.handled_time
        ):
            yield Step(f"a run refuses request {number}", state._replace(refused=True))
        else:
            lost = not state.effects >> number & 1
            broken = f"S1: request {number} was deleted without effect" if lost else ""
            yield Step(f"a run deletes request {number}", deleted._replace(broken=broken))


def _advanced(state: State) -> State:
    return state._replace(ends=state.ends + 1, clock=state.clock + 1)


def _stored_again(state: State) -> State:
    """Behind what was handled: the former ones are deleted once their copies are stored."""
    state = state._replace(ends=max(state.ends, state.handled), refused=False)
    waiting, state = state.requests, state._replace(requests=())
    for _, _, number in waiting:
        state = _advanced(state)
        state = state._replace(requests=(*state.requests, (state.ends, state.clock, number)))
    return state
