"""How a value or a function is defined at one moment of a history."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rebaser_server.values.columns import Inputs
from rebaser_server.values.graph import Graph


class ValueState(NamedTuple):
    """A value's definition; a removed one does not exist, and has nothing else."""

    exists: bool = False
    func_id: str | None = None
    text: str | None = None
    """JSON of a source."""
    inputs: Inputs | None = None
    """Of a computed value."""


class FuncState(NamedTuple):
    """A function's definition; None for what a removed one has."""

    runtime: str | None = None
    code: str | None = None


ABSENT: Final = ValueState()
NO_FUNC: Final = FuncState()


def value_state(graph: Graph, value_id: str) -> ValueState:
    """The definition that a graph has of a value."""
    value = graph.values.get(value_id)
    if value is None:
        return ABSENT
    if value.func_id is None:
        return ValueState(exists=True, text=value.text)
    return ValueState(exists=True, func_id=value.func_id, inputs=value.inputs)


def same_inputs(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> bool:
    return list((one or {}).items()) == list((other or {}).items())
