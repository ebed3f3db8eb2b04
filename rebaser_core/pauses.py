"""What is paused: records in the bucket `REBASER_PAUSES`, each of a change set, a workspace or all.

A record's key says what it is of: `<workspace>.<change set>`, `<workspace>` or `all`.
"""

from typing import ClassVar, Final, NamedTuple

from rebaser_core.change_sets import Moment
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.versioned import MessageType, Versioned

ALL: Final = "all"


class Scope(NamedTuple):
    """What a pause is of: a change set, with None for it a workspace, with None for both all."""

    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None

    @property
    def key(self) -> str:
        return ".".join(str(each) for each in self if each is not None) or ALL


def scopes_of(change_set: ChangeSet) -> tuple[Scope, ...]:
    """Each of them is enough to pause the change set; the narrowest first."""
    return Scope(*change_set), Scope(change_set.workspace_id), Scope()


class PauseRecordV1(Versioned):
    """A pause, for as long as it lies there. `id` is that of the write."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None
    since: Moment
    by: str | None = None
    reason: str | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.workspace_id, self.change_set_id)


PauseRecord: Final = MessageType("PauseRecord", current=PauseRecordV1)
