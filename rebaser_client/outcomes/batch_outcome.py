"""A batch's outcome: its commit, its corrections, and the values that failed because of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rebaser_client.errors import RequestDead, RequestIdUsed, RequestRefused
from rebaser_core.ids import RequestId
from rebaser_core.messages import ID_USED, Correction, EnqueueUpdatesResponseV2, ErrorStatus

if TYPE_CHECKING:
    from rebaser_client.outcomes.failures import Values
    from rebaser_client.outcomes.settlement import Settlement

_REFUSED: Final = "refused: "
"""How the message of a reply begins that is no dead letter."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of a batch, as far as the caller waited."""

    request_id: RequestId
    commit: int | None = None
    """The commit that applied it; None if the caller waited until it was stored only."""
    corrections: Sequence[Correction] = ()
    """What Rebaser changed or left out, because it did not fit the change set."""
    settlement: "Settlement | None" = None
    """None unless the caller waited until dependent values were computed."""

    @property
    def failed(self) -> "Values":
        """Values that failed because of this batch; none unless the caller waited for them."""
        return () if self.settlement is None else self.settlement.failed

    @property
    def blocked(self) -> "Values":
        """Values that were not computed because an input of theirs failed."""
        return () if self.settlement is None else self.settlement.blocked


def committed(response: EnqueueUpdatesResponseV2) -> BatchOutcome:
    """The outcome that a reply shows.

    Raises:
        RequestIdUsed, RequestRefused, RequestDead: the reply is an error; nothing was done.
    """
    status = response.status
    if not isinstance(status, ErrorStatus):
        return BatchOutcome(response.id, status.success.commit or 0, status.success.corrections)
    message = status.error.message
    if message.startswith(ID_USED):
        raise RequestIdUsed(message.removeprefix(_REFUSED))
    if message.startswith(_REFUSED):
        raise RequestRefused(message.removeprefix(_REFUSED))
    raise RequestDead(f"request {response.id}: {message}")
