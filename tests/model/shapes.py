"""What a state of the model consists of, and which rules and faults an instance has."""

from dataclasses import dataclass
from typing import NamedTuple

NO_CLAIM = 0
"""Where no DVU has claimed the change set."""

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
    last_sequence: bool = True
    """W5: a request at or below the last one handled is never applied."""
    recent_ids: bool = True
    """W7: a request whose id was handled is never applied."""
    gapless: bool = True
    """W6: the consumer notices that a message was left out."""
    remove_by_sequence: bool = True
    """W11: a task is not only acked but deleted at the stream's leader."""
    look_again: bool = True
    heed_head: bool = True
    """W12: after its task is gone, a run looks whether there is work left."""
    requests_first: bool = True
    """W12: and looks at the requests before it looks at the head."""
    need_in_head: bool = True
    """D1: that a DVU is due stands in the head."""
    claim: bool = True
    """D4: a result is committed only if its claim stands."""
    claim_at_last: bool = True
    """D4: and that is looked at as its line is written, not before."""
    fenced: bool = True
    """D4: its line, too, is appended only behind the last line that its writer knows."""
    one_line: bool = True
    """D4: what it sets and what it settles are in the same line."""
    part_settles_nothing: bool = True
    """D4: results that are committed before the others leave the claim and what is clean."""
    covers: bool = True
    """D5: a result settles only what was there when its DVU began."""
    copy_first: bool = True
    """L2: a dead letter is stored before its request counts as handled."""
    blame: bool = True
    """L1: a run that died is counted against the first request in line."""
    living_spared: bool = True
    """L1: and none that lives, having lost its lease."""
    release_on_stop: bool = True
    """W14: at SIGTERM a run releases its change set, so that only deaths are counted."""
    pending_requests: bool = True
    """X1: the reconciler makes tasks for requests that have none."""
    pending_dvus: bool = True
    """X2: the reconciler makes tasks for DVUs that are due and have none."""
    presumed_once: bool = True
    """A presumption of death concerns only tasks that were there when it arose."""
    foreseen: bool = True
    """W7: a line sent ahead expects the sequence of the one before it."""
    after_own: bool = True
    """W7: and that the one before it, known by its id, is the stream's last message."""
    batch_compared: bool = True
    """W7: of lines stored together, the first expects the last line that its writer knows."""
    careful: bool = True
    """L1: a run whose predecessor did not release sends no lines ahead."""
    line_first: bool = True
    """W9: a request is deleted when its line is there, and not before."""
    purge_bounded: bool = True
    """W9: a purge ends with the last request whose line is there."""
    deletes_confirmed: bool = True
    """W9: a run is not quiet before all that it handled is known to be gone."""
    turn_request: bool = True
    """W10c: a run whose turn is over stays while a DVU is due and no request waits."""


@dataclass(frozen=True)
class Instance:
    """A small world: who is there, and how often what may go wrong."""

    clients: tuple[str, ...] = ("d",)
    """One letter per request: `d` needs a DVU, `p` does not, `x` can never be applied,
    `k` kills who tries it, `c` closes the change set."""
    runs: int = 2
    survivors: int = 1
    crashes: int = 0
    """Of runs and survivors."""
    client_crashes: int = 0
    zombies: int = 0
    """Tasks redelivered although their holder is alive."""
    presumptions: int = 0
    """Owners presumed dead, rightly or wrongly."""
    unowned: bool = False
    """F5: tasks whose change set nobody owns are given anew, too, whoever holds them."""
    losses: int = 0
    """Acks of publishes, messages to a consumer, unconfirmed publishes."""
    failures: int = 0
    """Attempts at a request, or DVUs, that fail but may succeed the next time."""
    put_off: int = 0
    """Attempts given up for a reason that is not the request's."""
    stops: int = 0
    """SIGTERM."""
    at_once: int = 1
    """Requests whose lines are sent ahead of each other's receipts."""
    together: bool = False
    """These lines are one batch: the server stores all or none."""
    strangers: int = 0
    """Lines of other change sets, which take a sequence of the same stream."""
    pipelined: bool = False
    """Deletes are asked for, and waited for only in the end."""
    purging: bool = False
    """Each of these deletes is a purge: it takes the change set's earlier requests along."""
    looks: bool = False
    """A run looks whether there is work before it takes over."""
    parts: int = 0
    """Commits of a DVU with a part of its results, before the one with the rest."""
    turns: bool = False
    """A run's turn may be over after each request."""
    rules: Rules = Rules()


NOT_TRIED = (0, 0, 0)


class Request(NamedTuple):
    """A message of the stream REQUESTS."""

    sequence: int
    id: int
    """Its bit."""


class Head(NamedTuple):
    """The last line of the commit log, and the state that the lines make."""

    owned: bool = False
    died: bool = False
    """Whether its owner has ended without a release: a process that asks it is refused (F6)."""
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
    closed: bool = False
    """Nothing is computed in it any more."""

    @property
    def due(self) -> bool:
        return self.dirty > self.clean


class Dvu(NamedTuple):
    """What the DVU of a run is doing.

    It `evaluates`; its results are `placed` beside the log; its line is `half` written, where
    it takes two.
    """

    doing: str
    claim: int
    covers: int
    settles: int
    """Ids whose dependent values it has."""
    base: int
    """How many DVUs had committed when it began."""
    stood: bool = True
    """Its claim, when its results were placed."""
    parts: int = 0
    """So many parts it may commit before the rest."""


class Line(NamedTuple):
    """A line sent ahead, with the head as its writer foresees it."""

    request: Request
    head: Head


class Flight(NamedTuple):
    """Lines on their way to the stream, one behind the other, and what was stored since.

    Counted from the line that their writer knew as the last one: only that matters.
    """

    run: int
    """Whose; -1 if that has ended."""
    lines: tuple[Line, ...]
    arrived: int = 0
    stored: int = 0
    """So many of the first ones are in the log."""
    stream: int = 0
    """Messages stored since, also other change sets'."""
    subject: int = 0
    """Sequence of the change set's last line."""
    last: int = -1
    """Which of the lines the stream's last message is; -1: none of them."""


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
    lines: tuple[Line, ...] = ()
    """Sent ahead, and not yet all known to be in the log and asked to be deleted."""
    alone: bool = False
    """It sends no lines ahead."""
    more: bool = False
    """A request was waiting behind the last one when that was delivered."""


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
    together: bool = False
    """These lines are one batch: the server stores all or none."""
    strangers: int = 0
    flights: tuple[Flight, ...] = ()
    deletes: tuple[tuple[int, int], ...] = ()
    """On their way: the request's sequence, and the run that asked for it; -1 if that has ended."""


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
        strangers=world.strangers,
    )
