"""Definitions of values and functions, without computed results, and the difference of two.

A definition is the update that makes it: `PutValue` and `PutFunc`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rebaser_core.plain_json import json_equal
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.graph import Graph, ids_in, without

Definition = PutValue | None
"""Of a value; None if there is none."""


@dataclass(frozen=True, slots=True)
class DefinitionView:
    """Lookup of definitions by id, in a graph or in definitions laid over one."""

    value: Callable[[str], Definition]
    func: Callable[[str], PutFunc | None]

    @classmethod
    def of(cls, graph: Graph) -> "DefinitionView":
        return cls(lambda i: value_definition(graph, i), lambda i: func_definition(graph, i))


def value_definition(graph: Graph, value_id: str) -> Definition:
    value = graph.values.get(value_id)
    if value is None:
        return None
    if value.func_id is None:
        return PutValue.model_construct(value_id=value_id, name=value.name, value=value.value)
    return PutValue.model_construct(
        value_id=value_id, name=value.name, func_id=value.func_id, inputs=value.inputs
    )


def func_definition(graph: Graph, func_id: str) -> PutFunc | None:
    func = graph.funcs.get(func_id)
    if func is None:
        return None
    runtime: Any = func.runtime  # read as one of those that there are
    return PutFunc.model_construct(func_id=func_id, name=func.name, runtime=runtime, code=func.code)


class Preimage(NamedTuple):
    """The definitions that a batch may change, as they are before it."""

    values: dict[str, Definition]
    funcs: dict[str, PutFunc | None]
    dependents: dict[str, list[str]]
    """Value that the batch may remove → its dependents."""

    @classmethod
    def of(cls, graph: Graph, updates: Iterable[AnyUpdate]) -> "Preimage":
        preimage = cls({}, {}, {})
        for update in updates:
            if isinstance(update, PutFunc | RemoveFunc):
                preimage.funcs.setdefault(update.func_id, func_definition(graph, update.func_id))
                continue
            value_id = update.value_id
            preimage.values.setdefault(value_id, value_definition(graph, value_id))
            if isinstance(update, RemoveValue) and value_id in graph.values:
                dependents = preimage.dependents[value_id] = sorted(
                    graph.values[value_id].dependents
                )
                for dependent in dependents:
                    preimage.values.setdefault(dependent, value_definition(graph, dependent))
        return preimage


def same_value(one: Definition, other: Definition) -> bool:
    if one is None or other is None:
        return one is other
    return (
        (one.name, one.func_id, one.inputs or {}) == (other.name, other.func_id, other.inputs or {})
        and list(one.inputs or ()) == list(other.inputs or ())
        and json_equal(one.value, other.value)
    )


def difference(
    before: DefinitionView,
    after: DefinitionView,
    value_ids: Collection[str],
    func_ids: Collection[str],
    removed: Collection[str] = (),
) -> list[AnyUpdate]:
    """The smallest batch that turns `before` into `after`, as far as these ids go.

    Applied to `before` it needs no correction, and it changes only what differs: a value set
    on one side and renamed on the other has both. Ids in `removed` lose their dependents,
    even if they are in both.
    """
    batch: list[AnyUpdate] = [*_func_changes(before, after, func_ids)]
    changed = [
        (value_id, old, new)
        for value_id in sorted(value_ids)
        for old, new in [(before.value(value_id), after.value(value_id))]
        if value_id in removed or not same_value(old, new)
    ]
    gone = {i for i, old, new in changed if old is not None and (new is None or i in removed)}
    batch += [RemoveValue(value_id=value_id) for value_id in sorted(gone)]
    staying = [
        (None if value_id in gone else _without(old, gone), new)
        for value_id, old, new in changed
        if new is not None
    ]
    batch += _release_conflicts(staying)
    for old, new in staying:
        batch += _minimal_update(old, new)
    return batch


def _func_changes(
    before: DefinitionView, after: DefinitionView, func_ids: Iterable[str]
) -> Iterable[AnyUpdate]:
    for func_id in sorted(func_ids):
        new = after.func(func_id)
        if new == before.func(func_id):
            continue
        yield RemoveFunc(func_id=func_id) if new is None else new


def _without(old: Definition, gone: set[str]) -> Definition:
    """The definition without the inputs in `gone`."""
    if old is None or not old.inputs or gone.isdisjoint(ids_in(old.inputs)):
        return old
    return old.model_copy(update={"inputs": without(old.inputs, gone)})


def _release_conflicts(changes: list[tuple[Definition, PutValue]]) -> Iterable[AnyUpdate]:
    """Updates that first release names and inputs that other values of the batch may need."""
    wanted = {new.name for old, new in changes if old is None or new.name != old.name}
    rewired = [n.value_id for o, n in changes if n.inputs and (o is None or n.inputs != o.inputs)]
    for old, new in changes:
        if old is None:
            continue
        if old.name is not None and old.name != new.name and old.name in wanted:
            yield old.model_copy(update={"name": None})
        if old.inputs and old.inputs != new.inputs and rewired not in ([], [new.value_id]):
            yield SetInputs(value_id=new.value_id, inputs={})


def _minimal_update(old: Definition, new: PutValue) -> Iterable[AnyUpdate]:
    """The update that changes only what differs."""
    if same_value(old, new):
        return
    if old is not None and (old.name, old.func_id) == (new.name, new.func_id):
        if new.func_id is None:
            yield SetValue(value_id=new.value_id, value=new.value)
        else:
            yield SetInputs(value_id=new.value_id, inputs=new.inputs or {})
    else:
        yield new
