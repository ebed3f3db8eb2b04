"""What applying a branch would change in head, for people and programs that decide on it."""

from dataclasses import dataclass

from rebaser_client.display.html import html_table
from rebaser_core.errors import many
from rebaser_core.queries import ChangedDefinition, ComputedDifference, DifferenceReplyV2
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
    """The results that applying the branch now would change, as far as they are known; None if not
    requested. What head alone has changed is not among them."""
    behind: int | None
    """Batches of head that the branch has not followed yet; None: more than head's log holds."""
    uncomputed: int | None
    """Values that applying the branch reaches, and whose result is not known yet because the
    branch or head has it to compute. None: not requested, or an older Rebaser did not say."""

    @classmethod
    def of(cls, reply: DifferenceReplyV2) -> "BranchDifference":
        """What a reply says."""
        return cls(
            reply.commit,
            reply.digest,
            reply.updates,
            reply.changes,
            reply.computed,
            reply.behind,
            reply.uncomputed,
        )

    def unknown(self) -> str:
        """Say how much of the computed difference is not known yet, and why; "" if all is."""
        if not self.uncomputed:
            return ""
        count = many(self.uncomputed, "computed value")
        verb = "is" if self.uncomputed == 1 else "are"
        if self.behind == 0:
            return f"{count} {verb} not known yet: an update of the branch or of head is due"
        batches = "batches" if self.behind is None else many(self.behind, "batch", "batches")
        return (
            f"{count} {verb} not known yet: head has {batches} that the branch has not followed; "
            "it does at its next request, or at a refresh"
        )

    def _repr_html_(self) -> str:
        edits = [(each.name or each.id, each.what, each.head, each.branch) for each in self.changes]
        results = [
            (
                each.name or each.id,
                "computed",
                _result(each.head, each.head_status),
                _result(each.branch, each.branch_status),
            )
            for each in self.computed or ()
        ]
        headings = "value or function", "what", "head", "branch"
        return html_table(headings, edits + results, self.unknown())


def _result(value: object, status: str | None) -> object:
    """Return a side of a computed difference for people: its status where it has no value."""
    return status if status in ("failed", "blocked") else value
