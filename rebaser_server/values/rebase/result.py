"""What a batch comes to when it is applied."""

from dataclasses import dataclass, field

from rebaser_core.messages import Correction
from rebaser_core.updates import AnyUpdate


@dataclass(slots=True)
class Rebased:
    """A batch as performed, and how it differs from the batch as sent."""

    updates: list[AnyUpdate] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    dirty: bool = False
    """Whether it left roots."""
    failed: int = 0
    """Results among it that are failures."""
