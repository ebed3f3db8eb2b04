"""Random batches, sensible and not, over so few ids and names that they meet all the time."""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
from rebaser_server.values.graph import Graph
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.reference_model import plain


def examples(count: int, **more: Any) -> settings:
    """So many of them, times what `EXAMPLES` says, however busy the machine is."""
    slow = [HealthCheck.too_slow]
    times = float(os.environ.get("EXAMPLES", "1"))
    return settings(
        max_examples=max(1, round(times * count)), deadline=None, suppress_health_check=slow, **more
    )


VALUES = [ulid(number) for number in range(7)]
FUNCS = [ulid(number) for number in range(5, 9)]
"""Two of them name values as well: nothing forbids it."""


def made(shape: type[AnyUpdate], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[AnyUpdate]:
    return st.fixed_dictionaries(fields).map(lambda known: shape(**known))


value_ids = st.sampled_from(VALUES)
func_ids = st.sampled_from(FUNCS)
names = st.none() | st.sampled_from(["a", "b", "c"])
codes = st.sampled_from(["sum", "max", "count", "collect", "any", "not-there"])
numbers = st.integers(-1, 2)
data = st.one_of(
    numbers,
    numbers,
    numbers,
    st.sampled_from([None, True, False, 1.0, 0.0, -0.0, "", "ä", 2**63 - 1, -(2**63), 1e300]),
    st.sampled_from([[1], [1.0], [], {}, {"k": 1, "l": [None]}, {"l": [None], "k": 1}]),
)
inputs = st.one_of(
    st.builds(lambda ids: {"values": ids}, st.lists(value_ids, max_size=4)),
    st.dictionaries(
        st.sampled_from(["values", "left", "right"]),
        value_ids | st.lists(value_ids, max_size=3),
        max_size=3,
    ),
)

sources = made(PutValue, value_id=value_ids, name=names, value=data)
dependents = made(
    PutValue, value_id=value_ids, name=names, func_id=func_ids, inputs=st.none() | inputs
)
muddled = made(
    PutValue,
    value_id=value_ids,
    name=names,
    value=data,
    func_id=st.none() | func_ids,
    inputs=st.none() | inputs,
)
functions = made(
    PutFunc, func_id=func_ids, name=st.just("f"), runtime=st.just("builtin"), code=codes
)
results = st.one_of(
    made(SetComputed, value_id=value_ids, value=data),
    made(SetComputed, value_id=value_ids, failed=st.just("because")),
    made(SetComputed, value_id=value_ids, blocked_by=value_ids),
)
edits = st.one_of(
    made(SetValue, value_id=value_ids, value=data),
    made(SetInputs, value_id=value_ids, inputs=inputs),
    sources,
    dependents,
    functions,
    made(RemoveValue, value_id=value_ids),
    made(RemoveFunc, func_id=func_ids),
)
batches = st.lists(edits | muddled | results, max_size=8)
definitions = st.lists(sources | dependents | functions, min_size=5, max_size=12)
"""Mostly sense, so that there is something to edit."""
computable = st.tuples(
    *(made(PutValue, value_id=st.just(value_id), value=numbers) for value_id in VALUES[:2]),
    *(
        made(
            PutValue,
            value_id=st.just(value_id),
            func_id=func_ids,
            inputs=st.builds(
                lambda ids: {"values": ids}, st.lists(value_ids, min_size=1, max_size=3)
            ),
        )
        for value_id in VALUES[2:]
    ),
).map(
    lambda puts: (
        [
            PutFunc(func_id=func_id, name=code, runtime="builtin", code=code)
            for func_id, code in zip(FUNCS, ["sum", "max", "collect", "count"], strict=True)
        ]
        + list(puts)
    )
)
"""Nearly all of it comes out right at first; two functions give the same for many inputs."""
histories = st.tuples(definitions, st.lists(batches, max_size=4)).map(lambda h: [h[0], *h[1]])


def contents(graph: Graph) -> dict[str, Any]:
    """All that a graph says, without what follows from it; values in bytes, as 1 == 1.0 == True."""
    return {
        "values": {
            v.id: (v.name, plain(v.value), v.func_id, v.inputs, v.status.value, v.message)
            for v in graph.values.values()
        },
        "funcs": {f.id: (f.name, f.runtime, f.code) for f in graph.funcs.values()},
        "roots": dict(graph.roots),
    }


def require_consistent(graph: Graph) -> None:
    """What follows from the rest does follow from it."""
    values = graph.values
    takes = {value.id: set(value.input_ids()) for value in values.values()}
    taken_by: dict[str, set[str]] = {value_id: set() for value_id in values}
    for value_id, input_ids in takes.items():
        for input_id in input_ids:
            taken_by[input_id].add(value_id)
            assert values[input_id].rank < values[value_id].rank
    for value in values.values():
        assert value.dependents == taken_by[value.id]
        if value.func_id is None:
            assert not value.inputs
            assert (value.status, value.message) == ("ok", None)
        if value.status == "pending":
            assert value.id in graph.roots
    assert len({value.rank for value in values.values()}) == len(values)
    assert dict(graph.names) == {v.name: v.id for v in values.values() if v.name is not None}
    users: dict[str, set[str]] = {}
    for value in values.values():
        if value.func_id is not None:
            users.setdefault(value.func_id, set()).add(value.id)
    for func_id in {*FUNCS, *users}:
        assert graph.users_of(func_id) == users.get(func_id, set())
        assert graph.user_count(func_id) == len(users.get(func_id, ()))
    assert graph.roots.keys() <= values.keys()
