"""Numbers of states: the next ones, and states that differ in nothing else made the same."""

from collections.abc import Iterator

from tests.model.shapes import NO_CLAIM, Dvu, Head, Line, Request, Run, State


def next_sequence(state: State) -> int:
    return 1 + max(_sequences(state))


def next_claim(state: State) -> int:
    return 1 + max(_claims(state))


def canonical(state: State) -> State:
    """The same with sequences and claims renumbered: only their order matters.

    So what goes round in circles is seen to, although its numbers grow.
    """
    found, claimed = _sequences(state), _claims(state)
    if max(found) < len(found) and max(claimed) < len(claimed):  # numbered without a gap
        return state
    sequences = {old: new for new, old in enumerate(sorted(found))}
    claims = {old: new for new, old in enumerate(sorted(claimed))}

    def request(old: Request) -> Request:
        return old._replace(sequence=sequences[old.sequence])

    def head(old: Head) -> Head:
        return old._replace(
            last=sequences[old.last],
            dirty=sequences[old.dirty],
            clean=sequences[old.clean],
            claim=claims[old.claim],
            tried=(sequences[old.tried[0]], *old.tried[1:]),
        )

    def dvu(old: Dvu) -> Dvu:
        return old._replace(claim=claims[old.claim], covers=sequences[old.covers])

    def lines(old: tuple[Line, ...]) -> tuple[Line, ...]:
        return tuple(Line(request(line.request), head(line.head)) for line in old)

    def run(old: Run) -> Run:
        return old._replace(
            head=head(old.head),
            cursor=sequences[old.cursor],
            request=old.request and request(old.request),
            dvu=old.dvu and dvu(old.dvu),
            lines=lines(old.lines),
        )

    return state._replace(
        runs=tuple(map(run, state.runs)),
        requests=tuple(map(request, state.requests)),
        head=head(state.head),
        highest=sequences[state.highest],
        flights=tuple(flight._replace(lines=lines(flight.lines)) for flight in state.flights),
        deletes=tuple((sequences[sequence], run) for sequence, run in state.deletes),
    )


def _sequences(state: State) -> set[int]:
    found = {0, state.highest, *_in_head(state.head)}
    found.update(request.sequence for request in state.requests)
    for run in state.runs:
        if run.doing != "idle":
            request, dvu = run.request, run.dvu
            found |= {run.cursor, *_in_head(run.head)}
            found |= {request.sequence} if request else set()
            found |= {dvu.covers} if dvu else set()
            found.update(_in_lines(run.lines))
    for flight in state.flights:
        found.update(_in_lines(flight.lines))
    found.update(sequence for sequence, _ in state.deletes)
    return found


def _in_head(head: Head) -> tuple[int, ...]:
    return head.last, head.dirty, head.clean, head.tried[0]


def _in_lines(lines: tuple[Line, ...]) -> Iterator[int]:
    for line in lines:
        yield from (line.request.sequence, *_in_head(line.head))


def _claims(state: State) -> set[int]:
    found = {NO_CLAIM, state.head.claim}
    for run in state.runs:
        if run.doing != "idle":
            found.add(run.head.claim)
            found.add(run.dvu.claim if run.dvu else NO_CLAIM)
            found.update(line.head.claim for line in run.lines)
    found.update(line.head.claim for flight in state.flights for line in flight.lines)
    return found
