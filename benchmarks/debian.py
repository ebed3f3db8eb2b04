"""The real Debian graph, packages of it by how much depends on them, and updates beside Rebaser."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from debian_demo.graph import Packages
from rebaser_core.updates import SetComputed, Update
from rebaser_server.compute.evaluation import decode_sound
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import decode_result, encode_result
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.work_units import evaluated

_UPDATES = TypeAdapter(list[Update])


class Dependents:
    """How many values a fix affects, counted on the packages rather than on the values."""

    def __init__(self, known: Packages) -> None:
        self._packages = known
        self._above: dict[int, list[int]] = defaultdict(list)
        for head, dependencies in known.dependencies.items():
            for below in dependencies:
                self._above[below].append(head)
        self._members: dict[int, int] = defaultdict(int)
        for head in known.heads:
            self._members[head] += 1

    def nearest(self, count: int) -> str:
        """The package with a pending fix that affects about `count` values."""
        pending = [index for index, is_pending in enumerate(self._packages.pending) if is_pending]
        best = min(pending, key=lambda index: abs(self._affected(index) - count))
        return self._packages.names[best]

    def above(self, names: Iterable[str]) -> Packages:
        """Only what the packages of these names affect: less to load, and the same to update."""
        known = self._packages
        chosen: set[int] = set()
        for name in names:
            chosen |= self._reached(known.names.index(name))
        kept = [index for index, head in enumerate(known.heads) if head in chosen]
        place = {old: new for new, old in enumerate(kept)}
        dependencies = {
            place[head]: [place[below] for below in all_below if below in chosen]
            for head, all_below in known.dependencies.items()
            if head in chosen
        }
        return Packages(
            [known.names[old] for old in kept],
            [known.pending[old] for old in kept],
            [place[known.heads[old]] for old in kept],
            dependencies,
        )

    def _affected(self, index: int) -> int:
        in_cycle = self._members[self._packages.heads[index]] > 1  # has a value of its own, too
        return 2 * sum(self._members[head] for head in self._reached(index)) + in_cycle

    def _reached(self, index: int) -> set[int]:
        """Heads of the packages that a change of the package at `index` can affect."""
        reached = [self._packages.heads[index]]
        seen = set(reached)
        for head in reached:  # grows while it is walked
            fresh = [above for above in self._above.get(head, ()) if above not in seen]
            seen.update(fresh)
            reached += fresh
        return seen


@dataclass(frozen=True, slots=True)
class Updated:
    """One dependent values update."""

    affected: int
    recomputed: int
    changed: int
    plan_seconds: float
    evaluate_seconds: float

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.affected, self.recomputed, self.changed


class InProcess:
    """The same graph in this process: the same planner and evaluator, and nothing else."""

    def __init__(self, slots: int) -> None:
        self._graph = Graph()
        self._slots = slots
        self._sequence = 0

    def apply(self, updates: Sequence[dict[str, Any]]) -> Updated:
        """Apply a batch, then recompute what depends on it: only this is timed."""
        self._sequence += 1
        rebase(self._graph, self._sequence, _UPDATES.validate_python(updates))
        times = [time.perf_counter()]
        planned = plan(self._graph, self._slots)
        times.append(time.perf_counter())
        outcomes = [decode_result(_evaluate(blob.encode())) for blob in planned.units]
        times.append(time.perf_counter())
        results = [
            SetComputed(value_id=value_id, value=value)
            for outcome in outcomes
            for value_id, _, value in outcome.value_results
        ]
        rebase(self._graph, self._sequence, results, self._sequence)
        self._graph.clear_roots(self._sequence)
        return Updated(
            planned.affected,
            sum(outcome.recomputed for outcome in outcomes),
            len(results),
            times[1] - times[0],
            times[2] - times[1],
        )


def _evaluate(unit: bytes) -> pa.Buffer:
    # Not in a child: of this process, which has the whole graph, a fork takes longer than of any
    # that evaluates, and the limit is what Rebaser would take without isolation.
    return encode_result(evaluated(decode_sound(unit)))
