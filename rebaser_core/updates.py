"""What a batch can ask of a change set: updates, externally tagged on the wire."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import PlainSerializer, PlainValidator, StringConstraints, WithJsonSchema

from rebaser_core.ids import FuncId, ValueId
from rebaser_core.versioned import Shape

Inputs = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=128)], ValueId | list[ValueId]
]
"""Argument name → one value id, or a list of them in the order that the function shall see."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class PutFunc(Shape):
    """Define a function, or replace it: every value computed by it is computed anew."""

    KIND: ClassVar = "putFunc"
    func_id: FuncId
    name: Name
    runtime: Literal["builtin", "python", "cel"]
    code: Annotated[str, StringConstraints(max_length=65_536)] = ""
    """`builtin`: its name; `python`: an entry point's name; `cel`: the source text."""


class RemoveFunc(Shape):
    """Remove a function; values that it computed fail until it is defined again."""

    KIND: ClassVar = "removeFunc"
    func_id: FuncId


class PutValue(Shape):
    """Define a value, or replace its whole definition. With `func_id` it is a dependent value."""

    KIND: ClassVar = "putValue"
    value_id: ValueId
    name: Name | None = None
    value: Any = None
    func_id: FuncId | None = None
    inputs: Inputs | None = None


class SetValue(Shape):
    """Set what a source value is."""

    KIND: ClassVar = "setValue"
    value_id: ValueId
    value: Any


class SetInputs(Shape):
    """Replace what a dependent value is computed from."""

    KIND: ClassVar = "setInputs"
    value_id: ValueId
    inputs: Inputs


class RemoveValue(Shape):
    """Remove a value; those that took it as an input lose that input."""

    KIND: ClassVar = "removeValue"
    value_id: ValueId


class SetComputed(Shape):
    """What a dependent values update found: a value, or why there is none. Not for clients."""

    KIND: ClassVar = "setComputed"
    value_id: ValueId
    value: Any = None
    failed: str | None = None
    blocked_by: ValueId | None = None


AnyUpdate = PutFunc | RemoveFunc | PutValue | SetValue | SetInputs | RemoveValue | SetComputed

_KINDS: Final[dict[str, type[AnyUpdate]]] = {
    shape.KIND: shape
    for shape in (PutFunc, RemoveFunc, PutValue, SetValue, SetInputs, RemoveValue, SetComputed)
}
_FIELDS: Final = {
    shape: [
        (field, info.alias or field, info.is_required())
        for field, info in shape.model_fields.items()
    ]
    for shape in _KINDS.values()
}


def _untag(data: Any) -> AnyUpdate:
    if isinstance(data, AnyUpdate):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("an update is an object with one key, its kind")
    [(kind, body)] = data.items()
    shape = _KINDS.get(kind)
    if shape is None:
        raise ValueError(f"no update is called {str(kind)[:40]!r}; there are {', '.join(_KINDS)}")
    return shape.model_validate(body)


def _tag(update: AnyUpdate) -> dict[str, Any]:
    """By hand: a large batch is most of what is ever encoded."""
    body = {}
    for field, alias, required in _FIELDS[type(update)]:
        value = getattr(update, field)
        if required or value is not None:
            body[alias] = value
    return {update.KIND: body}


Update = Annotated[
    AnyUpdate, PlainValidator(_untag), PlainSerializer(_tag), WithJsonSchema({"type": "object"})
]
