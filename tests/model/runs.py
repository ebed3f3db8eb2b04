"""One run on the change set, as built: take over, handle in order, release, remove, look again."""

from collections.abc import Iterator
from typing import Any

from tests.model import ahead
from tests.model.explorer import Step
from tests.model.numbering import next_claim
from tests.model.shapes import (
    ATTEMPTS,
    DEATHS,
    NO_CLAIM,
    NOT_TRIED,
    Dvu,
    Head,
    Instance,
    Request,
    Run,
    State,
)
from tests.model.surroundings import (
    deleted,
    kind_of,
    name,
    poke,
    who,
    with_run,
    without_task,
)

WITH_LEASE = {
    "given", "checks head", "takes over", "blames", "reads", "decides", "buries", "marks",
    "copies", "deletes", "awaits", "repeats", "confirms", "releases", "stops", "gives back",
    "removes",
}  # fmt: skip
"""While it does this it holds, or believes to hold, its task."""
WITH_LOG = WITH_LEASE - {"given", "checks head", "takes over", "gives back", "removes"}
"""While it does this it looks now and then whether it still owns the change set."""
UNLOCKED = {"reads", "deletes", "confirms"}
"""While it does this its DVU may write to the log."""


def steps(world: Instance, state: State) -> Iterator[Step]:
    for number, run in enumerate(state.runs):
        if run.doing == "idle":
            continue
        one = OneRun(world, state, number)
        yield from one.steps()
        if run.dvu or run.doing in UNLOCKED:
            yield from one.dvu_steps()
        yield from one.ends()


class OneRun:
    """What one run can do next."""

    def __init__(self, world: Instance, state: State, number: int) -> None:
        self.world, self.rules = world, world.rules
        self.state, self.number = state, number
        self.run = state.runs[number]
        self.who = who(number)
        self.refused = False
        """The last write was."""

    def steps(self) -> Iterator[Step]:
        yield from getattr(self, "_" + self.run.doing.replace(" ", "_"))()

    # -- W2, L1: take over ----------------------------------------------------------------------

    def _given(self) -> Iterator[Step]:
        """W2b, in worlds that have it; else the takeover is the first step."""
        if not self.world.looks:
            yield from self._takes_over()
        elif self.state.requests:
            yield self._step("looks first: there is a request", self._now("takes over"))
        else:
            doing = "checks head" if self.rules.heed_head else "removes"
            yield self._step("looks first for a request: none", self._now(doing))

    def _checks_head(self) -> Iterator[Step]:
        work = self.state.head.due or self.state.head.owned
        words = "is owned, or a DVU due" if work else "tells of no work"
        yield self._step(
            f"looks first: the head {words}", self._now("takes over" if work else "removes")
        )

    def _takes_over(self) -> Iterator[Step]:
        if not self.rules.takeover:
            taken = self._now("reads", current=True, head=self.state.head)
            yield self._step("reads the head", taken)
            return
        former, died = self.state.head.owned, self.state.head.died
        head = self.state.head._replace(owned=True, died=False)
        state = self._overtake_others()._replace(head=head)
        counts = former and (died or not self.rules.living_spared)
        doing = "blames" if counts and self.rules.blame else "reads"
        words = "takes over"
        if former:
            words += f", and the owner before {'died' if died else 'lost its lease'}"
        alone = former and self.rules.careful and self.world.at_once > 1
        yield self._step(words, self._now(doing, state, current=True, head=head, alone=alone))

    def _blames(self) -> Iterator[Step]:
        first = next((r for r in self.state.requests if r.sequence > self.run.head.last), None)
        if first is None:
            yield self._step("finds no request to blame", self._now("reads"))
            return
        failures, deaths = self._tried(first)
        tried = (first.sequence, failures, min(DEATHS, deaths + 1))
        state = self._written("reads", tried=tried)
        yield self._step(f"counts a death at {name(first)}", state)

    def _tried(self, request: Request) -> tuple[int, int]:
        sequence, failures, deaths = self.run.head.tried
        return (failures, deaths) if sequence == request.sequence else (0, 0)

    # -- W3 to W9: one request after the other --------------------------------------------------

    def _reads(self) -> Iterator[Step]:
        run, state = self.run, self.state
        waiting = [r for r in state.requests if r.sequence > run.cursor]
        if waiting:
            request = waiting[0]
            known = self.rules.last_sequence and request.sequence <= run.head.last
            doing = "deletes" if known else "decides"
            more = self.world.turns and len(waiting) > 1
            after = self._now(doing, cursor=request.sequence, request=request, more=more)
            if self.world.pipelined and not self.rules.line_first:
                after = ahead.asked_to_delete(after, request, self.number)
            yield self._step(f"receives {name(request)}" + ", handled before" * known, after)
            yield from ahead.sends(self, waiting)
            if state.losses and not self.rules.gapless:
                lost = self._now("reads", cursor=request.sequence)
                lost = lost._replace(losses=state.losses - 1)
                yield self._step(f"is not sent {name(request)}", lost, fault=True)
        elif not self._due(run.head) and (self.rules.need_in_head or not run.dvu):
            after = self._now(self._last_things, dvu=None, request=None)
            yield self._step("finds it quiet: no request, no DVU due", after)
        if state.stops:
            stopped = self._now("stops", dvu=None) if self.rules.release_on_stop else self._dead()
            stopped = stopped._replace(stops=state.stops - 1)
            yield self._step("is told to stop", stopped, fault=True)

    def _decides(self) -> Iterator[Step]:
        request, head, rules = self._in_hand, self.run.head, self.rules
        kind = self.kind(request)
        if self._tried(request)[1] >= DEATHS:
            state = self._now("buries" if rules.copy_first else "marks")
            if self._nobody_died(request):
                state = state._replace(broken="L1: dead-lettered untried, but no run died at it")
            yield self._step(f"finds that too many died at {name(request)}", state)
            return
        if kind == "k":
            yield self._step(f"dies of {name(request)}", self._dead())
            return
        if rules.recent_ids and head.applied & request.id:
            state = self._written("deletes", last=request.sequence, tried=NOT_TRIED)
            yield self._step(f"finds {name(request)} a duplicate", state)
        elif kind == "x":
            doing = "buries" if rules.copy_first else "marks"
            yield self._step(f"finds that {name(request)} can never be applied", self._now(doing))
        elif kind == "c":
            yield self._closes(request)
        else:
            yield self._applies(request, needs_dvu=kind != "p")
        yield from self._fails(request)

    def _applies(self, request: Request, *, needs_dvu: bool) -> Step:
        sequence, head = request.sequence, self.run.head
        changes: dict[str, Any] = {"applied": head.applied | request.id}
        if needs_dvu:
            changes |= {"unsettled": head.unsettled | request.id, "dirty": sequence}
        state = self._written("deletes", last=sequence, tried=NOT_TRIED, **changes)
        if not self.refused:
            state = self._ask(state, asked=True) if needs_dvu else state
            if self.state.head.applied & request.id:
                state = state._replace(broken=f"S3: {name(request)} took effect twice")
            state = self._in_order(state, request)
        return self._step(f"commits {name(request)}", state)

    def _closes(self, request: Request) -> Step:
        """Nothing is due in it any more, and what is being computed is not wanted."""
        head = self.run.head
        changes = {"applied": head.applied | request.id, "closed": True}
        changes |= {"claim": NO_CLAIM, "clean": head.dirty, "unsettled": 0}
        state = self._written("deletes", last=request.sequence, tried=NOT_TRIED, **changes)
        return self._step(f"commits {name(request)}, which closes the change set", state)

    def _settled(self, covers: int, settles: int) -> dict[str, Any]:
        head = self.run.head
        clean = covers if self.rules.covers else head.dirty
        return {"claim": NO_CLAIM, "clean": clean, "unsettled": head.unsettled & ~settles}

    def _in_order(self, state: State, request: Request) -> State:
        if request.sequence < state.highest:
            return state._replace(broken=f"S2: {name(request)} took effect after a later one")
        return state._replace(highest=request.sequence)

    def _one_dvu_more(self, state: State, base: int) -> State:
        if state.head.closed:
            state = state._replace(broken="S4: a DVU committed although its claim was gone")
        elif base != state.dvus:
            state = state._replace(broken="S4: two DVUs at the same time both committed")
        return state._replace(dvus=state.dvus + 1)

    def _fails(self, request: Request) -> Iterator[Step]:
        """L1, W14: counted or not, the request stays first in line and the task comes again."""
        doing = "stops"
        if self.state.failures:
            failures, deaths = self._tried(request)
            if failures + 1 < ATTEMPTS:
                tried = (request.sequence, failures + 1, deaths)
                state = self._written(doing, tried=tried, dvu=None)
            else:
                buries = "buries" if self.rules.copy_first else "marks"
                state = self._now(buries, dvu=None, spoiled=True)
            state = state._replace(failures=self.state.failures - 1)
            yield self._step(f"fails at {name(request)}", state, fault=True)
        if self.state.put_off:
            state = self._now(doing, dvu=None)._replace(put_off=self.state.put_off - 1)
            yield self._step(f"puts {name(request)} off", state, fault=True)

    def _buries(self) -> Iterator[Step]:
        request = self._in_hand
        state = self._now("marks")._replace(dead=self.state.dead | request.id)
        yield self._step(f"stores {name(request)} in the dead letters", state)

    def _marks(self) -> Iterator[Step]:
        doing = "stops" if self.run.spoiled else "deletes"
        doing = doing if self.rules.copy_first else "copies"
        state = self._written(doing, last=self._in_hand.sequence, tried=NOT_TRIED)
        yield self._step(f"commits that {name(self._in_hand)} is dead", state)

    def _copies(self) -> Iterator[Step]:
        request = self._in_hand
        state = self._now("deletes")._replace(dead=self.state.dead | request.id)
        yield self._step(f"stores {name(request)} in the dead letters", state)

    def _deletes(self) -> Iterator[Step]:
        request = self._in_hand
        if self.world.pipelined:
            state = self.state
            if self.rules.line_first:
                state = ahead.asked_to_delete(state, request, self.number)
            words = f"asks for {name(request)} to be deleted, and goes on"
        else:
            state, words = deleted(self.state, request.sequence), f"deletes {name(request)}"
        following = self.run.lines[1:]
        then = following[0].request if following else None
        doing = "deletes" if following else "reads"
        yield self._step(words, self._now(doing, state, request=then, lines=following))
        if self.world.turns and not following and self._may_go:
            dvu = self.run.dvu if self._last_things == "confirms" else None
            over = self._now(self._last_things, state, request=None, lines=(), dvu=dvu)
            yield self._step(f"{words}; its turn is over", over)

    @property
    def _may_go(self) -> bool:
        """W10c."""
        rules, head = self.rules, self.run.head
        claimed = head.claim != NO_CLAIM
        return not claimed and (self.run.more or not head.due or not rules.turn_request)

    # -- W10 to W14: the end --------------------------------------------------------------------

    @property
    def _last_things(self) -> str:
        if not self.rules.takeover:
            return "removes"
        confirms = self.world.pipelined and self.rules.deletes_confirmed
        return "confirms" if confirms else "releases"

    def _confirms(self) -> Iterator[Step]:
        if all(run != self.number for _, run in self.state.deletes):
            state = self._now("releases", dvu=None)
            yield self._step("knows that all it handled is deleted", state)

    def _awaits(self) -> Iterator[Step]:
        yield from ahead.awaits(self)

    def _repeats(self) -> Iterator[Step]:
        yield from ahead.repeats(self)

    def _releases(self) -> Iterator[Step]:
        yield self._step("releases the change set", self._written("removes", owned=False))

    def _stops(self) -> Iterator[Step]:
        state = self._written("gives back", owned=False)
        if self.refused:
            state, self.refused = self._now("gives back"), False
        yield self._step("releases the change set if it still can", state)

    def _gives_back(self) -> Iterator[Step]:
        state = self._ended()
        if self.run.holds and state.task == "held":
            state = state._replace(task="ready")
        yield self._step("naks its task", state)

    def _removes(self) -> Iterator[Step]:
        state = self._now(self._looks[0]) if self.rules.look_again else self._idle()
        if self.run.holds:
            lingers = state._replace(task="acked")
            state = without_task(state) if self.rules.remove_by_sequence else lingers
        yield self._step("acks and removes its task", state)

    @property
    def _looks(self) -> tuple[str, str]:
        looks = ("looks for requests", "looks at head")
        return looks if self.rules.requests_first else looks[::-1]

    def _looks_for_requests(self) -> Iterator[Step]:
        yield self._looks_again("a request", there=bool(self.state.requests))

    def _looks_at_head(self) -> Iterator[Step]:
        yield self._looks_again("a due DVU", there=self.rules.need_in_head and self.state.head.due)

    def _looks_again(self, what: str, *, there: bool) -> Step:
        if there:
            return self._step(f"looks again: there is {what}", self._now("pokes"))
        first, then = self._looks
        state = self._now(then) if self.run.doing == first else self._idle()
        return self._step(f"looks again for {what}: none", state)

    def _pokes(self) -> Iterator[Step]:
        words, state = poke(self._idle())
        yield self._step(words, state)

    def ends(self) -> Iterator[Step]:
        """It dies, or sees that the change set or the task is another's, and settles nothing."""
        run, state = self.run, self.state
        if state.crashes:
            yield self._step("dies", self._dead()._replace(crashes=state.crashes - 1), fault=True)
        if (run.late or not run.holds) and run.doing in WITH_LEASE:
            # No relying on that: the server may well confirm the reports of a zombie.
            yield self._step("sees that its lease is over, ends", self._ended(), fault=True)
        if self.rules.takeover and not run.current and run.doing in WITH_LOG:
            yield self._step("sees that it was overtaken, ends", self._ended())

    # -- D1 to D6: the DVU beside it ------------------------------------------------------------

    def dvu_steps(self) -> Iterator[Step]:
        run, dvu = self.run, self.run.dvu
        if dvu is None:
            if self._due(run.head):
                yield self._claims()
        elif dvu.doing == "evaluates":
            yield from self._evaluates(dvu)
        elif run.doing in UNLOCKED:
            yield from self._commits_result(dvu)

    def _claims(self) -> Step:
        claim = next_claim(self.state)
        head = self.run.head
        parts = self.world.parts
        dvu = Dvu("evaluates", claim, head.dirty, head.unsettled, self.state.dvus, parts=parts)
        state = self._written(self.run.doing, claim=claim, dvu=dvu)
        if not self.refused:
            state = self._ask(state, asked=False)
            others = [run for run in self.state.runs if run.dvu and run.dvu.doing == "evaluates"]
            if others and self._no_zombies():
                state = state._replace(broken="S4: two DVUs run at the same time")
        return self._step("claims and starts a DVU", state)

    def _evaluates(self, dvu: Dvu) -> Iterator[Step]:
        run = self.run
        stands = run.head.claim == dvu.claim
        placed = dvu._replace(doing="placed", stood=stands or self.rules.claim_at_last)
        yield self._step(
            "finishes its DVU and places the results", self._now(run.doing, dvu=placed)
        )
        if self.state.put_off:
            state = self._now("stops", dvu=None)
            state = state._replace(put_off=self.state.put_off - 1)
            yield self._step("cannot place its DVU's results and ends", state, fault=True)
        if dvu.parts and run.doing in UNLOCKED and (stands or not self.rules.claim):
            yield self._commits_part(dvu)
        if self.state.failures and run.doing in UNLOCKED:
            state = self._written(run.doing, dvu=None)
            state = state._replace(failures=self.state.failures - 1)
            yield self._step("fails at its DVU", state, fault=True)

    def _commits_part(self, dvu: Dvu) -> Step:
        """D4: some of what it found, under the claim that goes on."""
        changes: dict[str, Any] = {"dvu": dvu._replace(parts=dvu.parts - 1)}
        if not self.rules.part_settles_nothing:
            changes |= self._settled(dvu.covers, settles=0)
        state = self._written(self.run.doing, **changes)
        if not self.refused and state.head.closed:
            state = state._replace(broken="S4: a DVU committed although its claim was gone")
        return self._step("commits a part of its DVU's results", state)

    def _commits_result(self, dvu: Dvu) -> Iterator[Step]:
        """D4: what was found and what it settles, in one line, if the claim stands."""
        run, rules = self.run, self.rules
        stands = run.head.claim == dvu.claim if rules.claim_at_last else dvu.stood
        if rules.claim and not stands and dvu.doing == "placed":
            words = "finds that the claim of its DVU is gone"
            yield self._step(words, self._now(run.doing, dvu=None))
            return
        if not rules.fenced:
            self.run = run._replace(current=True)
        changes = self._settled(dvu.covers, dvu.settles)
        if dvu.doing == "half":
            state = self._written(run.doing, dvu=None, unsettled=changes["unsettled"])
            yield self._step("commits the values that its DVU found", state)
            return
        half = dvu._replace(doing="half")
        if not rules.one_line:
            changes.pop("unsettled")
        state = self._written(run.doing, dvu=None if rules.one_line else half, **changes)
        if not self.refused:
            state = self._one_dvu_more(state, dvu.base)
        yield self._step("commits its DVU's result", state)
        if self.state.failures:
            state = self._written("stops", dvu=None)
            state = state._replace(failures=self.state.failures - 1)
            yield self._step("fails to fold its DVU's result in, and ends", state, fault=True)

    # -- the state afterwards -------------------------------------------------------------------

    def kind(self, request: Request) -> str:
        return kind_of(self.world, request.id)

    @property
    def _in_hand(self) -> Request:
        assert self.run.request is not None
        return self.run.request

    def _due(self, head: Head) -> bool:
        return head.due if self.rules.need_in_head else self.run.asked

    def _ask(self, state: State, *, asked: bool) -> State:
        if self.rules.need_in_head:
            return state
        return with_run(state, self.number, state.runs[self.number]._replace(asked=asked))

    def _nobody_died(self, request: Request) -> bool:
        deadly = self.kind(request) == "k"
        return self.state.crashes == self.world.crashes and not deadly

    def _no_zombies(self) -> bool:
        world, state = self.world, self.state
        return (state.zombies, state.presumptions) == (world.zombies, world.presumptions)

    def _now(self, doing: str, state: State | None = None, **changes: Any) -> State:
        """The run does this next, and nothing else has happened."""
        run = self.run._replace(doing=doing, **changes)
        return with_run(self.state if state is None else state, self.number, run)

    def _idle(self) -> State:
        return with_run(ahead.orphaned(self.state, self.number), self.number, Run())

    def _dead(self) -> State:
        """Its process is gone; the owner that the head names, if that is this run."""
        state = self._idle()
        is_owner = self.run.current and state.head.owned
        return state._replace(head=state.head._replace(died=True)) if is_owner else state

    def _ended(self) -> State:
        """Its task is not its own any more."""
        return self._idle()

    def _overtake_others(self) -> State:
        runs = tuple(run._replace(current=False) for run in self.state.runs)
        return ahead.line_stored(self.state)._replace(runs=runs)

    def _written(self, doing: str, **changes: Any) -> State:
        """A line was appended; or another's came first and the run ends, settling nothing (W15)."""
        if self.rules.compare_and_swap and not self.run.current:
            self.refused = True
            if self.rules.takeover:
                return self._ended()
            return self._now("reads", current=True, head=self.state.head, cursor=0, request=None)
        run = {key: changes.pop(key) for key in ("dvu",) if key in changes}
        head = self.run.head._replace(**changes)
        state = self._now(doing, self._overtake_others(), current=True, head=head, **run)
        if self.state.head.applied & ~head.applied:
            state = state._replace(broken="S1: the effect of a request was lost")
        return state._replace(head=head)

    def _step(self, words: str, state: State, *, fault: bool = False) -> Step:
        if self.refused:
            words += ": refused, for another's line came first" + "; ends" * self.rules.takeover
        self.refused = False
        return Step(f"{self.who} {words}", state, fault)
