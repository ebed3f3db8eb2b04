"""The streams of a deployment, and the JetStream that has them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rebaser_core.subjects import Subjects

if TYPE_CHECKING:
    from rebaser_core.jetstream import JetStream  # slow, and not needed for names


@dataclass(frozen=True, slots=True)
class Streams(Subjects):
    """The streams of one deployment: their names and subjects, and the JetStream that has them."""

    js: "JetStream" = field(kw_only=True)
