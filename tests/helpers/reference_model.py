"""What a change set is after a batch, said as plainly as can be: dicts, scans and brute force.

Everything here is slow on purpose. It shares nothing with the code under test but
the shapes of updates.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from rebaser_core.codecs import CBOR, dumps
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)


@dataclass
class Node:
    """A value."""

    name: str | None = None
    value: Any = None
    func: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    status: str = "ok"
    message: str | None = None


Correction = tuple[int, str, str]
"""Index, code, and an id or name that the detail must mention."""


@dataclass
class Model:
    """A change set."""

    nodes: dict[str, Node] = field(default_factory=dict)
    funcs: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    roots: dict[str, int] = field(default_factory=dict)

    def apply(
        self, sequence: int, updates: list[AnyUpdate], covers: int | None = None
    ) -> tuple[list[AnyUpdate], list[Correction]]:
        """The batch as performed, and its corrections."""
        performed: list[AnyUpdate] = []
        corrections: list[Correction] = []
        if covers is None:
            for update in updates:
                if isinstance(update, PutValue):
                    self.nodes.setdefault(update.value_id, Node())
        for index, update in enumerate(updates):
            found: list[tuple[str, str]] = []
            if covers is None:
                done = self._one(sequence, update, found)
            else:
                done = self._result(update, covers, found)
            performed += [done] if done is not None else []
            if isinstance(done, RemoveValue) and covers is None:
                later = {u.value_id for u in updates[index:] if isinstance(u, PutValue)}
                if done.value_id in later:
                    self.nodes[done.value_id] = Node()
            corrections += [(index, *what) for what in found]
        return performed, corrections

    def contents(self) -> dict[str, Any]:
        """As `batches.contents` of a graph."""
        return {
            "values": {
                i: (n.name, plain(n.value), n.func, n.inputs, n.status, n.message)
                for i, n in self.nodes.items()
            },
            "funcs": self.funcs,
            "roots": self.roots,
        }

    def settle(self, covers: int) -> None:
        self.roots = {v: sequence for v, sequence in self.roots.items() if sequence > covers}

    def dependents(self, value_id: str) -> set[str]:
        return {i for i, node in self.nodes.items() if value_id in ids_in(node.inputs)}

    def depends_on(self, value_id: str, other: str) -> bool:
        return value_id == other or any(
            self.depends_on(input_id, other) for input_id in ids_in(self.nodes[value_id].inputs)
        )

    def _root(self, sequence: int, value_id: str) -> None:
        node = self.nodes[value_id]
        if node.func is not None:
            node.status, node.message = "pending", None
        if node.func is not None or self.dependents(value_id):
            self.roots[value_id] = sequence

    def _one(
        self, sequence: int, update: AnyUpdate, found: list[tuple[str, str]]
    ) -> AnyUpdate | None:
        match update:
            case PutFunc(func_id=func_id):
                had = self.funcs.get(func_id, (None, None, None))
                self.funcs[func_id] = (update.name, update.runtime, update.code)
                is_same = had[1:] == (update.runtime, update.code)
                self._recompute_all_of(sequence, func_id, failed_only=is_same)
            case RemoveFunc(func_id=func_id) if func_id in self.funcs:
                del self.funcs[func_id]
                self._recompute_all_of(sequence, func_id)
            case RemoveFunc(func_id=func_id):
                return found.append(("missing-function", func_id))
            case PutValue(value_id=value_id):
                return self._put(sequence, update, found)
            case SetComputed(value_id=value_id):
                return found.append(("not-a-result", value_id))
            case _ if update.value_id not in self.nodes:
                return found.append(("missing-value", update.value_id))
            case _:
                return self._edit(sequence, update, self.nodes[update.value_id], found)
        return update

    def _edit(
        self, sequence: int, update: AnyUpdate, node: Node, found: list[tuple[str, str]]
    ) -> AnyUpdate | None:
        value_id = update.value_id
        match update:
            case SetValue() if node.func is not None:
                return found.append(("controlled-value", value_id))
            case SetValue(value=value):
                if not same(node.value, value):
                    node.value = value
                    self._root(sequence, value_id)
            case SetInputs() if node.func is None:
                return found.append(("inputs-of-source", value_id))
            case SetInputs(inputs=inputs):
                had, node.inputs = node.inputs, self._fitting(value_id, inputs, found)
                is_same = had == node.inputs and list(had) == list(node.inputs)
                if not is_same or node.status in ("failed", "blocked"):
                    self._root(sequence, value_id)
                return SetInputs(value_id=value_id, inputs=node.inputs)
            case RemoveValue():
                losing = self.dependents(value_id)
                del self.nodes[value_id]
                self.roots.pop(value_id, None)
                for other in losing:
                    self.nodes[other].inputs = less(self.nodes[other].inputs, {value_id})
                    self._root(sequence, other)
        return update

    def _put(
        self, sequence: int, update: PutValue, found: list[tuple[str, str]]
    ) -> AnyUpdate | None:
        value_id, node = update.value_id, self.nodes[update.value_id]
        before = replace(node)
        name, value, inputs = update.name, update.value, update.inputs
        if name is not None and name in {n.name for i, n in self.nodes.items() if i != value_id}:
            found.append(("name-taken", name))
            name = None
        node.name, node.func = name, update.func_id
        if update.func_id is None:
            if inputs:
                found.append(("inputs-of-source", value_id))
                inputs = None
            node.value, node.inputs, node.status, node.message = value, {}, "ok", None
            if before.func is not None or not same(before.value, value):
                self._root(sequence, value_id)
        else:
            if value is not None:
                found.append(("controlled-value", value_id))
                value = None
            node.inputs = self._fitting(value_id, inputs or {}, found)
            inputs = node.inputs if inputs is not None else None
            self._root(sequence, value_id)
        return PutValue(
            value_id=value_id, name=name, value=value, func_id=update.func_id, inputs=inputs
        )

    def _fitting(
        self, value_id: str, inputs: dict[str, Any], found: list[tuple[str, str]]
    ) -> dict[str, Any]:
        gone = set()
        self.nodes[value_id].inputs = {}
        for input_id in dict.fromkeys(ids_in(inputs)):
            if input_id not in self.nodes:
                found.append(("missing-input", input_id))
                gone.add(input_id)
            elif self.depends_on(input_id, value_id):
                found.append(("cycle", input_id))
                gone.add(input_id)
        return less(inputs, gone)

    def _recompute_all_of(self, sequence: int, func_id: str, *, failed_only: bool = False) -> None:
        for value_id, node in self.nodes.items():
            is_failed = node.status in ("failed", "blocked")
            if node.func == func_id and (is_failed or not failed_only):
                self._root(sequence, value_id)

    def _result(
        self, update: AnyUpdate, covers: int, found: list[tuple[str, str]]
    ) -> AnyUpdate | None:
        node = self.nodes.get(getattr(update, "value_id", ""))
        if not isinstance(update, SetComputed) or node is None or node.func is None:
            return found.append(("stale-result", ""))
        if self.roots.get(update.value_id, 0) > covers:
            return found.append(("stale-result", update.value_id))
        node.value, node.status, node.message = update.value, "ok", None
        if update.failed is not None:
            node.value, node.status, node.message = None, "failed", update.failed
        elif update.blocked_by is not None:
            node.value, node.status, node.message = None, "blocked", update.blocked_by
        return update


def ids_in(inputs: dict[str, Any]) -> list[str]:
    return [i for target in inputs.values() for i in ([target] if type(target) is str else target)]


def less(inputs: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    inputs = deepcopy(inputs)
    for argument, target in list(inputs.items()):
        if type(target) is list:
            inputs[argument] = [i for i in target if i not in gone]
        elif target in gone:
            del inputs[argument]
    return inputs


def same(one: Any, other: Any) -> bool:
    return plain(one) == plain(other)


def plain(data: Any) -> bytes:
    """1, 1.0 and true are different, and {} and []; the order of keys makes no difference."""
    if isinstance(data, dict):
        data = {key: plain(data[key]) for key in sorted(data)}
    if isinstance(data, list):
        data = [plain(item) for item in data]
    return dumps(CBOR, data)
