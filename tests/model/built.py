"""The protocol as built: all that can happen to one change set, and what must hold (S1 to S6)."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model import ahead, runs, surroundings
from tests.model.explorer import Step
from tests.model.numbering import canonical
from tests.model.shapes import Instance, State, initial


@dataclass(frozen=True)
class Built:
    """S2, S3, S4 and losses are noticed where they happen; the rest at rest."""

    world: Instance

    def initial(self) -> State:
        return initial(self.world)

    def steps(self, state: State) -> Iterator[Step]:
        for module in (surroundings, runs, ahead):
            for words, after, fault in module.steps(self.world, state):
                yield Step(words, canonical(after), fault)

    def broken(self, state: State) -> str:
        return state.broken

    def restless(self, state: State) -> str:
        if state.requests or state.published & ~(state.head.applied | state.dead):
            return "S1: requests are left, and no run will handle them"
        if state.head.unsettled:
            return "S5: dependent values are wrong, and no run will recompute them"
        if state.task != "none" or any(run.doing != "idle" for run in state.runs):
            return "S6: it rests, but not everything was put away"
        return ""
