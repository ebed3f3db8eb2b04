"""What the observers of a run's log are given of each commit."""

from collections.abc import Callable
from typing import NamedTuple

from rebaser_core.commits import NO_REQUEST, CommitV1, SettledRequest


class CommittedEntry(NamedTuple):
    """A commit of this run, once the log holds it and the state includes it."""

    sequence: int
    entry: CommitV1
    action: str | None = None
    """The action on the change set as a whole that it carries out, if any."""

    @property
    def request(self) -> SettledRequest | None:
        """The request that it settles, if any."""
        handled = self.entry.handled
        return handled if handled is not None and handled.sequence != NO_REQUEST else None


CommitObserver = Callable[[CommittedEntry], None]
"""Called under the lock, so it notes what was committed, and acts on it later."""
