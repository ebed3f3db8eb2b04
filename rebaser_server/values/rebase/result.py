"""The result of applying a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rebaser_core.messages import Correction
from rebaser_core.updates import AnyUpdate


@dataclass(slots=True)
class RebaseResult:
    """A batch as performed, and the corrections that made it so."""

    updates: Sequence[AnyUpdate] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    dirty: bool = False
    """Whether it left roots, which a DVU has to recompute from."""
    failed: int = 0
    """How many of its results are failures."""
