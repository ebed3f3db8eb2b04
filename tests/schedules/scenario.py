"""What a seed means: who takes part, what is asked, what goes wrong and when."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.chaos.branch_workload import ACTIONS


class Trouble(StrEnum):
    """Kinds of schedules, by what goes wrong in them."""

    NONE = "none"
    LOSSES = "losses"  # messages lost and late, connections cut, the server without a leader
    ZOMBIES = "zombies"  # processes that stand still, longer than their lease at times
    CRASHES = "crashes"  # processes of Rebasers and clients killed, stopped, started again
    ALL = "all"  # everything, and the server killed


_RECONCILED = (Trouble.CRASHES, Trouble.ALL)
"""Only where processes end may anything be left to the reconcilers (protocol, section 5)."""

_FAULTS = {
    Trouble.NONE: (),
    Trouble.LOSSES: ("cut", "half_cut", "leaderless"),
    Trouble.ZOMBIES: ("freeze", "freeze", "freeze", "cut"),
    Trouble.CRASHES: ("kill", "kill", "power", "stop", "cancel", "kill_client", "orphan"),
    Trouble.ALL: (
        "cut", "half_cut", "leaderless", "freeze", "freeze", "kill", "kill", "power", "stop",
        "cancel", "kill_client", "orphan", "restart_nats",
    ),
}  # fmt: skip

MOMENTS = ("taken", "committed", "released", "deleted", "settled", "removed")
"""What a Rebaser has just had done, as the server sees it; it does not know so yet."""

_AIMED = ("kill", "power", "freeze", "cut", "half_cut", "stop", "cancel")
"""Faults that may befall whoever comes to such a moment next."""


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: str
    target: int
    seconds: float
    moment: str
    """When it strikes, and whom, after `at`; empty: at once, `target`."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that a client sends, `pause` seconds after the one before.

    With a `cue` not before a Rebaser comes to that moment, unless none does for long.
    """

    pause: float
    change_set: int
    reply: bool
    poison: bool
    cue: str


@dataclass(frozen=True, slots=True)
class Act:
    """Something done to a branch, `pause` seconds after the one before; a `cue` is as an ask's."""

    pause: float
    what: str
    branch: int
    cue: str


@dataclass(frozen=True, slots=True)
class Pausing:
    """Something is paused, `pause` seconds after the one before ended; a `cue` is as an ask's."""

    pause: float
    breadth: int
    """Of what is paused: 2 a change set, 1 the workspace, 0 everything."""
    change_set: int
    seconds: float
    """Until it is resumed."""
    cue: str


@dataclass(slots=True)
class Plan:
    """Everything that is decided beforehand."""

    trouble: Trouble
    rebasers: int
    change_sets: int
    asks: list[list[Ask]]
    """By client."""
    faults: list[Fault]
    settings: dict[str, float | int]
    delay: float
    spikes: float
    loss: float
    lag: float
    dvu_seconds: float
    dvu_fails: float
    store_fails: float
    put_off: float
    """Chance that a request cannot be handled just now. Then one run that dies at it, and another,
    are too many, and no fault ends any."""
    horizon: float
    acts: list[Act]
    """None: there are no branches. Else the first change set is the head of a workspace."""
    pausings: list[Pausing]
    at_a_time: bool
    """Clients send their next request before the last one is confirmed."""
    endless: bool
    """The update of a run that was fenced off never ends by itself."""
    made_anew: bool
    """In the end the requests' stream is deleted and made anew, and clients go on."""
    starved: float | None = None
    """Rebasers have processor time in slices alone, whose first begin within so many seconds."""

    @property
    def requests(self) -> int:
        return sum(map(len, self.asks))


def plan_of(seed: object) -> Plan:
    """The same for the same seed, for ever on this version of Python."""
    rng = random.Random(f"plan {seed}")
    trouble = rng.choices(list(Trouble), (1, 2, 2, 2, 3))[0]
    change_sets = rng.choice((1, 1, 2, 3))
    horizon = rng.choice((0.5, 2.0, 6.0))
    rebasers = rng.choice((1, 2, 2, 3))
    asks = [_asks(rng, change_sets, horizon, trouble) for _ in range(rng.choice((1, 1, 2)))]
    lossy = trouble in (Trouble.LOSSES, Trouble.ALL)
    ack_wait = rng.choice((2.0, 6.0, 12.0))
    acts = _acts(seed, horizon)
    put_off = _put_off(seed, trouble)
    return Plan(
        trouble=trouble,
        rebasers=rebasers,
        change_sets=change_sets,
        asks=asks,
        faults=_faults(rng, trouble, horizon, ack_wait),
        settings={
            "concurrency": rng.choice((1, 2, 8)),
            "quiet_period": rng.choice((0.05, 0.3, 1.0, 3.0)),
            "ack_wait": ack_wait,
            "reconcile_interval": 4.0 if trouble in _RECONCILED else 1e6,
            "shutdown_grace": 20.0,
            "checkpoint_every": rng.choice((3, 500)),
            "history": {"max_commits": 0},
            "dvu_max_attempts": 1000,
            **({"max_attempts": 1} if put_off else {}),
        },
        delay=rng.choice((0.0002, 0.002, 0.02)),
        spikes=rng.choice((0.0, 0.02, 0.2)),
        loss=rng.choice((0.005, 0.03)) if lossy else 0.0,
        lag=rng.choice((0.0, 0.003)),
        dvu_seconds=rng.choice((0.0, 0.05, 1.0)),
        dvu_fails=rng.choice((0.0, 0.0, 0.3)),
        store_fails=rng.choice((0.0, 0.0, 0.1)) if lossy else 0.0,
        put_off=put_off,
        horizon=horizon,
        acts=acts,
        pausings=_pausings(seed, change_sets, horizon),
        at_a_time=random.Random(f"at a time {seed}").random() < 0.3,
        endless=random.Random(f"endless {seed}").random() < 0.5,
        made_anew=random.Random(f"made anew {seed}").random() < 0.1,
    )


SLICES = 9
AWAKE, ASLEEP = 0.5, 2.6
"""Virtual seconds of a slice, and before it: longer than the lease."""
STEP = 0.001
"""Virtual seconds of processor time that a callback takes."""


def starved_plan_of(seed: object) -> Plan:
    """Another one: a tenth of the processor time that is needed, and nothing else goes wrong."""
    rng, change_sets, count = random.Random(f"starved {seed}"), 40, 250
    horizon = SLICES * (AWAKE + ASLEEP)
    asks = [
        [Ask(horizon / count, rng.randrange(change_sets), False, False, "") for _ in range(count)]
        for _ in range(4)
    ]
    plan = plan_of(seed)
    settings = {
        "concurrency": rng.choice((2, 8, 100)), "quiet_period": rng.choice((0.3, 1.0)),
        "ack_wait": 2.0, "reconcile_interval": 4.0,
    }  # fmt: skip
    return replace(
        plan, trouble=Trouble.ZOMBIES, rebasers=rng.choice((1, 2)), change_sets=change_sets,
        asks=asks, faults=[], settings=plan.settings | settings, delay=rng.choice((0.0002, 0.002)),
        loss=0.0, spikes=0.0, store_fails=0.0, put_off=0.0, horizon=horizon, acts=[], pausings=[],
        at_a_time=True, made_anew=False, starved=rng.choice((0.0, AWAKE + ASLEEP)),
    )  # fmt: skip


def _asks(rng: random.Random, change_sets: int, horizon: float, trouble: Trouble) -> list[Ask]:
    count = rng.choice((1, 2, 3, 5, 8))
    pauses = (0.0, horizon / count, 2 * horizon / count)
    asks = []
    for left in reversed(range(count)):
        # What comes when all was thought to be done is missed most easily, if it is the last.
        cues = MOMENTS if left or rng.random() < 0.3 else ("released", "settled", "removed")
        asks.append(
            Ask(
                pause=rng.choice(pauses) * rng.random(),
                change_set=rng.randrange(change_sets),
                reply=rng.random() < 0.3,
                poison=trouble is Trouble.ALL and rng.random() < 0.05,
                cue=rng.choice(cues) if rng.random() < 0.7 else "",
            )
        )
    return asks


def _acts(seed: object, horizon: float) -> list[Act]:
    rng = random.Random(f"acts {seed}")
    if rng.random() < 0.6:
        return []
    count = rng.choice((3, 6, 10))
    actions = ["fork", *rng.choices(list(ACTIONS), list(ACTIONS.values()), k=count)]
    return [
        Act(
            pause=rng.choice((0.0, horizon / count, 2 * horizon / count)) * rng.random(),
            what=what,
            branch=rng.randrange(6),
            cue=rng.choice(MOMENTS) if rng.random() < 0.4 else "",
        )
        for what in actions
    ]


def _put_off(seed: object, trouble: Trouble) -> float:
    rng = random.Random(f"put off {seed}")
    return rng.choice((0.0, 0.5)) if trouble is Trouble.NONE else 0.0


def _pausings(seed: object, change_sets: int, horizon: float) -> list[Pausing]:
    rng = random.Random(f"pausings {seed}")
    if rng.random() < 0.5:
        return []
    return [
        Pausing(
            pause=rng.choice((0.0, horizon / 4)) * rng.random(),
            breadth=rng.choice((0, 1, 2, 2)),
            change_set=rng.randrange(change_sets),
            seconds=rng.choice((0.0, 0.05, 1.0, 8.0)) * rng.random(),
            cue=rng.choice(MOMENTS) if rng.random() < 0.6 else "",
        )
        for _ in range(rng.choice((1, 3, 8)))
    ]


def _faults(rng: random.Random, trouble: Trouble, horizon: float, ack_wait: float) -> list[Fault]:
    kinds = _FAULTS[trouble]
    if not kinds:
        return []
    durations = (0.02, 0.3, 5.0, 1.5 * ack_wait)
    faults = []
    for _ in range(rng.choice((1, 2, 4, 6))):
        kind = rng.choice(kinds)
        aimed = kind in _AIMED and rng.random() < 0.6
        faults.append(
            Fault(
                at=rng.random() * (horizon + (1.0 if aimed else 3.0)),
                kind=kind,
                target=rng.randrange(6),
                seconds=rng.choice(durations) * (0.5 + rng.random()),
                moment=rng.choice(MOMENTS) if aimed else "",
            )
        )
    return sorted(faults, key=lambda fault: fault.at)
