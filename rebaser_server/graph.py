"""One change set's values and functions in memory: who depends on whom, and what has changed since.

Only `rebase` changes a graph; `dvu` reads it, `store` saves and loads it. Not
thread-safe: the holder of the change set serialises its use.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Inputs = dict[str, str | list[str]]
"""Argument name → the id of one value, or a list of ids in the caller's order."""


class Status(StrEnum):
    """How a value came to be what it is. Sources are always `OK`."""

    OK = "ok"
    FAILED = "failed"  # its function raised; the message says what
    BLOCKED = "blocked"  # an input is failed or blocked; the message names it
    PENDING = "pending"  # defined, never computed since


@dataclass(slots=True, eq=False)
class Func:
    """A function as a request defined it; what `code` means depends on `runtime`."""

    id: str
    name: str
    runtime: str
    code: str


@dataclass(slots=True, eq=False)
class Value:
    """A node. A *source* (`func_id` is None) is set by updates, a *dependent* one is computed."""

    id: str
    name: str | None = None
    value: Any = None
    func_id: str | None = None
    inputs: Inputs = field(default_factory=dict)
    status: Status = Status.OK
    message: str | None = None
    dependents: set[str] = field(default_factory=set)
    """Values that take this one as an input."""
    rank: int = 0
    """Greater than that of every input: sorting by it is a topological order."""

    def input_ids(self) -> list[str]:
        """Every input, in argument order; one taken twice comes twice."""
        return ids_in(self.inputs)


class Graph:
    """Values, functions, names, and the roots that the next dependent values update starts from."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.funcs: dict[str, Func] = {}
        self.names: dict[str, str] = {}
        """Name → the id of the one value that has it."""
        self.roots: dict[str, int] = {}
        """Value id → sequence of the last request that changed its value, function or inputs."""
        self.touched: set[str] = set()
        """Values changed or removed since the store last saved them."""
        self.touched_funcs: set[str] = set()
        """Functions likewise; one may go by the same id as a value."""
        self.users: dict[str, set[str]] = {}
        """Function id → the values that it computes, at least one."""
        self._highest_rank = self._lowest_rank = 0

    @classmethod
    def restored(
        cls, values: Iterable[Value], funcs: Iterable[Func], roots: dict[str, int]
    ) -> "Graph":
        """The graph of values that lack their dependents and ranks. Nothing in it is touched."""
        graph = cls()
        graph.values = {value.id: value for value in values}
        graph.funcs = {func.id: func for func in funcs}
        graph.roots = roots
        for value in graph.values.values():
            if value.name is not None:
                graph.names[value.name] = value.id
            if value.func_id is not None:
                graph.users.setdefault(value.func_id, set()).add(value.id)
            graph._link(value)
        graph._rank_all()
        return graph

    def add(self, value_id: str) -> Value:
        """A new source without a value, after every other in the order."""
        self._highest_rank += 1
        value = self.values[value_id] = Value(value_id, rank=self._highest_rank)
        self.touched.add(value_id)
        return value

    def put_func(self, func: Func) -> None:
        self.funcs[func.id] = func
        self.touched_funcs.add(func.id)

    def remove_func(self, func_id: str) -> None:
        """Take a function away that is there; the values that it computes keep its id."""
        del self.funcs[func_id]
        self.touched_funcs.add(func_id)

    def assign(
        self, value: Value, data: Any, status: Status = Status.OK, message: str | None = None
    ) -> None:
        """Say what `value` is, and why if it is nothing."""
        value.value, value.status, value.message = data, status, message
        self.touched.add(value.id)

    def root(self, value: Value, sequence: int) -> None:
        """Have `value` and what depends on it recomputed, because of the request `sequence`."""
        self.roots[value.id] = sequence
        self.touched.add(value.id)

    def remove(self, value: Value) -> list[Value]:
        """Take `value` out, and out of the inputs of its dependents, which are returned by rank."""
        self.compute_by(value, None)
        self.unwire(value)
        dependents = sorted((self.values[v] for v in value.dependents), key=_by_rank)
        for dependent in dependents:
            dependent.inputs = without(dependent.inputs, {value.id})
            self.touched.add(dependent.id)
        self.rename(value, None)
        self.roots.pop(value.id, None)
        self.touched.add(value.id)
        del self.values[value.id]
        return dependents

    def rename(self, value: Value, name: str | None) -> None:
        """Give `value` a name that is free, or none."""
        if value.name is not None:
            del self.names[value.name]
        if name is not None:
            self.names[name] = value.id
        value.name = name
        self.touched.add(value.id)

    def compute_by(self, value: Value, func_id: str | None) -> None:
        """Let `value` be computed by a function, which need not exist yet, or by none."""
        if func_id == value.func_id:
            return
        if value.func_id is not None:
            users = self.users[value.func_id]
            users.discard(value.id)
            if not users:
                del self.users[value.func_id]
        if func_id is not None:
            self.users.setdefault(func_id, set()).add(value.id)
        value.func_id = func_id
        self.touched.add(value.id)

    def wire(self, value: Value, inputs: Inputs) -> None:
        """Replace the inputs of `value`. They exist and close no cycle: see `order_after`."""
        self.unwire(value)
        value.inputs = inputs
        self._link(value)
        self.touched.add(value.id)

    def _link(self, value: Value) -> None:
        for input_id in value.input_ids():
            self.values[input_id].dependents.add(value.id)

    def unwire(self, value: Value) -> None:
        for input_id in value.input_ids():
            self.values[input_id].dependents.discard(value.id)
        value.inputs = {}

    def order_after(self, value: Value, inputs: Iterable[str]) -> set[str]:
        """Rank `value` above each of `inputs`; return those that depend on it, which cannot be.

        Costs nothing where the order already agrees, else the values between the two
        (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic
        graphs", 2006).
        """
        values, rank = self.values, value.rank
        later = [input_id for input_id in inputs if values[input_id].rank >= rank]
        return {input_id for input_id in later if not self._rank_above(value, values[input_id])}

    def _rank_above(self, value: Value, other: Value) -> bool:
        if other.rank < value.rank:
            return True
        if not other.inputs and other is not value:
            # It can come before all others. So it costs nothing either to define values
            # before their inputs, or to give new inputs to old values.
            self._lowest_rank -= 1
            other.rank = self._lowest_rank
            return True
        lowest, highest = value.rank, other.rank
        above = self._reach(value, lambda v: v.dependents, lambda v: v.rank <= highest)
        if other in above:
            return False
        below = self._reach(other, Value.input_ids, lambda v: v.rank >= lowest)
        moving = [*sorted(below, key=_by_rank), *sorted(above, key=_by_rank)]
        for moved, rank in zip(moving, sorted(map(_by_rank, moving)), strict=True):
            moved.rank = rank
        return True

    def _reach(
        self,
        start: Value,
        next_ids: Callable[[Value], Iterable[str]],
        within: Callable[[Value], bool],
    ) -> set[Value]:
        seen, stack = {start}, [start]
        while stack:
            for value_id in next_ids(stack.pop()):
                value = self.values[value_id]
                if value not in seen and within(value):
                    seen.add(value)
                    stack.append(value)
        return seen

    def _rank_all(self) -> None:
        """Rank all values anew: in the order they are in, but after their inputs."""
        rank = 0
        for first in self.values.values():
            stack, opened = [first], set[Value]()
            while stack:
                value = stack[-1]
                unranked = [
                    v for v in map(self.values.__getitem__, value.input_ids()) if not v.rank
                ]
                if unranked and value not in opened:
                    opened.add(value)
                    stack += unranked
                    continue
                stack.pop()
                if not value.rank:
                    value.rank = rank = rank + 1
        self._highest_rank = rank

    def settle_roots(self, covers: int) -> None:
        """Take away the roots up to sequence `covers`: what depends on them is right again."""
        for value_id in [v for v, dirty in self.roots.items() if dirty <= covers]:
            del self.roots[value_id]
            self.touched.add(value_id)


def _by_rank(value: Value) -> int:
    return value.rank


def ids_in(inputs: Inputs) -> list[str]:
    """Every value id in `inputs`, in order; one taken twice comes twice."""
    ids: list[str] = []
    for target in inputs.values():
        if isinstance(target, str):
            ids.append(target)
        else:
            ids += target
    return ids


def without(inputs: Inputs, gone: set[str]) -> Inputs:
    """`inputs` less the ids in `gone`: an argument of one value goes with it, a list shrinks."""
    kept: Inputs = {}
    for argument, target in inputs.items():
        if isinstance(target, list):
            kept[argument] = [value_id for value_id in target if value_id not in gone]
        elif target not in gone:
            kept[argument] = target
    return kept
