"""A change set's commit log: each line is one write of its head, under compare-and-swap.

Every line carries the whole head, so the last line *is* the head (protocol 4.1).
The state is what the lines' updates make, in order, from an empty change set or
from a checkpoint.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from rebaser_core.ids import ChangeSetId, RequestId
from rebaser_core.messages import Correction, UpdatesAddress
from rebaser_core.versioning import MessageType, Versioned
from rebaser_core.wire_model import ParseFromJson, WireModel

AUTHOR_LENGTH: Final = 200
"""Characters of an author that are kept."""

NO_REQUEST: Final = 0
"""The sequence in a line that settles no request but holds what an update computed (D4)."""


class RequestOutcome(StrEnum):
    """What became of a request."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"  # its id was handled under an earlier sequence
    STALE = "stale"  # a request that says that it is a DVU's result: none is (D5)
    DEAD = "dead"  # in the dead letters
    REFUSED = "refused"  # the change set takes no such request; nothing is wrong with it


class DvuClaim(WireModel):
    """The one dependent values update that may commit (D2)."""

    id: RequestId
    covers: int


class FailedAttempts(WireModel):
    """What went wrong so far at the request that is first in line (L1)."""

    sequence: int
    count: int = 0
    """Attempts that failed."""
    deaths: int = 0
    """Runs that ended without a word while it was first in line."""


class ForkPoint(WireModel):
    """What a change set was forked from."""

    change_set_id: ChangeSetId
    commit: int
    """Sequence of a line of its log; 0 for an empty change set."""


class BranchState(WireModel):
    """What makes a change set a branch: where it began, and how far head has reached it."""

    base: ForkPoint
    head: ChangeSetId
    cursor: int | None = None
    """Last line of head's log that is in here; None until the base was taken over."""


class ClosedState(WireModel):
    """Why a change set takes no more requests."""

    standing: str
    """As in the registry: applying, applied, abandoned or deleted."""
    request: RequestId
    """The request that closed it."""
    reason: str | None = None
    """Of a branch that lost its base."""
    author: str | None = None
    difference: UpdatesAddress | None = None
    """While it is being applied: what goes to head."""
    commit: int | None = None
    """Once it is applied: the line of head's log."""


class ControlState(WireModel):
    """The small record of a change set that decides who may do what."""

    epoch: int = 0
    """Grows by one each time a run takes the change set over (W2)."""
    owner: str = ""
    """Instance, start of its process, and run; empty once it was released."""
    last_sequence: int = 0
    """Stream sequence of the last request handled; never falls (I2)."""
    dirty_sequence: int = 0
    """Sequence of the last request applied that left roots."""
    clean_sequence: int = 0
    """Highest dirty sequence that a committed DVU covers."""
    claim: DvuClaim | None = None
    dvu_failures: int = 0
    """DVU runs in a row that came to nothing."""
    attempts: FailedAttempts | None = None
    branch: BranchState | None = None
    """Of a branch."""
    closing: ClosedState | None = None

    @property
    def dvu_due(self) -> bool:
        """D1."""
        return self.dirty_sequence > self.clean_sequence

    @property
    def deleted(self) -> bool:
        """Whether it is, so that its data may be gone."""
        return self.closing is not None and self.closing.standing == "deleted"

    @property
    def unfinished(self) -> bool:
        """Whether somebody has to go on, though no request may be in line to tell of it."""
        return self.dvu_due or (self.closing is not None and self.closing.standing == "applying")


class SettledRequest(WireModel):
    """The request that a commit settles, or the result of an update under its claim's id."""

    id: RequestId
    sequence: int
    """The request's in its stream; `NO_REQUEST` for an update's result."""
    outcome: Annotated[RequestOutcome, ParseFromJson]
    updates: UpdatesAddress | None = None
    """As performed, that is after corrections; None if nothing was."""
    corrections: Annotated[tuple[Correction, ...], ParseFromJson] = ()
    covers: int | None = None
    """Of an applied DVU result: the roots up to here that it settles (D5)."""
    message: str | None = None
    """Why it is dead or refused."""
    author: Annotated[str, StringConstraints(max_length=AUTHOR_LENGTH)] | None = None
    """Who asked, as the request says."""


class CommitV1(Versioned):
    """One line of the log. Its id is new for each line, so that an own one is recognised."""

    VERSION: ClassVar = 1
    previous: int
    """Sequence of the line before this one; 0 before the first. A reader finds a hole by it."""
    control: Annotated[ControlState, Field(alias="head")]
    handled: SettledRequest | None = None


Commit: Final = MessageType("Commit", current=CommitV1)
