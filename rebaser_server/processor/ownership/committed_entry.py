"""What the observers of a run's log are given of each commit."""

from collections.abc import Callable
from typing import NamedTuple, Self

from rebaser_core.commits import NO_REQUEST, CommitV1, SettledRequest


class CommittedEntry(NamedTuple):
    """A commit of this run, once the log holds it and the state includes it."""

    sequence: int
    entry: CommitV1
    action: str | None
    """The action on the change set as a whole that it carries out, if any."""
    request: SettledRequest | None
    """The request that it settles, if any."""

    @classmethod
    def of(cls, entry: CommitV1, sequence: int, action: str | None) -> Self:
        """Return it of a commit that the log holds as `sequence`."""
        handled = entry.handled
        is_of_request = handled is not None and handled.sequence != NO_REQUEST
        return cls(sequence, entry, action, handled if is_of_request else None)


CommitObserver = Callable[[CommittedEntry], None]
"""Called under the lock, so it notes what was committed, and acts on it later."""
