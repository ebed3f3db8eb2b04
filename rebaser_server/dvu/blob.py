"""The bytes between planner and evaluator: some values, and all that computing them needs."""

from dataclasses import dataclass, field, fields
from io import BytesIO
from typing import Any, Self

import cbor2

Shape = tuple[str, int | None]
"""An argument: its name, and how many cells are its list; None: it is one cell itself."""


@dataclass(slots=True)
class Blob:
    """Values in topological order, column by column, so that a million of them are read fast.

    What a function may be given lies in *cells*: cell *i* ≥ 0 is the blob's value *i*,
    cell -1 the last constant, -2 the last but one, as in one Python list of both.
    """

    functions: list[tuple[str | None, str]] = field(default_factory=list)
    """Runtime and code; without a runtime, the function does not exist and the code is its id."""
    signatures: list[tuple[int, list[Shape]]] = field(default_factory=list)
    """A function, and the arguments to call it with."""
    constants: list[tuple[str, bool, Any]] = field(default_factory=list)
    """Inputs from outside the blob: id, whether it has a value, the value."""
    ids: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """The signature of each value."""
    refs: list[int] = field(default_factory=list)
    """The cells that each value takes, argument after argument, value after value."""
    statuses: list[str] = field(default_factory=list)
    """What each value was before: a word of `graph.Status`."""
    before: list[Any] = field(default_factory=list)
    """Its value then, or the message of one that had none."""
    forced: list[bool] = field(default_factory=list)
    """Whether it is computed even if none of its inputs changes."""

    def encode(self) -> bytes:
        """A CBOR sequence (RFC 8742): the number of values, then the columns."""
        columns = [getattr(self, name) for name in _COLUMNS]
        return cbor2.dumps(len(self.ids)) + cbor2.dumps(columns)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        decoder = cbor2.CBORDecoder(BytesIO(data))
        decoder.decode()
        return cls(*decoder.decode())


def size(blob: bytes) -> int:
    """How many values an encoded blob holds, for the price of its first bytes."""
    count: int = cbor2.CBORDecoder(BytesIO(blob[:9])).decode()
    return count


_COLUMNS = [column.name for column in fields(Blob)]
