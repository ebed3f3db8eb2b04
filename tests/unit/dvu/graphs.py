"""Graphs to plan from, and what becomes of them: written down once for all tests of `dvu`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from rebaser_server.dvu.evaluate import Outcome, decode_outcome, evaluate
from rebaser_server.dvu.plan import SMALL, plan
from rebaser_server.graph import Func, Graph, Inputs, Status

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""


class Builder:
    """A graph whose values are named by their ids, and whose roots are what was touched."""

    def __init__(self) -> None:
        self.graph = Graph()

    def source(self, value_id: str, data: Any) -> None:
        value = self.graph.values.get(value_id) or self.graph.add(value_id)
        self.graph.unwire(value)
        value.value, value.func_id = data, None
        value.status, value.message = Status.OK, None
        self.graph.roots[value_id] = 1

    def dependent(self, value_id: str, code: str, inputs: Inputs, runtime: str = "builtin") -> None:
        value = self.graph.values.get(value_id) or self.graph.add(value_id)
        self.graph.wire(value, inputs)
        value.func_id = self.func(code, runtime)
        value.value, value.status, value.message = None, Status.PENDING, None
        self.graph.roots[value_id] = 1

    def func(self, code: str, runtime: str = "builtin") -> str:
        func_id = f"{runtime}/{code}"
        self.graph.funcs[func_id] = Func(func_id, code, runtime, code)
        return func_id

    def update(self, *, slots: int = 2, small: int = SMALL) -> list[Outcome]:
        """One dependent values update, evaluated here, applied, its roots covered."""
        planned = plan(self.graph, slots, small=small)
        outcomes = [decode_outcome(evaluate(blob)) for blob in planned.blobs]
        self.apply(outcomes)
        return outcomes

    def apply(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            for value_id, status, data in outcome.results:
                value = self.graph.values[value_id]
                value.status = Status(status)
                value.value = data if status == "ok" else None
                value.message = None if status == "ok" else data
        self.graph.roots.clear()

    def state(self) -> dict[str, tuple[str, Any]]:
        """By value id: status, and value or message."""
        return {
            value.id: (value.status.value, value.value if value.message is None else value.message)
            for value in self.graph.values.values()
        }


def pids_in(path: Path) -> list[int]:
    """Those that a function noted there; none before it runs."""
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def eventually(is_so: Callable[[], object], within: float = 60) -> None:
    """For what happens in other processes, which no event here tells of."""
    async with asyncio.timeout(within):
        while not is_so():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def install(directory: Path, name: str, source: str, functions: dict[str, str]) -> None:
    """Make `directory` a place on the path with one distribution that offers `functions`.

    They are by name the object references, as in `pyproject.toml`.
    """
    (directory / f"{name}.py").write_text(source)
    metadata = directory / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{key} = {value}\n" for key, value in functions.items())
    (metadata / "entry_points.txt").write_text(f"[rebaser.functions]\n{points}")
