"""The base of all messages: strict models, camelCase on the wire, readable errors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import CANONICAL


def _validated_json(value: Any) -> Any:
    try:
        codecs.validate_json(value)
    except MalformedMessage as error:
        raise PydanticCustomError("plain", "{why}", {"why": str(error)}) from None
    return value


JsonValue = Annotated[Any, AfterValidator(_validated_json)]
"""What JSON can say, nested as deep as a value may be: checked before it is ever written."""

ParseFromJson = Field(strict=False)
"""For what is no JSON of its own, an enumeration or a tuple: it may be made from its JSON."""


class WireData(ABC):
    """Part of a message that is no model, and knows its plain data."""

    @abstractmethod
    def to_wire(self) -> Any:
        """Return plain data, which the caller does not change."""


class WireModel(BaseModel):
    """Part of a message: fields in camelCase on the wire, no unknown ones, never changed.

    Strict: `"1"`, `1.0` and `true` are no integers.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        strict=True,
        defer_build=True,
    )

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        """Read plain data, whose names are those of the wire and no others.

        Raises:
            ValidationError: it is not of this shape.
        """
        read: Self = cls.__pydantic_validator__.validate_python(data, by_alias=True, by_name=False)
        return read  # as `model_validate`, which takes half as long again

    def to_wire(self) -> dict[str, Any]:
        """Return plain data, without fields that are None by default.

        By hand, since a large batch is most of what is ever written; shares what is
        plain already.
        """
        said = {}
        values = self.__dict__
        for name, alias, required in _fields(type(self)):
            value = values[name]
            if required or value is not None:
                kind = type(value)
                said[alias] = value if kind in _AS_IT_IS else _writer_of(kind)(value)
        return said


@cache
def _fields(shape: type[WireModel]) -> list[tuple[str, str, bool]]:
    fields = shape.model_fields.items()
    return [(name, info.alias or name, info.is_required()) for name, info in fields]


def _find_writer(kind: type) -> Callable[[Any], Any]:
    """What makes plain data of values of that class."""
    if issubclass(kind, WireModel | WireData):
        return kind.to_wire
    if issubclass(kind, list | tuple):
        return _items_to_wire
    return str  # an id or an enumeration


_writer_of: Final[Callable[[type], Callable[[Any], Any]]] = cache(_find_writer)


def _items_to_wire(items: Sequence[Any]) -> list[Any]:
    return [item if type(item) in _AS_IT_IS else _writer_of(type(item))(item) for item in items]


_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None), dict})


def first_error(error: ValidationError) -> str:
    """Where the first mistake is, what it is, and how many more there are. Shows no data."""
    first = error.errors(include_url=False, include_input=False)[0]
    where: list[str] = []
    for part in map(str, first["loc"]):
        if where[-1:] != [part]:  # a tagged part comes twice: as the tag, and as the field
            where.append(part)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{'.'.join(where)[:200] or 'the body'}: {_problem_text(first)}{more}"


def _problem_text(problem: Any) -> str:
    if problem.get("ctx", {}).get("pattern") == CANONICAL:
        return "Input should be a ULID in its canonical text, in upper case"
    return str(problem["msg"])
