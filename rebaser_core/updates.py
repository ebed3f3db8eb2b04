"""What a batch can ask of a change set: updates, externally tagged on the wire."""

from typing import Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import (
    FailFast,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from rebaser_core.ids import FuncId, ValueId
from rebaser_core.wire_model import JsonValue, WireModel

MAX_ARGUMENT: Final = 128
"""Characters of an argument's name."""
MAX_NAME: Final = 512
"""Characters of a value's or a function's name."""

_ONE_OR_MANY: Final = GetPydanticSchema(
    lambda source, handler: {
        **handler(source),
        "custom_error_type": "input",
        "custom_error_message": "Input should be a value id, a ULID in its canonical text, "
        "or a list of them",
    }
)

Inputs = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=MAX_ARGUMENT)],
    Annotated[ValueId | list[ValueId], _ONE_OR_MANY],
]
"""Argument name → one value id, or a list of them in the order that the function shall see."""

InputSignature = tuple[tuple[str, int | None], ...]
"""Of inputs: argument name and length of its list, in order; None for an argument of one value."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]


class _Tagged(WireModel):
    """Externally tagged: `{"<kind>": {…}}`."""

    KIND: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        return {self.KIND: super().to_wire()}


class PutFunc(_Tagged):
    """Define a function, or replace it: every value computed by it is computed anew."""

    KIND: ClassVar = "putFunc"
    func_id: FuncId
    name: Name
    runtime: Literal["builtin", "python", "cel"]
    code: Annotated[str, StringConstraints(max_length=65_536)] = ""
    """`builtin`: its name; `python`: an entry point's name; `cel`: the source text."""


class RemoveFunc(_Tagged):
    """Remove a function; values that it computed fail until it is defined again."""

    KIND: ClassVar = "removeFunc"
    func_id: FuncId


class PutValue(_Tagged):
    """Define a value, or replace its whole definition. With `func_id` it is a dependent value."""

    KIND: ClassVar = "putValue"
    value_id: ValueId
    name: Name | None = None
    value: JsonValue = None
    func_id: FuncId | None = None
    inputs: Inputs | None = None


class SetValue(_Tagged):
    """Set what a source value is."""

    KIND: ClassVar = "setValue"
    value_id: ValueId
    value: JsonValue


class SetInputs(_Tagged):
    """Replace what a dependent value is computed from."""

    KIND: ClassVar = "setInputs"
    value_id: ValueId
    inputs: Inputs


class RemoveValue(_Tagged):
    """Remove a value; those that took it as an input lose that input."""

    KIND: ClassVar = "removeValue"
    value_id: ValueId


class SetComputed(_Tagged):
    """What a dependent values update found: a value, or why there is none. Not for clients."""

    KIND: ClassVar = "setComputed"
    value_id: ValueId
    value: JsonValue = None
    failed: str | None = None
    blocked_by: ValueId | None = None


AnyUpdate = PutFunc | RemoveFunc | PutValue | SetValue | SetInputs | RemoveValue | SetComputed

_KINDS: Final[dict[str, type[AnyUpdate]]] = {
    shape.KIND: shape
    for shape in (PutFunc, RemoveFunc, PutValue, SetValue, SetInputs, RemoveValue, SetComputed)
}
_CLASSES: Final = frozenset(_KINDS.values())


def read_update(data: Any) -> AnyUpdate:
    """Read one update as the wire has it; an object that is one already stays.

    Raises:
        PydanticCustomError, ValidationError: it is none.
    """
    if type(data) in _CLASSES:
        return cast("AnyUpdate", data)
    if not isinstance(data, dict) or len(data) != 1:
        raise PydanticCustomError("update", "an update is an object with one key, its kind")
    [(kind, body)] = data.items()
    shape = _KINDS.get(kind)
    if shape is None:
        raise PydanticCustomError(
            "update",
            "no update is called {kind}; there are {kinds}",
            {"kind": repr(str(kind)[:40]), "kinds": ", ".join(_KINDS)},
        )
    return shape.from_wire(body)


Update = Annotated[
    AnyUpdate,
    PlainValidator(read_update),
    PlainSerializer(_Tagged.to_wire),
    WithJsonSchema({"type": "object"}),
]

UpdateList = Annotated[list[Update], FailFast()]
"""One mistake is enough: a batch may have a million."""
