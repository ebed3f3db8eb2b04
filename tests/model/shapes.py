"""What a state of the model consists of, and which rules and faults an instance has."""

from dataclasses import dataclass
from typing import NamedTuple

CLIENT = 0
"""The claim of a request that is not the result of a DVU."""

ATTEMPTS = 2
"""Failed attempts after which a request is buried."""

DEATHS = 3
"""Runs that died at a request after which it is buried untried."""


@dataclass(frozen=True)
class Rules:
    """The protocol's rules; each can be turned off to see what it is good for."""

    poke_confirmed: bool = True
    """C2: whoever stores a request sees to it that its task is stored."""
    compare_and_swap: bool = True
    """W7: a line is appended only behind the last line its writer knows."""
    takeover: bool = True
    """W2, W15: a run begins with a line of its own, and ends when it cannot append one."""
    confirm: bool = True
    """W10b: a run looks now and then whether it still owns the change set."""
    last_sequence: bool = True
    """W5: a request at or below the last one handled is never applied."""
    recent_ids: bool = True
    """W7: a request whose id was handled is never applied."""
    gapless: bool = True
    """W6: the consumer notices that a message was left out."""
    remove_by_sequence: bool = True
    """W11: a task is not only acked but deleted at the stream's leader."""
    look_again: bool = True
    """W12: after its task is gone, a run looks whether there is work left."""
    requests_first: bool = True
    """W12: and looks at the requests before it looks at the head."""
    need_in_head: bool = True
    """D1: that a DVU is due stands in the head."""
    claim: bool = True
    """D2: only the result of the claim that stands commits."""
    covers: bool = True
    """D5: a result settles only what was there when its DVU began."""
    shield: bool = True
    """D4: a run that ends while it stores its DVU's result sees that there is a task for it."""
    copy_first: bool = True
    """L2: a dead letter is stored before its request counts as handled."""
    blame: bool = True
    """L1: a run that died is counted against the first request in line."""
    release_on_retry: bool = True
    """W14: a run that ends in order releases the change set, so that only deaths are counted."""
    pending_requests: bool = True
    """X1: the reconciler makes tasks for requests that have none."""
    pending_dvus: bool = True
    """X2: the reconciler makes tasks for DVUs that are due and have none."""
    presumed_once: bool = True
    """A presumption of death concerns only tasks that were there when it arose."""


@dataclass(frozen=True)
class Instance:
    """A small world: who is there, and how often what may go wrong."""

    clients: tuple[str, ...] = ("d",)
    """One letter per request: `d` needs a DVU, `p` does not, `x` can never be applied,
    `k` kills who tries it."""
    runs: int = 2
    survivors: int = 1
    dvu: str = "changes"
    """What a DVU comes to: `changes`, `nothing`, or `either`."""
    crashes: int = 0
    """Of runs and survivors."""
    client_crashes: int = 0
    zombies: int = 0
    """Tasks redelivered although their holder is alive."""
    presumptions: int = 0
    """Owners presumed dead, rightly or wrongly."""
    losses: int = 0
    """Acks of publishes, messages to a consumer, unconfirmed publishes."""
    failures: int = 0
    """Attempts at a request, or DVUs, that fail but may succeed the next time."""
    put_off: int = 0
    """Attempts given up for a reason that is not the request's."""
    stops: int = 0
    """SIGTERM."""
    rules: Rules = Rules()


NOT_TRIED = (0, 0, 0)


class Request(NamedTuple):
    """A message of the stream REQUESTS."""

    sequence: int
    id: int
    """Bit of the client's request; 0 for a DVU's result."""
    claim: int = CLIENT
    covers: int = 0
    settles: int = 0
    """Ids whose dependent values it holds."""
    base: int = 0
    """How many DVUs had committed when its own began."""


class Head(NamedTuple):
    """The last line of the commit log, and the state that the lines make."""

    owned: bool = False
    last: int = 0
    dirty: int = 0
    clean: int = 0
    claim: int = 0
    tried: tuple[int, int, int] = NOT_TRIED
    """Sequence of the request tried in vain, attempts that failed, runs that died."""
    applied: int = 0
    """Ids that took effect."""
    unsettled: int = 0
    """Ids among them whose dependent values are not yet right."""

    @property
    def due(self) -> bool:
        return self.dirty > self.clean


class Dvu(NamedTuple):
    """What the DVU of a run is doing: `evaluates`, has `stored` its result, `waits` for it."""

    doing: str
    claim: int
    covers: int
    settles: int
    base: int
    result: int = 0
    """Sequence of the stored result."""


class Run(NamedTuple):
    """One Rebaser's work on the change set."""

    doing: str = "idle"
    holds: bool = False
    """The task it was given is the one in the stream; it can ack, nak, and extend it."""
    late: bool = False
    """Its task was given to another: its lease is over, whether it knows or not."""
    current: bool = False
    """No line was appended behind the last that it knows."""
    head: Head = Head()
    """As far as it knows."""
    cursor: int = 0
    """Sequence of the last request handed out by its consumer."""
    request: Request | None = None
    """In hand."""
    dvu: Dvu | None = None
    spoiled: bool = False
    """An attempt failed: its state may hold half a batch, so it ends once that is settled."""
    asked: bool = False
    """It remembers that a DVU is due; counts only where the head does not say so."""


class State(NamedTuple):
    """One change set, and all who deal with it."""

    crashes: int
    client_crashes: int
    zombies: int
    presumptions: int
    losses: int
    failures: int
    put_off: int
    stops: int
    clients: tuple[tuple[int, str], ...]
    """Which of its requests each is at, and how far with it."""
    runs: tuple[Run, ...]
    survivors: tuple[tuple[str, bool], ...]
    """What each is about to do, and whether the task it saw is still in the stream."""
    requests: tuple[Request, ...] = ()
    task: str = "none"
    """`none`, `ready`, `held`, or `acked` but not yet removed."""
    head: Head = Head()
    dead: int = 0
    """Ids in the dead letters."""
    published: int = 0
    highest: int = 0
    """Greatest sequence that took effect."""
    dvus: int = 0
    """DVUs that committed."""
    broken: str = ""


def initial(world: Instance) -> State:
    return State(
        world.crashes,
        world.client_crashes,
        world.zombies,
        world.presumptions,
        world.losses,
        world.failures,
        world.put_off,
        world.stops,
        clients=((0, "ready"),) * len(world.clients),
        runs=(Run(),) * world.runs,
        survivors=(("listens", False),) * world.survivors,
    )


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
        return old._replace(
            sequence=sequences[old.sequence], claim=claims[old.claim], covers=sequences[old.covers]
        )

    def head(old: Head) -> Head:
        return old._replace(
            last=sequences[old.last],
            dirty=sequences[old.dirty],
            clean=sequences[old.clean],
            claim=claims[old.claim],
            tried=(sequences[old.tried[0]], *old.tried[1:]),
        )

    def dvu(old: Dvu) -> Dvu:
        return old._replace(
            claim=claims[old.claim], covers=sequences[old.covers], result=sequences[old.result]
        )

    def run(old: Run) -> Run:
        return old._replace(
            head=head(old.head),
            cursor=sequences[old.cursor],
            request=old.request and request(old.request),
            dvu=old.dvu and dvu(old.dvu),
        )

    return state._replace(
        runs=tuple(map(run, state.runs)),
        requests=tuple(map(request, state.requests)),
        head=head(state.head),
        highest=sequences[state.highest],
    )


def _sequences(state: State) -> set[int]:
    head = state.head
    found = {0, state.highest, head.last, head.dirty, head.clean, head.tried[0]}
    for request in state.requests:
        found |= {request.sequence, request.covers}
    for run in state.runs:
        if run.doing != "idle":
            head, request, dvu = run.head, run.request, run.dvu
            found |= {run.cursor, head.last, head.dirty, head.clean, head.tried[0]}
            found |= {request.sequence, request.covers} if request else set()
            found |= {dvu.covers, dvu.result} if dvu else set()
    return found


def _claims(state: State) -> set[int]:
    found = {CLIENT, state.head.claim, *[request.claim for request in state.requests]}
    for run in state.runs:
        if run.doing != "idle":
            found.add(run.head.claim)
            found.add(run.dvu.claim if run.dvu else CLIENT)
            found.add(run.request.claim if run.request else CLIENT)
    return found
