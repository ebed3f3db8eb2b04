"""Identifiers: ULIDs, one type for each thing they name."""

from typing import Annotated, NamedTuple

from pydantic import StringConstraints
from ulid import ULID


class WorkspaceId(ULID):
    """Names a workspace."""


class ChangeSetId(ULID):
    """Names a change set; unique beyond its workspace."""


class RequestId(ULID):
    """Names a request for good: every retry carries it again."""


class ChangeSet(NamedTuple):
    """The unit of exclusive work: a change set and the workspace that it is in."""

    workspace_id: WorkspaceId
    change_set_id: ChangeSetId

    def __str__(self) -> str:
        return f"{self.workspace_id}.{self.change_set_id}"


UlidText = Annotated[str, StringConstraints(pattern=r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]
"""A ULID in its canonical text. Values and functions are named so: there may be many."""

ValueId = UlidText
FuncId = UlidText
