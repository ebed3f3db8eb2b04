"""Many updates of which objects are made one by one, if at all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from rebaser_core.updates import AnyUpdate, read_update
from rebaser_core.wire_model import WireData


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """What nothing in a batch exceeds."""

    name_depth: int
    """Parts of a name."""
    inputs: int
    """Inputs of one value."""
    value_bytes: int
    """Bytes of a value as JSON, if it is no number and no boolean."""


class LazyUpdates(Sequence[AnyUpdate], WireData, ABC):
    """Many updates, known to be valid, of which objects are made once one is asked for.

    The data must not change.
    """

    bounds: SizeBounds | None = None
    """None: each update has to be looked at."""

    @abstractmethod
    def to_wire(self) -> list[Any]: ...

    def split(self) -> tuple[Sequence[AnyUpdate], str | None]:
        """What `UpdatesBatch` has of them in `updates`, and in `table`."""
        return self, None

    @cached_property
    def objects(self) -> list[AnyUpdate]:
        """The updates as objects; they take many times as much memory."""
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
