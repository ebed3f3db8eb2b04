"""How many slots a workspace may have while others wait."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rebaser_core.ids import WorkspaceId


@dataclass(frozen=True, slots=True)
class Fairness:
    """How many slots a workspace may have, and for how long a change set, while others wait."""

    share: float = 4.0
    """Slots a workspace may have for each one that is free afterwards. A single busy workspace
    leaves 1 / (share + 1) of the slots free, k of them 1 / (k * share + 1), so a workspace with
    little work finds one: dynamic thresholds, after Choudhury and Hahne (1998)."""
    weights: Mapping[WorkspaceId, float] = field(default_factory=dict)
    """Factors of single workspaces' shares; 1 for the others."""
    max_hold: float = 30.0
    """Seconds of work after which a change set leaves its slot if another one needs it."""

    def admits(self, workspace: WorkspaceId, held: int, free: int) -> bool:
        """Whether a workspace with `held` slots may have one of `free` ones, if any is free.

        A workspace may always have its first slot.
        """
        share = self.share * self.weights.get(workspace, 1.0)
        return free > 0 and (held == 0 or held + 1 <= share * (free - 1))
