"""What is sent ahead of receipts: lines, each behind the one before it (W7), and deletes (W9)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.explorer import Step
from tests.model.shapes import DEATHS, NOT_TRIED, Flight, Instance, Line, Request, State
from tests.model.surroundings import deleted, name

if TYPE_CHECKING:
    from tests.model.runs import OneRun


def steps(world: Instance, state: State) -> Iterator[Step]:
    for number, flight in enumerate(state.flights):
        flies = _flies_together if world.together else _flies
        yield from flies(world, state, number, flight)
    if state.flights and state.strangers:
        flights = tuple(flight._replace(stream=_next(flight), last=-1) for flight in state.flights)
        after = state._replace(flights=flights, strangers=state.strangers - 1)
        yield Step("another change set's commit is stored", after, fault=True)
    for one in state.deletes:
        sequence, run = one
        left = state._replace(deletes=tuple(other for other in state.deletes if other != one))
        words = "the delete of a handled request"
        yield Step(f"{words} comes through", _gone(world, left, sequence))
        if run < 0:
            yield Step(f"{words} is lost with its run", left, fault=True)


# -- lines: W7 ----------------------------------------------------------------------------------


def sends(one: "OneRun", waiting: list[Request]) -> Iterator[Step]:
    """Have the lines of several requests sent, one behind the other."""
    run, chosen = one.run, waiting[: one.world.at_once]
    if run.alone or len(chosen) < 2 or not all(_is_ordinary(one, r) for r in chosen):
        return
    words = "receives " + " and ".join(map(name, chosen))
    if any(one.kind(request) == "k" for request in chosen):
        yield one._step(f"{words}, and dies before any line is sent", one._dead())
        return
    head, lines = run.head, []
    for request in chosen:
        head = head._replace(
            last=request.sequence, tried=NOT_TRIED, applied=head.applied | request.id
        )
        if one.kind(request) == "d":
            head = head._replace(dirty=request.sequence, unsettled=head.unsettled | request.id)
        lines.append(Line(request, head))
    more = one.world.turns and len(waiting) > len(chosen)
    last = chosen[-1].sequence
    state = one._now("awaits", cursor=last, lines=tuple(lines), more=more)
    since = 0 if run.current else len(lines) + 1
    flight = Flight(one.number, tuple(lines), stream=since, subject=since)
    state = state._replace(flights=(*state.flights, flight))
    if one.world.pipelined and not one.rules.line_first:
        for request in chosen:
            state = asked_to_delete(state, request, one.number)
    yield one._step(f"{words}, and sends their lines", state)


def _is_ordinary(one: "OneRun", request: Request) -> bool:
    head = one.run.head
    untried = one._tried(request)[1] < DEATHS
    known = request.sequence <= head.last or head.applied & request.id
    return one.kind(request) in "dpk" and untried and not known


def _flies(world: Instance, state: State, number: int, flight: Flight) -> Iterator[Step]:
    """The next of its lines comes to the stream, in the order in which they were sent."""
    if flight.arrived == len(flight.lines):
        return
    index = flight.arrived
    words = f"the line of {name(flight.lines[index].request)}"
    if _is_expected(world, flight, index):
        after = stored(state, number, index)
        if flight.subject != index:
            after = after._replace(broken="S2: a commit names another as the one before it")
        yield Step(f"{words} is stored", _arrived(after, number))
    else:
        yield Step(f"{words} is refused: not the one before it is there", _arrived(state, number))
    if state.losses:
        lost = _arrived(state, number)._replace(losses=state.losses - 1)
        yield Step(f"{words} is lost", lost, fault=True)


def _flies_together(world: Instance, state: State, number: int, flight: Flight) -> Iterator[Step]:
    """The batch is complete at the stream's leader; before that, nothing of it counts."""
    if flight.arrived == len(flight.lines):
        return
    after = state
    if flight.subject == 0 or not world.rules.batch_compared:
        for index in range(len(flight.lines)):
            after = stored(after, number, index)
        yield Step("the batch of lines is stored", _all_arrived(after, number))
    else:
        yield Step(
            "the batch of lines is refused: there is another line", _all_arrived(after, number)
        )
    if state.losses:
        lost = _all_arrived(state, number)._replace(losses=state.losses - 1)
        yield Step("a part of the batch is lost, and so all of it", lost, fault=True)


def _all_arrived(state: State, number: int) -> State:
    flight = state.flights[number]
    return _with_flight(state, number, flight._replace(arrived=len(flight.lines)))


def _arrived(state: State, number: int) -> State:
    flight = state.flights[number]
    return _with_flight(state, number, flight._replace(arrived=flight.arrived + 1))


def _is_expected(world: Instance, flight: Flight, index: int) -> bool:
    if index == 0:
        return flight.subject == 0
    sequence = flight.subject == index or not world.rules.foreseen
    return sequence and (flight.last == index - 1 or not world.rules.after_own)


def stored(state: State, number: int, index: int) -> State:
    """The line is the last one now."""
    flight = state.flights[number]
    request, head = flight.lines[index]
    broken = ""
    if request.sequence < state.highest:
        broken = f"S2: {name(request)} took effect after a later one"
    if state.head.applied & request.id:
        broken = f"S3: {name(request)} took effect twice"
    if (state.head.applied | request.id) != head.applied:
        broken = "S1: a commit was stored without the one before it"
    runs = tuple(run._replace(current=n == flight.run) for n, run in enumerate(state.runs))
    state = line_stored(state)._replace(
        runs=runs,
        head=head._replace(died=state.head.died),
        highest=request.sequence,
        broken=state.broken or broken,
    )
    here = state.flights[number]._replace(last=index, stored=index + 1)
    return _with_flight(state, number, here)


def line_stored(state: State) -> State:
    """Somebody's line was stored behind all others of the change set."""
    return state._replace(
        flights=tuple(
            flight._replace(stream=_next(flight), subject=_next(flight), last=-1)
            for flight in state.flights
        )
    )


def _next(flight: Flight) -> int:
    return min(flight.stream + 1, len(flight.lines) + 1)  # beyond, all are too many


def _with_flight(state: State, number: int, flight: Flight) -> State:
    before, after = state.flights[:number], state.flights[number + 1 :]
    over = flight.run < 0 and flight.arrived == len(flight.lines)
    return state._replace(flights=(*before, *(() if over else (flight,)), *after))


def awaits(one: "OneRun") -> Iterator[Step]:
    """The receipts come, or do not."""
    _, flight = _own_flight(one)
    if flight.arrived < len(flight.lines):
        if one.state.losses:
            state = one._now("repeats")._replace(losses=one.state.losses - 1)
            yield one._step("waits for its receipts no longer", state, fault=True)
    elif flight.stored == len(flight.lines):
        yield one._step("has all its receipts", _all_there(one))
    else:
        yield one._step("hears that not all its lines are there", one._now("repeats"))


def repeats(one: "OneRun") -> Iterator[Step]:
    """Each line that is not there yet, when the one before it is."""
    number, flight = _own_flight(one)
    if not one.run.current:
        one.refused = True
        yield one._step("sends a line again", one._ended())
    elif flight.stored == len(flight.lines):
        yield one._step("finds its lines in the log", _all_there(one))
    else:
        request = flight.lines[flight.stored].request
        state = stored(one.state, number, flight.stored)
        yield one._step(f"sends the line of {name(request)} again, which is stored", state)


def _own_flight(one: "OneRun") -> tuple[int, Flight]:
    return next(found for found in enumerate(one.state.flights) if found[1].run == one.number)


def _all_there(one: "OneRun") -> State:
    lines = one.run.lines
    state = one._now("deletes", head=lines[-1].head, request=lines[0].request)
    return orphaned(state, one.number, deletes=False)


# -- deletes: W9 --------------------------------------------------------------------------------


def asked_to_delete(state: State, request: Request, number: int) -> State:
    one = (request.sequence, number)
    return state._replace(deletes=(*(other for other in state.deletes if other != one), one))


def _gone(world: Instance, state: State, sequence: int) -> State:
    """What the stream is after a delete of that request has come through."""
    if not world.purging:
        return deleted(state, sequence)
    for request in state.requests:
        if request.sequence <= sequence or not world.rules.purge_bounded:
            state = deleted(state, request.sequence)
    return state


def orphaned(state: State, number: int, *, deletes: bool = True) -> State:
    """That run waits for none of this any more; it may come through all the same."""
    if state.flights:
        mine = [flight for flight in state.flights if flight.run == number]
        flights = tuple(
            flight._replace(run=-1) if flight in mine else flight
            for flight in state.flights
            if flight not in mine or flight.arrived < len(flight.lines)
        )
        state = state._replace(flights=flights)
    if deletes and state.deletes:
        left = {(sequence, -1 if run == number else run) for sequence, run in state.deletes}
        state = state._replace(deletes=tuple(sorted(left)))
    return state
