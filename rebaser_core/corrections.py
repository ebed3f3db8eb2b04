"""Corrections that are too many for a message: it has the first ones, an object has all."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from pydantic import ValidationError

from rebaser_core.messages import Blake3, Correction
from rebaser_core.versioning import MessageType, Versioned
from rebaser_core.wire_model import WireModel

MAX_INLINE_CORRECTIONS: Final = 100
"""Most corrections in a commit and in a reply."""

DETAIL_LENGTH: Final = 400
"""Most characters of a correction's detail."""

MORE: Final = "more"
"""Code of the last entry where corrections are left out: it stands for these."""

CUT: Final = "cut"
"""Code of the one entry of an answer that was too large for a message."""


class CorrectionsV1(Versioned):
    """All corrections of one request, whose id is its id."""

    VERSION: ClassVar = 1
    corrections: list[Correction]


Corrections: Final = MessageType("Corrections", current=CorrectionsV1)


class OmittedCorrections(WireModel):
    """What the detail of an entry with the code `MORE` says, as JSON."""

    counts: dict[str, int]
    """Of all corrections, by their codes."""
    object: Blake3
    """Where they are: an encoded `Corrections`, by its BLAKE3 in the bucket of batches."""


def abbreviate(corrections: Sequence[Correction], name: str) -> tuple[Correction, ...]:
    """The first corrections, and an entry for the others, which lie in the object `name`."""
    counts = dict(Counter(correction.code for correction in corrections))
    detail = OmittedCorrections(counts=counts, object=name).model_dump_json(by_alias=True)
    following = corrections[MAX_INLINE_CORRECTIONS].index
    return (
        *corrections[:MAX_INLINE_CORRECTIONS],
        Correction(index=following, code=MORE, detail=detail),
    )


def omitted(corrections: Sequence[Correction]) -> OmittedCorrections | None:
    """What the last entry says of those that are left out; None if all are there."""
    if not corrections or corrections[-1].code != MORE:
        return None
    try:
        return OmittedCorrections.model_validate_json(corrections[-1].detail)
    except ValidationError:
        return None


def total_count(corrections: Sequence[Correction]) -> int:
    """How many there are, those included that are left out."""
    more = omitted(corrections)
    return len(corrections) if more is None else sum(more.counts.values())


def truncate_detail(detail: str) -> str:
    """A detail that has names in it, no longer than it may be."""
    return detail if len(detail) <= DETAIL_LENGTH else detail[: DETAIL_LENGTH - 1] + "…"
