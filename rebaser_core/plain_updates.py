"""Many updates as plain data: checked all at once, and made into objects one by one if at all.

A large batch is mostly puts and sets. As columns they cost a tenth of what an object for each
would. What the check does not know, the classes of `updates` judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import are_ulid_texts
from rebaser_core.lazy_updates import LazyUpdates
from rebaser_core.plain_json import MAX_DEPTH
from rebaser_core.updates import (
    MAX_ARGUMENT,
    MAX_NAME,
    AnyUpdate,
    InputSignature,
    PutFunc,
    UpdateList,
)

MANY: Final = 64
"""Updates from which a list is kept as plain data."""

_NO_INPUTS: Final = 0  # the number of the signature without arguments
_PUT_KEYS: Final = frozenset({"valueId", "name", "value", "funcId", "inputs"})
_SET_KEYS: Final = frozenset({"valueId", "value"})


@dataclass(frozen=True, slots=True)
class UpdateColumns:
    """Puts and sets of values, column by column, in their order; and puts of functions."""

    ids: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    func_ids: list[str | None] = field(default_factory=list)
    """None: it is a source, or a set."""
    signatures: list[int] = field(default_factory=list)
    """Which of `known_signatures` the inputs of each row have."""
    input_ids: list[str] = field(default_factory=list)
    """Every input, row after row, in the order of its arguments."""
    is_put: list[bool] = field(default_factory=list)
    """Whether the row defines its value, whole; else it sets what a source is."""
    funcs: list[PutFunc] = field(default_factory=list)
    known_signatures: dict[InputSignature, int] = field(default_factory=lambda: {(): _NO_INPUTS})
    """Each that occurs; numbered in this order."""

    def add_put(self, body: dict[str, Any]) -> None:
        """Append what a `putValue` says."""
        get = body.get
        self.ids.append(body["valueId"])
        self.names.append(get("name"))
        self.values.append(get("value"))
        self.func_ids.append(get("funcId"))
        inputs = get("inputs")
        self.signatures.append(self._signature(inputs) if inputs else _NO_INPUTS)
        self.is_put.append(True)

    def add_set(self, body: dict[str, Any]) -> None:
        """Append what a `setValue` says."""
        self.ids.append(body["valueId"])
        self.names.append(None)
        self.values.append(body["value"])
        self.func_ids.append(None)
        self.signatures.append(_NO_INPUTS)
        self.is_put.append(False)

    @property
    def widths(self) -> list[int]:
        """How many inputs a row of each of `known_signatures` has."""
        return [
            sum(1 if count is None else count for _, count in signature)
            for signature in self.known_signatures
        ]

    def _signature(self, inputs: dict[Any, Any]) -> int:
        arguments: list[tuple[str, int | None]] = []
        for argument, target in inputs.items():
            if type(target) is list:
                self.input_ids.extend(target)
                arguments.append((argument, len(target)))
            else:
                self.input_ids.append(target)
                arguments.append((argument, None))
        signature = tuple(arguments)
        return self.known_signatures.setdefault(signature, len(self.known_signatures))


class PlainUpdates(LazyUpdates):
    """Updates as the wire has them, and in columns."""

    def __init__(self, plain: list[Any], columns: UpdateColumns) -> None:
        self._plain = plain
        self.columns: Final = columns

    @classmethod
    def read(cls, data: Any) -> "PlainUpdates | None":
        """The updates, if this is a list of nothing but valid puts and sets.

        None says nothing but that they have to be read one by one.
        """
        if type(data) is not list:
            return None
        try:
            columns = _columns_of(data)
            return cls(data, columns) if columns and _is_valid(columns) else None
        except (LookupError, TypeError, ValueError, PydanticCustomError, MalformedMessage):
            return None

    def to_wire(self) -> list[Any]:
        return self._plain

    def __len__(self) -> int:
        return len(self._plain)


def _columns_of(data: list[Any]) -> UpdateColumns | None:
    """Raise `LookupError`, `TypeError` or `ValueError` for what is no update."""
    columns = UpdateColumns()
    for update in data:
        if type(update) is not dict:
            return None
        [(kind, body)] = update.items()
        if type(body) is not dict:
            return None
        if kind == "putValue":
            if not body.keys() <= _PUT_KEYS or type(body.get("inputs", body)) is not dict:
                return None
            columns.add_put(body)
        elif kind == "setValue":
            if body.keys() != _SET_KEYS:
                return None
            columns.add_set(body)
        elif kind == "putFunc":
            columns.funcs.append(PutFunc.from_wire(body))
        else:
            return None
    return columns


def _is_valid(columns: UpdateColumns) -> bool:
    """Whether the columns hold what the classes of `updates` would take.

    Raises:
        TypeError, ValueError, MalformedMessage: they do not.
    """
    codecs.validate_json(columns.values, MAX_DEPTH + 1)  # the list of them is one level
    names = [name for name in columns.names if name is not None]
    func_ids = set(columns.func_ids) - {None}
    return (
        are_ulid_texts(columns.ids)
        and are_ulid_texts(func_ids)
        and _are_texts(names, MAX_NAME)
        and _are_texts([a for s in columns.known_signatures for a, _ in s], MAX_ARGUMENT)
        and are_ulid_texts(columns.input_ids)
    )


def _are_texts(texts: list[Any], longest: int) -> bool:
    """Raise `UnicodeEncodeError`, a `ValueError`, for what UTF-8 cannot say."""
    if not texts:
        return True
    if set(map(type, texts)) != {str}:
        return False
    lengths = set(map(len, texts))
    "".join(texts).encode()
    return min(lengths) > 0 and max(lengths) <= longest


def _read_list(data: Any, read_one_by_one: Callable[[Any], list[AnyUpdate]]) -> Sequence[AnyUpdate]:
    if isinstance(data, list):  # as nearly always: to ask for an abstract class takes longer
        plain = PlainUpdates.read(data) if len(data) >= MANY else None
        return read_one_by_one(data) if plain is None else plain
    return data if isinstance(data, LazyUpdates) else read_one_by_one(data)


def list_to_wire(updates: Sequence[AnyUpdate]) -> list[Any]:
    if not isinstance(updates, list) and isinstance(updates, LazyUpdates):
        return updates.to_wire()
    return [update.to_wire() for update in updates]


UpdateSequence = Annotated[
    Sequence[AnyUpdate],
    GetPydanticSchema(
        lambda _source, handler: core_schema.no_info_wrap_validator_function(
            _read_list,
            handler(UpdateList),
            serialization=core_schema.plain_serializer_function_ser_schema(list_to_wire),
        )
    ),
]
"""The updates of a batch: objects, or plain data where they are many and that says it all."""
