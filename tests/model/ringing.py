"""Timers of a key (O5): settings that its commits have, alarms that NATS keeps, and calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class Run(NamedTuple):
    """A run of the key; the log knows the last that took over."""

    number: int
    arms: int = 0
    """Setting whose alarm it is about to set; 0: none."""


class State(NamedTuple):
    """One timer. A setting is the number of the request that made it; all are to one time."""

    crashes: int
    takeovers: int
    losses: int
    settings: int
    """Settings that clients still make."""
    owner: int = 1
    runs: tuple[Run, ...] = (Run(1),)
    made: int = 0
    """The last setting."""
    timer: int = 0
    """Setting that the key's state has; 0: it called, or there was none."""
    due: bool = False
    """The log says that an alarm is to be set."""
    alarm: int = 0
    """Setting of the alarm that NATS keeps, which may ring."""
    rings: tuple[int, ...] = ()
    """Rings that no worker has acked."""
    taken: tuple[int, ...] = ()
    """Rings that a worker has acked, and not stored as a request yet."""
    queue: tuple[int, ...] = ()
    """Requests of rings."""
    known: frozenset[int] = frozenset()
    """Ids of requests that were handled."""
    called: tuple[int, ...] = ()
    """Settings whose call was made."""
    wrong: bool = False
    """A call was made by a setting that was not in force."""


@dataclass(frozen=True)
class Rules:
    hint: bool = True
    """A ring calls only if the timer is set as it says (O5)."""
    later_stays: bool = True
    """An alarm replaces none of a later setting (O5)."""
    own_ids: bool = True
    """The id of a ring's request is of the setting, and not of the time alone (O5)."""
    stored_first: bool = True
    """A ring is acked once its request is stored (O5)."""
    looks: bool = True
    """A run that begins sets alarms that are gone (O5)."""


@dataclass(frozen=True)
class Ringing:
    """A timer is set, and set again; NATS may ring as soon as it has an alarm."""

    settings: int = 2
    crashes: int = 1
    takeovers: int = 1
    """By another run while one lives."""
    losses: int = 0
    """Alarms that NATS loses."""
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.crashes, self.takeovers, self.losses, self.settings)

    def broken(self, state: State) -> str:
        if state.wrong:
            return "O5: a setting called that was not in force"
        return "S3: a setting called twice" if len({*state.called}) < len(state.called) else ""

    def restless(self, state: State) -> str:
        return "S1: a timer is set, and never calls" if state.timer else ""

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._is_owned(state)
        for run in state.runs:
            yield from self._arms(state, run)
            if state.crashes:
                runs = tuple(each for each in state.runs if each != run)
                dead = state._replace(runs=runs, crashes=state.crashes - 1)
                yield Step(f"run {run.number} dies", dead, fault=True)
        yield from self._rings(state)
        if state.losses and state.alarm:
            lost = state._replace(alarm=0, losses=state.losses - 1)
            yield Step("NATS loses the alarm", lost, fault=True)

    def _owner(self, state: State) -> Run | None:
        return next((run for run in state.runs if run.number == state.owner), None)

    def _is_owned(self, state: State) -> Iterator[Step]:
        owner = self._owner(state)
        if owner is None or state.takeovers:
            number = state.owner + 1
            after = state._replace(
                owner=number,
                runs=(*state.runs, Run(number)),
                takeovers=state.takeovers - (owner is not None),
            )
            # Where nothing is left to do but an alarm is gone, a call of something else begins it.
            is_work = state.due or state.queue or state.settings or self._is_gone(state)
            if owner is not None or is_work:
                yield Step(f"run {number} takes over", after, fault=owner is not None)
        if owner is None:
            return
        if state.settings:
            made = state.made + 1
            left = state._replace(settings=state.settings - 1)
            after = left._replace(made=made, timer=made, due=True)
            yield Step(f"request {made} sets the timer", after)
        if state.queue:
            yield self._handles(state)
        if self.rules.looks and self._is_gone(state) and not owner.arms:
            yield Step(
                f"run {owner.number} finds that the alarm is gone",
                _with(state, owner._replace(arms=state.timer)),
            )

    def _is_gone(self, state: State) -> bool:
        """Whether the timer has no alarm, and neither a ring nor its request is on its way."""
        on_its_way = state.timer in (*state.rings, *state.taken, *state.queue)
        return bool(state.timer) and not (state.due or state.alarm or on_its_way)

    def _handles(self, state: State) -> Step:
        """Handle the request of a ring."""
        setting, *queue = state.queue
        rest = state._replace(queue=tuple(queue))
        own_id = setting if self.rules.own_ids else 0
        if own_id in state.known:
            return Step(f"the ring of {setting} is known", rest)
        rest = rest._replace(known=rest.known | {own_id})
        if self.rules.hint and setting != state.timer:
            return Step(f"the ring of {setting} is refused", rest)
        called = rest._replace(
            timer=0, called=(*state.called, setting), wrong=setting != state.timer
        )
        return Step(f"the timer calls, as {setting} says", called)

    def _arms(self, state: State, run: Run) -> Iterator[Step]:
        who = f"run {run.number}"
        if not run.arms:
            if run.number == state.owner and state.due:
                # A timer that was called since has nothing to set.
                begun = _with(state, run._replace(arms=state.timer))
                after = begun if state.timer else state._replace(due=False)
                yield Step(f"{who} begins to set the alarm", after)
            return
        stays = self.rules.later_stays and state.alarm >= run.arms
        armed = state if stays else state._replace(alarm=run.arms)
        done = _with(armed, run._replace(arms=0))
        # The commit that says so covers what was set up to then, and fails if it was overtaken.
        if run.number == state.owner and run.arms == state.made:
            done = done._replace(due=False)
        yield Step(f"{who} sets the alarm of {run.arms}", done)

    def _rings(self, state: State) -> Iterator[Step]:
        if state.alarm:
            rung = state._replace(alarm=0, rings=(*state.rings, state.alarm))
            yield Step(f"the alarm of {state.alarm} rings", rung)
        if state.rings:
            ring, *rest = state.rings
            acked = state._replace(rings=tuple(rest))
            if self.rules.stored_first:
                stored = acked._replace(queue=(*state.queue, ring))
                yield Step(f"a worker stores the request of {ring}, and acks", stored)
                if state.crashes:
                    again = stored._replace(rings=state.rings, crashes=state.crashes - 1)
                    yield Step(f"a worker dies before it acks {ring}", again, fault=True)
            else:
                yield Step(f"a worker acks {ring}", acked._replace(taken=(*state.taken, ring)))
        if state.taken:
            ring, *rest = state.taken
            left = state._replace(taken=tuple(rest))
            stored = left._replace(queue=(*state.queue, ring))
            yield Step(f"a worker stores the request of {ring}", stored)
            if state.crashes:
                dead = left._replace(crashes=state.crashes - 1)
                yield Step(f"a worker dies that has acked {ring}", dead, fault=True)


def _with(state: State, run: Run) -> State:
    runs = tuple(run if each.number == run.number else each for each in state.runs)
    return state._replace(runs=runs)
