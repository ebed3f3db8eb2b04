"""What values and functions are defined as, apart from what was computed; and how two such differ.

A definition is the update that makes it: `PutValue` and `PutFunc`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rebaser_core.codecs import same
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
class View:
    """Definitions by id, from a graph or from what lies over one."""

    value: Callable[[str], Definition]
    func: Callable[[str], PutFunc | None]

    @classmethod
    def of(cls, graph: Graph) -> "View":
        return cls(lambda i: value_in(graph, i), lambda i: func_in(graph, i))


def value_in(graph: Graph, value_id: str) -> Definition:
    value = graph.values.get(value_id)
    if value is None:
        return None
    if value.func_id is None:
        return PutValue.model_construct(value_id=value_id, name=value.name, value=value.value)
    return PutValue.model_construct(
        value_id=value_id, name=value.name, func_id=value.func_id, inputs=value.inputs
    )


def func_in(graph: Graph, func_id: str) -> PutFunc | None:
    func = graph.funcs.get(func_id)
    if func is None:
        return None
    runtime: Any = func.runtime  # read as one of those that there are
    return PutFunc.model_construct(func_id=func_id, name=func.name, runtime=runtime, code=func.code)


class Before(NamedTuple):
    """What a batch may change, as it is before."""

    values: dict[str, Definition]
    funcs: dict[str, PutFunc | None]
    takers: dict[str, list[str]]
    """Value that the batch may remove → who takes it as an input."""

    @classmethod
    def of(cls, graph: Graph, updates: Iterable[AnyUpdate]) -> "Before":
        before = cls({}, {}, {})
        for update in updates:
            if isinstance(update, PutFunc | RemoveFunc):
                before.funcs.setdefault(update.func_id, func_in(graph, update.func_id))
                continue
            value_id = update.value_id
            before.values.setdefault(value_id, value_in(graph, value_id))
            if isinstance(update, RemoveValue) and value_id in graph.values:
                takers = before.takers[value_id] = sorted(graph.values[value_id].dependents)
                for taker in takers:
                    before.values.setdefault(taker, value_in(graph, taker))
        return before


def same_value(one: Definition, other: Definition) -> bool:
    if one is None or other is None:
        return one is other
    return (
        (one.name, one.func_id, one.inputs or {}) == (other.name, other.func_id, other.inputs or {})
        and list(one.inputs or ()) == list(other.inputs or ())
        and same(one.value, other.value)
    )


def difference(
    before: View,
    after: View,
    value_ids: Collection[str],
    func_ids: Collection[str],
    cut: Collection[str] = (),
) -> list[AnyUpdate]:
    """A batch that makes of `before` what `after` is, as far as these ids go.

    It needs no correction where `before` is what is there, touches nothing that is the
    same in both, and says no more than what differs: a value set on one side and renamed
    on the other has both. Ids in `cut` lose whoever took them as an input, even if they
    are in both.
    """
    batch: list[AnyUpdate] = [*_func_changes(before, after, func_ids)]
    changed = [
        (value_id, old, new)
        for value_id in sorted(value_ids)
        for old, new in [(before.value(value_id), after.value(value_id))]
        if value_id in cut or not same_value(old, new)
    ]
    gone = {i for i, old, new in changed if old is not None and (new is None or i in cut)}
    batch += [RemoveValue(value_id=value_id) for value_id in sorted(gone)]
    staying = [
        (None if value_id in gone else _less(old, gone), new)
        for value_id, old, new in changed
        if new is not None
    ]
    batch += _releases(staying)
    for old, new in staying:
        batch += _smallest(old, new)
    return batch


def _func_changes(before: View, after: View, func_ids: Iterable[str]) -> Iterable[AnyUpdate]:
    for func_id in sorted(func_ids):
        new = after.func(func_id)
        if new == before.func(func_id):
            continue
        yield RemoveFunc(func_id=func_id) if new is None else new


def _less(old: Definition, gone: set[str]) -> Definition:
    """What removing others leaves of it."""
    if old is None or not old.inputs or gone.isdisjoint(ids_in(old.inputs)):
        return old
    return old.model_copy(update={"inputs": without(old.inputs, gone)})


def _releases(changes: list[tuple[Definition, PutValue]]) -> Iterable[AnyUpdate]:
    """Names and inputs given up first where another value of the batch may need that."""
    wanted = {new.name for old, new in changes if old is None or new.name != old.name}
    wiring = [n.value_id for o, n in changes if n.inputs and (o is None or n.inputs != o.inputs)]
    for old, new in changes:
        if old is None:
            continue
        if old.name is not None and old.name != new.name and old.name in wanted:
            yield old.model_copy(update={"name": None})
        if old.inputs and old.inputs != new.inputs and wiring not in ([], [new.value_id]):
            yield SetInputs(value_id=new.value_id, inputs={})


def _smallest(old: Definition, new: PutValue) -> Iterable[AnyUpdate]:
    """The update that says what differs and no more."""
    if same_value(old, new):
        return
    if old is not None and (old.name, old.func_id) == (new.name, new.func_id):
        if new.func_id is None:
            yield SetValue(value_id=new.value_id, value=new.value)
        else:
            yield SetInputs(value_id=new.value_id, inputs=new.inputs or {})
    else:
        yield new
