"""The memory of request ids (W7): how long an id is kept, where the server has forgotten it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step

RING = 1
"""Ids that are kept in any case."""
HORIZON = 1
"""Ticks of the server's clock in which the client sends its request again."""
REPEATED = 0
"""The id that is sent twice; each other one is sent once."""


class Stored(NamedTuple):
    """A request in the queue, or an id in the memory."""

    id: int
    at: int
    """Tick of the server's clock at which it was stored."""
    content: int = 0
    """Another one is another request, though its id be the same."""


class State(NamedTuple):
    """One change set; its run may sleep between any two requests."""

    clock: int = 0
    sent: int = 0
    """Requests of other ids that were stored."""
    repeats: int = 0
    reuses: int = 0
    first: int = -1
    """When the client sent its request for the first time; -1: not yet."""
    queue: tuple[Stored, ...] = ()
    memory: tuple[Stored, ...] = ()
    """Oldest first."""
    effects: int = 0
    """Of the repeated request."""
    misled: bool = False
    """Whether a request was answered with what became of another one."""


@dataclass(frozen=True)
class Rules:
    by_time: bool = True
    """An id is kept for twice the horizon, however many others come."""
    stored_time: bool = True
    """Time passes from one request's storing to another's, not from one commit to another."""
    by_content: bool = True
    """A request whose id is another one's is refused, not answered as that one was."""


@dataclass(frozen=True)
class Remembering:
    """The server remembers no id: each repetition is stored once more."""

    others: int = 2
    ticks: int = 4
    repeats: int = 2
    reuses: int = 0
    """Other requests under the repeated one's id."""
    rules: Rules = Rules()

    def initial(self) -> State:
        return State()

    def broken(self, state: State) -> str:
        if state.misled:
            return "S1: a request that has no effect was answered as another one that has"
        return "S3: the repeated request took effect twice" if state.effects > 1 else ""

    def restless(self, state: State) -> str:
        return "S1: requests are left, and no run will handle them" if state.queue else ""

    def steps(self, state: State) -> Iterator[Step]:
        if state.clock < self.ticks:
            yield Step("time passes", state._replace(clock=state.clock + 1), fault=True)
        if state.first < 0:
            sent = _store(state, REPEATED)._replace(first=state.clock)
            yield Step("the client stores its request", sent)
        elif state.repeats < self.repeats and state.clock - state.first <= HORIZON:
            again = _store(state, REPEATED)._replace(repeats=state.repeats + 1)
            yield Step("the client stores it again", again, fault=True)
        if state.reuses < self.reuses:
            other = _store(state, REPEATED, content=1)._replace(reuses=state.reuses + 1)
            yield Step("a client stores another request under its id", other, fault=True)
        if state.sent < self.others:
            other = _store(state, state.sent + 1)._replace(sent=state.sent + 1)
            yield Step("another request is stored", other)
        if state.queue:
            yield self._handles(state)

    def _handles(self, state: State) -> Step:
        request, *queue = state.queue
        state = state._replace(queue=tuple(queue))
        known = next((each for each in state.memory if each.id == request.id), None)
        if known is not None and known.content == request.content:
            return Step("the run finds a duplicate", state)
        if known is not None:
            if self.rules.by_content:
                return Step("the run refuses another request of a known id", state)
            return Step(
                "the run takes another request for a duplicate", state._replace(misled=True)
            )
        now = request.at if self.rules.stored_time else state.clock
        memory = [*state.memory, Stored(request.id, now, request.content)]
        while len(memory) > RING and not (self.rules.by_time and memory[0].at >= now - 2 * HORIZON):
            memory.pop(0)
        effects = state.effects + (request.id == REPEATED and request.content == 0)
        after = state._replace(memory=tuple(memory), effects=effects)
        return Step(f"the run commits request {request.id}", after)


def _store(state: State, request_id: int, content: int = 0) -> State:
    return state._replace(queue=(*state.queue, Stored(request_id, state.clock, content)))
