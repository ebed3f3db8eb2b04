"""Comments on change sets: records in the bucket `REBASER_CHANGE_SETS`.

Each lies under a key of its own, `<workspace>.<change set>.<id>`. It is created once, where there
is none, and never changed; it goes with the change set's record. Nothing follows from it.
"""

from typing import Annotated, ClassVar, Final

from pydantic import StringConstraints

from rebaser_core.ids import ChangeSetId, WorkspaceId
from rebaser_core.records.registry_records import Timestamp
from rebaser_core.versioning import MessageType, Versioned

CommentText = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)
]


class CommentRecordV1(Versioned):
    """A comment. `id` is part of its key."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    text: CommentText
    created_at: Timestamp
    by: str | None = None

    @property
    def key(self) -> str:
        return f"{self.workspace_id}.{self.change_set_id}.{self.id}"


CommentRecord: Final = MessageType("CommentRecord", current=CommentRecordV1)
