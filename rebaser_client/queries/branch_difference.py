"""What applying a branch would change in head, for people and programs that decide on it."""

from dataclasses import dataclass

from rebaser_client.display.html import html_table
from rebaser_core.queries.difference_query import (
    ChangedDefinition,
    ComputedDifference,
    DifferenceReplyV1,
)
from rebaser_core.updates import AnyUpdate


@dataclass(frozen=True, slots=True)
class BranchDifference:
    """The difference of a branch to head, after a merge of all that head has changed."""

    commit: int
    """The branch's, as of which it is."""
    digest: str
    """With it, `workspaces.apply` applies this difference and no other."""
    updates: list[AnyUpdate]
    """The difference as a batch: applied to head, it makes head equal to the branch."""
    changes: list[ChangedDefinition]
    """What the branch edited, and what head has there."""
    computed: list[ComputedDifference] | None
    """The results that differ, as far as they are computed; None if not requested."""

    @classmethod
    def of(cls, reply: DifferenceReplyV1) -> "BranchDifference":
        """What a reply says."""
        return cls(reply.commit, reply.digest, reply.updates, reply.changes, reply.computed)

    def _repr_html_(self) -> str:
        edits = [(each.name or each.id, each.what, each.head, each.branch) for each in self.changes]
        results = [
            (each.name or each.id, "computed", each.head, each.branch)
            for each in self.computed or ()
        ]
        return html_table(("value or function", "what", "head", "branch"), edits + results, "")
