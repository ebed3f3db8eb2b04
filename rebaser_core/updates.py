"""The updates of a batch, externally tagged on the wire, and limits of their size.

A large batch is mostly puts and sets. As plain data in columns they cost a tenth of what an object
for each would; they are checked all at once, and made into objects one by one if at all. Updates
that this check does not know are judged by their classes.

Clients check the limits before they send, Rebasers in any case.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, cast, overload

from pydantic import (
    ConfigDict,
    FailFast,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema, to_json

from rebaser_core import codecs
from rebaser_core.codecs import MAX_DEPTH
from rebaser_core.errors import MalformedMessage, many
from rebaser_core.ids import FuncId, ValueId, are_ulid_texts
from rebaser_core.versioning import JsonValue, WireData, WireModel

MAX_ARGUMENT: Final = 128
"""Maximum number of characters of an argument's name."""
MAX_NAME: Final = 512
"""Maximum number of characters of a value's or a function's name."""

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
"""Shape of inputs: argument name and length of its list, in order; None: the argument is one
value."""

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
    runtime: Literal["builtin", "python", "cel", "sql", "arrow", "pyspark"]
    code: Annotated[str, StringConstraints(max_length=65_536)] = ""
    """`builtin`: its name; `python`, `arrow`, `pyspark`: an entry point's name; `cel`: the source
    text; `sql`: one query, see `rebaser_server.compute.tables`."""


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
    """Set the content of a source value."""

    KIND: ClassVar = "setValue"
    value_id: ValueId
    value: JsonValue


class SetInputs(_Tagged):
    """Replace the inputs of a dependent value."""

    KIND: ClassVar = "setInputs"
    value_id: ValueId
    inputs: Inputs


class RemoveValue(_Tagged):
    """Remove a value; those that took it as an input lose that input."""

    KIND: ClassVar = "removeValue"
    value_id: ValueId


class SetComputed(_Tagged):
    """Result of a dependent values update: a value, or the reason for none. Not for clients."""

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
        PydanticCustomError, ValidationError: it is no update.
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
"""List that is read up to the first mistake: a batch may have a million updates."""


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Maximum sizes in a batch."""

    name_depth: int
    inputs: int
    value_bytes: int
    """Bytes of a value as JSON, if it is no number and no boolean."""


class LazyUpdates(Sequence[AnyUpdate], WireData, ABC):
    """Many updates, known to be valid, of which objects are made once one is asked for.

    The data must not change.
    """

    bounds: SizeBounds | None = None
    """Sizes that no update exceeds; None: each update has to be looked at."""

    @abstractmethod
    def to_wire(self) -> list[Any]: ...

    def split(self) -> tuple[Sequence[AnyUpdate], str | None]:
        """Return the parts that `UpdatesBatch` has in `updates` and in `table`."""
        return self, None

    @cached_property
    def objects(self) -> list[AnyUpdate]:
        """Return the updates as objects, which take many times the memory."""
        return list(map(read_update, self.to_wire()))

    @overload
    def __getitem__(self, index: int) -> AnyUpdate: ...
    @overload
    def __getitem__(self, index: slice) -> list[AnyUpdate]: ...
    def __getitem__(self, index: int | slice) -> AnyUpdate | list[AnyUpdate]:
        return self.objects[index]

    def __iter__(self) -> Iterator[AnyUpdate]:
        return iter(self.objects)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.objects == list(other)

    def __hash__(self) -> int:
        return len(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"


MANY: Final = 64
"""Number of updates from which a list is kept as plain data."""

_NO_INPUTS: Final = 0  # the number of the signature without arguments
_PUT_KEYS: Final = frozenset({"valueId", "name", "value", "funcId", "inputs"})
_SET_KEYS: Final = frozenset({"valueId", "value"})


@dataclass(frozen=True, slots=True)
class UpdateColumns:
    """Columns of puts and sets of values, in their order; and puts of functions."""

    ids: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    func_ids: list[str | None] = field(default_factory=list)
    """Function of each row; None: the row is a source, or a set."""
    signatures: list[int] = field(default_factory=list)
    """Index in `known_signatures` of the inputs of each row."""
    input_ids: list[str] = field(default_factory=list)
    """Every input, row after row, in the order of its arguments."""
    is_put: list[bool] = field(default_factory=list)
    """Whether the row defines its value, whole; else it sets what a source is."""
    funcs: list[PutFunc] = field(default_factory=list)
    known_signatures: dict[InputSignature, int] = field(default_factory=lambda: {(): _NO_INPUTS})
    """Signatures that occur, numbered in this order."""

    def add_put(self, body: dict[str, Any]) -> None:
        get = body.get
        self.ids.append(body["valueId"])
        self.names.append(get("name"))
        self.values.append(get("value"))
        self.func_ids.append(get("funcId"))
        inputs = get("inputs")
        self.signatures.append(self._signature(inputs) if inputs else _NO_INPUTS)
        self.is_put.append(True)

    def add_set(self, body: dict[str, Any]) -> None:
        self.ids.append(body["valueId"])
        self.names.append(None)
        self.values.append(body["value"])
        self.func_ids.append(None)
        self.signatures.append(_NO_INPUTS)
        self.is_put.append(False)

    @property
    def widths(self) -> list[int]:
        """Return the number of inputs that a row of each of `known_signatures` has."""
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
        """Return the updates, if this is a list of nothing but valid puts and sets.

        None only says that they have to be read one by one.
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
    """Whether the columns hold what the classes of updates would take.

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
    """Whether all are texts; raise `UnicodeEncodeError`, a `ValueError`, for a lone surrogate."""
    if not texts:
        return True
    if set(map(type, texts)) != {str}:
        return False
    lengths = set(map(len, texts))
    "".join(texts).encode()
    return min(lengths) > 0 and max(lengths) <= longest


def _read_list(data: Any, read_one_by_one: Callable[[Any], list[AnyUpdate]]) -> Sequence[AnyUpdate]:
    if isinstance(data, list):  # nearly always so, and a check of an abstract class takes longer
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
"""Updates of a batch: objects, or plain data if there are many puts and sets."""


_AtLeastOne = Annotated[int, Field(ge=1)]


def size_violation(size: int, at_most: int) -> str:
    """Return the error text for a batch of `size` bytes."""
    return f"a batch of {size} bytes; at most {at_most} are allowed"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a deployment; `REBASER_LIMITS__…` at the server, an argument at the client.

    Those without a setting are fixed: far above what people need, they bound what a mistake costs.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    batch_bytes: _AtLeastOne = 128 * 1024 * 1024
    """Bytes of one batch that is not inline, encoded. Reading it takes up to 40 times that."""
    value_bytes: _AtLeastOne = 8 * 1024 * 1024
    """Bytes of one value as JSON, sent or computed."""

    batch_updates: ClassVar[int] = 2_000_000
    inputs: ClassVar[int] = 100_000
    """Number of inputs of one value, all arguments together."""
    name_depth: ClassVar[int] = 32
    """Number of parts of a value's or function's name, between slashes."""
    change_sets: ClassVar[int] = 100_000
    """Number of change sets of a workspace, the closed ones included until they are deleted."""

    def violation(self, updates: Iterable[AnyUpdate], count: int) -> str | None:
        """Return what is too large about a batch of `count` updates; None if nothing is."""
        if count > self.batch_updates:
            return f"a batch of {many(count, 'update')}; at most {self.batch_updates} are allowed"
        if not isinstance(updates, list) and self._are_known_to_fit(updates):
            return None
        for index, update in enumerate(updates):
            if type(update) is SetValue and self._fits(update.value):
                continue  # nearly always so, and the other checks take longer
            name = getattr(update, "name", None)
            if (what := self.excess(name, update)) is not None:
                return f"update {index}, {name or getattr(update, 'value_id', '')!r:.80}: {what}"
        return None

    def _are_known_to_fit(self, updates: Iterable[AnyUpdate]) -> bool:
        """Whether all updates are known to fit without a look at each of them."""
        if isinstance(updates, PlainUpdates) and self._fit(updates.columns):
            return True
        return isinstance(updates, LazyUpdates) and self._cover(updates.bounds)

    def _fit(self, columns: UpdateColumns) -> bool:
        names = [name for name in columns.names if name is not None]
        names += [func.name for func in columns.funcs]
        deepest = max((name.count("/") for name in names), default=0)
        return (
            deepest < self.name_depth
            and max(columns.widths) <= self.inputs
            and all(map(self._fits, columns.values))
        )

    def _cover(self, bounds: SizeBounds | None) -> bool:
        return (
            bounds is not None
            and bounds.name_depth <= self.name_depth
            and bounds.inputs <= self.inputs
            and bounds.value_bytes <= self.value_bytes
        )

    def excess(self, name: str | None, definition: object) -> str | None:
        """Return what is too large about a definition; None if nothing is."""
        depth = 0 if name is None else name.count("/") + 1
        if depth > self.name_depth:
            return f"a name of {depth} parts; at most {self.name_depth} are allowed"
        inputs: Inputs = getattr(definition, "inputs", None) or {}
        count = sum(len(t) if isinstance(t, list) else 1 for t in inputs.values())
        if count > self.inputs:
            return f"{count} inputs; at most {self.inputs} are allowed"
        if not self._fits(getattr(definition, "value", None)):
            return f"a value of more than {self.value_bytes} bytes as JSON"
        return None

    def _fits(self, value: object) -> bool:
        if isinstance(value, str):
            # A character takes at most six bytes, as an escape: most texts need not be encoded.
            return 6 * len(value) < self.value_bytes or len(to_json(value)) <= self.value_bytes
        if isinstance(value, list | dict):
            return len(to_json(value)) <= self.value_bytes
        return True
