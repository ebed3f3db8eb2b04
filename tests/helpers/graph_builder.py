"""Graphs to plan from, and what becomes of them: written down once for all tests of `dvu`."""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from rebaser_server.compute.affected import LargeClosure, RoundSizes
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.functions import runtimes
from rebaser_server.compute.plan import MIN_VALUES_PER_UNIT, Rounds, plan
from rebaser_server.compute.results import RunStore, UnitResult, decode_result
from rebaser_server.values.columns import Func, Inputs
from rebaser_server.values.graph import Graph, GraphSnapshot, Value

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""


class Builder:
    """A graph whose values are named by their ids, and whose roots are what was touched."""

    def __init__(self) -> None:
        self.graph = Graph()

    def source(self, value_id: str, data: Any) -> None:
        graph = self.graph
        value = graph.values.get(value_id) or graph.add(value_id)
        graph.clear_inputs(value)
        graph.set_function(value, None)
        graph.assign(value, data)
        graph.mark_root(value, 1)

    def dependent(self, value_id: str, code: str, inputs: Inputs, runtime: str = "builtin") -> None:
        graph = self.graph
        value = graph.values.get(value_id) or graph.add(value_id)
        graph.set_inputs(value, inputs)
        graph.set_function(value, self.func(code, runtime))
        graph.assign(value, None)
        graph.mark_pending(value)
        graph.mark_root(value, 1)

    def func(self, code: str, runtime: str = "builtin") -> str:
        func_id = f"{runtime}/{code}"
        self.graph.funcs[func_id] = Func(func_id, code, runtime, code)
        return func_id

    def update(self, *, slots: int = 2, small: int = MIN_VALUES_PER_UNIT) -> list[UnitResult]:
        """One dependent values update, evaluated here, applied, its roots covered."""
        planned = plan(self.graph, slots, small=small)
        outcomes = [decode_result(evaluate(unit.encode())) for unit in planned.units]
        self.apply(outcomes)
        return outcomes

    def update_in_rounds(self, sizes: RoundSizes, store: RunStore) -> list[UnitResult]:
        """The same, planned as a large update is: round by round."""
        snapshot = GraphSnapshot(self.graph)
        large = LargeClosure(snapshot, sizes)
        plan_round = partial(plan, snapshot, 2)
        rounds = Rounds(
            plan_round(affected=large.next()), large, lambda part: plan_round(affected=part)
        )
        outcomes: list[UnitResult] = []
        while rounds.units:
            of_round = [decode_result(evaluate(unit.encode())) for unit in rounds.units]
            rounds.record(of_round, store)
            outcomes += of_round
        self.apply(outcomes)
        return outcomes

    def apply(self, outcomes: list[UnitResult]) -> None:
        for outcome in outcomes:
            taken = self.graph.assign_many(outcome.ids, outcome.statuses, outcome.texts, 1)
            assert taken.all()
        self.graph.clear_roots(1)

    def state(self) -> dict[str, tuple[str, Any]]:
        """By value id: status, and value or message."""
        return state_of(self.graph)


def state_of(graph: Graph) -> dict[str, tuple[str, Any]]:
    """By value id: status, and value or message."""
    return {value.id: _seen(value) for value in graph.values.values()}


def _seen(value: Value) -> tuple[str, Any]:
    return value.status.value, value.value if value.message is None else value.message


def text(state: Any) -> str:
    """Tell apart what Python takes for equal."""
    return json.dumps(state, sort_keys=True)


def due(graph: Graph, before: Mapping[str, tuple[str, Any]], roots: set[str]) -> int:
    """Number of values that had to be computed, by the states before and after: early cutoff."""
    there = roots & {value.id for value in graph.values.values()}
    must_compute = there.union(*(graph.values[root].dependents for root in there))

    def changed(value_id: str) -> bool:
        if graph.values[value_id].func_id is None:
            return False  # it is a root, or has not changed
        old, new = before.get(value_id, ("pending", None)), _seen(graph.values[value_id])
        if value_id in roots:
            old = ("pending", None)
        return "ok" in (old[0], new[0]) and text(old) != text(new)

    return sum(
        value.func_id is not None
        and (value.id in must_compute or any(map(changed, value.input_ids())))
        for value in graph.values.values()
    )


def pids_in(path: Path) -> list[int]:
    """Those that a function noted there; none before it runs."""
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> list[int]:
    """Of all threads of a process; none if it has ended."""
    by_thread = Path(f"/proc/{pid}/task").glob("*/children")
    with suppress(OSError):  # it, or a thread, ends meanwhile
        return [int(child) for listed in by_thread for child in listed.read_text().split()]
    return []


async def eventually(is_so: Callable[[], object], within: float = 60) -> None:
    """For what happens in other processes, which no event here tells of."""
    async with asyncio.timeout(within):
        while not is_so():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def install(
    directory: Path,
    name: str,
    source: str,
    functions: dict[str, str],
    group: str = "rebaser.functions",
    version: str = "1.0",
) -> None:
    """Make `directory` a place on the path with one distribution that offers `functions`.

    They are by name the object references, as in `pyproject.toml`, in `group`. Another version
    replaces the one that is there.
    """
    for before in directory.glob(f"{name}-*.dist-info"):
        shutil.rmtree(before)
    shutil.rmtree(directory / "__pycache__", ignore_errors=True)
    (directory / f"{name}.py").write_text(source)
    metadata = directory / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "".join(f"{key} = {value}\n" for key, value in functions.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{points}")
    forget_code()


def forget_code() -> None:
    """Have this process look anew at what is installed, as one does that starts."""
    for each in (runtimes.code_digest, runtimes.installed_version, runtimes._entry_point):
        each.cache_clear()
    runtimes._loaded.clear()
