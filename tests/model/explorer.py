"""Visits every state that a model can reach, breadth first, so that what it finds is shortest."""

import time
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol


class Step(NamedTuple):
    """Something that can happen next."""

    words: str
    state: Hashable
    fault: bool = False
    """It may happen, but nobody can rely on it."""


class Model(Protocol):
    def initial(self) -> Hashable: ...

    def steps(self, state: Hashable) -> Iterable[Step]: ...

    def broken(self, state: Hashable) -> str:
        """Which invariant the state breaks; empty if none."""

    def restless(self, state: Hashable) -> str:
        """Why nothing may end here; empty if all is well at rest."""


@dataclass(frozen=True)
class Report:
    """What was found: `problem` is empty if all invariants hold and everything comes to rest."""

    states: int
    edges: int
    seconds: float
    problem: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.edges:,} steps, {self.seconds:.1f} s"
        lines = [f"{size}: {self.problem or 'holds'}"]
        lines += [f"{number:4}. {words}" for number, words in enumerate(self.trace, 1)]
        return "\n".join(lines)


def explore(model: Model, most: int = 5_000_000) -> Report:
    """Look for a broken invariant, for a wrong place to rest, for a way never to rest.

    The last two disregard faults: without any further fault, whoever moves, in
    whatever order, it must come to an end, and that must be a good one. That is more
    than 'a good end can be reached from everywhere', and implies it.
    """
    return _Exploration(model).run(most)


class _Exploration:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._began = time.perf_counter()
        self._index: dict[Hashable, int] = {}
        self._states: list[Hashable] = []
        self._parents = array("i")
        self._edges = 0
        self._starts = array("q", [0])
        self._targets = array("i")
        """Of the steps that are no faults, those of state n from `_starts[n]` on."""

    def run(self, most: int) -> Report:
        self._seen(self._model.initial(), -1)
        number = 0
        while number < len(self._states):
            if number >= most:
                return self._report(f"not finished: more than {most:,} states")
            state = self._states[number]
            problem = self._model.broken(state) or self._follow(number, state)
            if problem:
                return self._report(problem, self._way_to(number))
            number += 1
        if circle := self._circle():
            way, loop = self._way_to(circle[0]), self._words([*circle, circle[0]])
            return self._report("never rests", (*way, "--- and now round and round:", *loop))
        return self._report("")

    def _follow(self, number: int, state: Hashable) -> str:
        """Note where `state` leads; why it must not rest there if it leads nowhere."""
        for step in self._model.steps(state):
            target = self._seen(step.state, number)
            self._edges += 1
            if not step.fault:
                self._targets.append(target)
        self._starts.append(len(self._targets))
        stays = self._starts[number] == self._starts[number + 1]
        return self._model.restless(state) if stays else ""

    def _seen(self, state: Hashable, parent: int) -> int:
        number = self._index.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
            self._parents.append(parent)
        return number

    def _after(self, number: int) -> array:
        return self._targets[self._starts[number] : self._starts[number + 1]]

    def _circle(self) -> list[int]:
        """States that lead to each other in a circle without a fault; none if there is none."""
        entries = array("i", bytes(4 * len(self._states)))
        for target in self._targets:
            entries[target] += 1
        free = [number for number, count in enumerate(entries) if not count]
        for number in free:  # grows meanwhile: what only free states lead to is free
            for target in self._after(number):
                entries[target] -= 1
                if not entries[target]:
                    free.append(target)
        before = {
            target: number
            for number, count in enumerate(entries)
            if count
            for target in self._after(number)
        }
        if not before:
            return []
        place, met = next(iter(before)), dict[int, None]()
        while place not in met:
            met[place] = None
            place = before[place]
        circle = list(met)[list(met).index(place) :][::-1]
        start = circle.index(min(circle))
        return circle[start:] + circle[:start]

    def _way_to(self, number: int) -> tuple[str, ...]:
        path = [number]
        while (number := self._parents[number]) >= 0:
            path.append(number)
        return tuple(self._words(path[::-1]))

    def _words(self, path: list[int]) -> Iterator[str]:
        for here, there in pairwise(path):
            steps = self._model.steps(self._states[here])
            yield next(step.words for step in steps if step.state == self._states[there])

    def _report(self, problem: str, trace: tuple[str, ...] = ()) -> Report:
        seconds = time.perf_counter() - self._began
        return Report(len(self._states), self._edges, seconds, problem, trace)
