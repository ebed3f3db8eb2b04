"""How large what is sent may be: checked by clients before they send, by Rebasers in any case."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from pydantic_core import to_json

from rebaser_core.counts import many
from rebaser_core.lazy_updates import LazyUpdates, SizeBounds
from rebaser_core.plain_updates import PlainUpdates, UpdateColumns
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, SetInputs, SetValue

_AtLeastOne = Annotated[int, Field(ge=1)]


def size_violation(size: int, at_most: int) -> str:
    """What is said of a batch of so many bytes."""
    return f"a batch of {size} bytes; at most {at_most} are allowed"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The deployment's; `REBASER_LIMITS__…` at the server, an argument at the client."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    batch_updates: _AtLeastOne = 2_000_000
    """Updates of one batch."""
    batch_bytes: _AtLeastOne = 128 * 1024 * 1024
    """Bytes of one batch that is not inline, encoded. Reading it takes up to 40 times as much."""
    value_bytes: _AtLeastOne = 8 * 1024 * 1024
    """Bytes of one value as JSON, sent or computed."""
    inputs: _AtLeastOne = 100_000
    """Inputs of one value, all arguments together."""
    name_depth: _AtLeastOne = 32
    """Parts of a value's or function's name, between slashes."""
    change_sets: _AtLeastOne = 100_000
    """Change sets of a workspace, the closed ones included until they are deleted."""

    def violation(self, updates: Iterable[AnyUpdate], count: int) -> str | None:
        """What is too large about a batch of `count` updates; None if nothing is."""
        if count > self.batch_updates:
            return f"a batch of {many(count, 'update')}; at most {self.batch_updates} are allowed"
        if not isinstance(updates, list) and self._are_known_to_fit(updates):
            return None
        for index, update in enumerate(updates):
            what = self._violation(update)
            if what is not None:
                return f"update {index}: {what}"
        return None

    def _are_known_to_fit(self, updates: Iterable[AnyUpdate]) -> bool:
        """Whether that is to be seen without a look at each of them."""
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

    def _violation(self, update: AnyUpdate) -> str | None:
        if type(update) is SetValue and self._fits(update.value):
            return None  # as nearly always: to ask for one class after the other takes longer
        if isinstance(update, PutValue | PutFunc) and update.name is not None:
            depth = update.name.count("/") + 1
            if depth > self.name_depth:
                return f"a name of {depth} parts; at most {self.name_depth} are allowed"
        if isinstance(update, PutValue | SetInputs) and update.inputs:
            count = sum(len(t) if isinstance(t, list) else 1 for t in update.inputs.values())
            if count > self.inputs:
                return f"{count} inputs; at most {self.inputs} are allowed"
        if isinstance(update, PutValue | SetValue) and not self._fits(update.value):
            return f"a value of more than {self.value_bytes} bytes as JSON"
        return None

    def _fits(self, value: object) -> bool:
        if isinstance(value, str):
            # A character takes at most six bytes, as an escape: most texts need not be encoded.
            return 6 * len(value) < self.value_bytes or len(to_json(value)) <= self.value_bytes
        if isinstance(value, list | dict):
            return len(to_json(value)) <= self.value_bytes
        return True
