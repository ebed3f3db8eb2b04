"""A graph as a person writes it: sources, values and functions by their names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from rebaser_client.drafts.functions import Function, FunctionName, as_function
from rebaser_client.drafts.rows import Row, Table, name_in, rows_of
from rebaser_client.errors import InvalidDraft
from rebaser_client.plain_values import plain
from rebaser_core.codecs import json_equal
from rebaser_core.updates import Inputs, PutValue
from rebaser_core.versioning import first_error

_ANY_ID: Final = "0" * 26

AnyFunction: TypeAlias = Function | FunctionName | Callable[..., Any]
"""One of `builtin`, `cel` or `python`, a Python function, or one that the change set has."""


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value of a draft, as an input of others."""

    name: str


@dataclass(frozen=True, slots=True)
class Family:
    """Values with names of one pattern, one for each row of a table.

    An input of a single value takes all of them; one of another family the one of its row.
    """

    pattern: str
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[ValueRef]:
        return map(ValueRef, self.names)

    def __len__(self) -> int:
        return len(self.names)


Input: TypeAlias = ValueRef | Family | str | Sequence[ValueRef | Family | str]
"""Values by reference or by name; in a family's inputs names may have columns in braces."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a value shall be."""

    value: Any


@dataclass(frozen=True, slots=True)
class Computed:
    """What a value shall be computed by, and from which others."""

    function: Function
    inputs: Mapping[str, str | list[str]]
    """Argument → the name of a value, or of several."""

    def input_names(self) -> Iterator[str]:
        """The names of its inputs, as often as they occur."""
        for given in self.inputs.values():
            yield from _as_list(given)


@dataclass(frozen=True, slots=True)
class ComputedByName:
    """Definition of a computed value whose function is known by name alone."""

    function: FunctionName
    ordered: list[str | list[str]]
    named: Mapping[str, str | list[str]]

    def input_names(self) -> Iterator[str]:
        """The names of its inputs, as often as they occur."""
        for given in (*self.ordered, *self.named.values()):
            yield from _as_list(given)

    def computed(self, name: str, function: Function) -> Computed:
        """Definition of the value of that name with the function that was found."""
        return Computed(function, _bind(name, function, self.ordered, self.named))


Definition: TypeAlias = Source | Computed | ComputedByName


class Draft:
    """Values by name, each defined once. No method does I/O.

    Each method raises `InvalidDraft`, which says what to write instead.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}
        """In the order of their definitions."""
        self.removed: dict[str, None] = {}
        """Names of values that shall be gone."""

    def source(self, name: str, value: Any) -> ValueRef:
        """Define a value that is what it is set to: any JSON (see `plain_values`)."""
        return self._define(name, Source(plain(value)))

    def value(
        self, name: str, function: AnyFunction, /, *inputs: Input, **named: Input
    ) -> ValueRef:
        """Define a value that `function` computes from its inputs, given in order or by name."""
        ordered = [*map(_listed, inputs)]
        return self._define(name, _computed(name, function, ordered, _each(named, _listed)))

    def sources(self, pattern: str, table: Table, column: str | None = None) -> Family:
        """Define a source for each row: the cell in `column`, or the whole row as an object.

        `pattern` names them: in "net/{sku}" stands the cell in column "sku".
        """
        names = []
        for row in rows_of(table):
            name = name_in(pattern, row)
            if column is not None and column not in row:
                raise InvalidDraft(
                    f"{name!r}: there is no column {column!r}, only {', '.join(map(repr, row))}"
                )
            names.append(self.source(name, row if column is None else row[column]).name)
        return Family(pattern, tuple(dict.fromkeys(names)))

    def values(
        self, pattern: str, function: AnyFunction, table: Table, /, *inputs: Input, **named: Input
    ) -> Family:
        """Define a computed value for each row, whose inputs are those of the row."""
        known = function if isinstance(function, FunctionName) else as_function(function)
        names = []
        for row in rows_of(table):
            name = name_in(pattern, row)
            ordered = [_of_row(each, row) for each in inputs]
            by_name = {argument: _of_row(each, row) for argument, each in named.items()}
            names.append(self._define(name, _computed(name, known, ordered, by_name)).name)
        return Family(pattern, tuple(dict.fromkeys(names)))

    def remove(self, *names: str) -> None:
        """Let values be gone; those that take one as an input lose that input."""
        for name in names:
            if name in self.definitions:
                raise InvalidDraft(f"{name!r} is defined, and cannot be removed, too")
            self.removed[name] = None

    def _define(self, name: str, definition: Definition) -> ValueRef:
        if not name:
            raise InvalidDraft("a value's name is a text that is not empty")
        if name in self.removed:
            raise InvalidDraft(f"{name!r} is removed, and cannot be defined, too")
        _require_fits(name, definition)
        known = self.definitions.setdefault(name, definition)
        if not _same(known, definition):
            raise InvalidDraft(f"two values are called {name!r}; each name stands for one value")
        return ValueRef(name)


def _computed(
    name: str,
    function: AnyFunction,
    ordered: list[str | list[str]],
    named: Mapping[str, str | list[str]],
) -> Computed | ComputedByName:
    if isinstance(function, FunctionName):
        return ComputedByName(function, ordered, named)
    known = as_function(function)
    return Computed(known, _bind(name, known, ordered, named))


def _same(one: Definition, other: Definition) -> bool:
    if isinstance(one, Source) and isinstance(other, Source):
        return json_equal(one.value, other.value)
    return one == other


def _require_fits(name: str, definition: Definition) -> None:
    """Raise `InvalidDraft` for what no update says: a name too long, a value that is no JSON."""
    try:
        if isinstance(definition, Source):
            PutValue(value_id=_ANY_ID, name=name, value=definition.value)
        else:
            given = (
                definition.named if isinstance(definition, ComputedByName) else definition.inputs
            )
            inputs: Inputs = dict.fromkeys(given, _ANY_ID)
            PutValue(value_id=_ANY_ID, name=name, func_id=_ANY_ID, inputs=inputs)
    except ValidationError as error:
        kind = "source" if isinstance(definition, Source) else "value"
        remedy = "; give it plain JSON" if error.errors()[0]["loc"][0] == "value" else ""
        raise InvalidDraft(f"{kind} {name!r:.80}: {first_error(error)}{remedy}") from error


def _each(
    named: Mapping[str, Input], read: Callable[[Input], str | list[str]]
) -> dict[str, str | list[str]]:
    return {argument: read(each) for argument, each in named.items()}


def _listed(given: Input) -> str | list[str]:
    """The name or names that an input of a single value stands for."""
    if isinstance(given, Family):
        return list(given.names)
    if isinstance(given, ValueRef | str):
        return _name(given)
    return [name for each in _several(given) for name in _as_list(_listed(each))]


def _of_row(given: Input, row: Row) -> str | list[str]:
    """The name or names that an input stands for in a row."""
    if isinstance(given, Family):
        return name_in(given.pattern, row)
    if isinstance(given, str):
        return name_in(given, row)
    if isinstance(given, ValueRef):
        return given.name
    return [name for each in _several(given) for name in _as_list(_of_row(each, row))]


def _several(given: Any) -> Iterable[Any]:
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        return given
    raise InvalidDraft(
        f"{given!r:.60} is no input; an input is a value: define it with source('…', {given!r:.20})"
    )


def _name(given: ValueRef | str) -> str:
    return given.name if isinstance(given, ValueRef) else given


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _bind(
    name: str,
    function: Function,
    ordered: list[str | list[str]],
    named: Mapping[str, str | list[str]],
) -> dict[str, str | list[str]]:
    """Each input under the name of the argument that it is for."""
    parameters = function.parameters
    if parameters is None:
        if ordered:
            raise InvalidDraft(f"{name!r}: {function.name} takes its inputs by name: net=net")
        return dict(named)
    if parameters[:1] == ("values",) and ordered:
        ordered = [[each for given in ordered for each in _as_list(given)]]
    takes = f"{function.name} takes {', '.join(parameters) or 'no inputs'}"
    if len(ordered) > len(parameters):
        raise InvalidDraft(f"{name!r}: {len(ordered)} inputs, but {takes}")
    bound = dict(zip(parameters, ordered, strict=False))
    for argument, given in named.items():
        if argument not in parameters or argument in bound:
            twice = "twice" if argument in bound else "unknown"
            raise InvalidDraft(f"{name!r}: input {argument!r} is {twice}; {takes}")
        bound[argument] = given
    missing = [each for each in parameters if each in function.needed and each not in bound]
    if missing:
        raise InvalidDraft(f"{name!r}: input {missing[0]!r} is missing; {takes}")
    return bound
