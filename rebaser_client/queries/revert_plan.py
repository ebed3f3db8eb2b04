"""The batch that undoes a commit, as a plan: nothing is enqueued yet."""

from dataclasses import dataclass, field

from rebaser_core.updates import AnyUpdate


@dataclass(frozen=True, slots=True)
class RevertPlan:
    """A batch that reverts a commit, if it is applied to the state as of `now`."""

    commit: int
    now: int
    updates: list[AnyUpdate]
    """None if there is nothing to undo."""
    skipped: list[str] = field(default_factory=list)
    """Ids of values and functions that a later commit changed, and that stay as they are."""
