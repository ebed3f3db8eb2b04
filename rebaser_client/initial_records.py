"""The records that a workspace, its head and a branch begin with.

The id of a record is derived from what it names, so that a repeated request is recognised.
"""

from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from rebaser_core.commits import ForkPoint
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    RecordName,
    WorkspaceRecordV1,
    now,
)
from rebaser_core.versioning import first_error

_NAME: Final = TypeAdapter(RecordName)


class Workspace(NamedTuple):
    """A workspace and its head, as they are registered."""

    record: WorkspaceRecordV1
    head: ChangeSetRecordV1


def validated_name(name: str) -> str:
    """Return the name if it is valid.

    Raises:
        MalformedMessage: it is not.
    """
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        why = first_error(error).removeprefix("the body: ")
        raise MalformedMessage(f"name {name[:40]!r}: {why}") from error


def new_workspace(
    name: str, workspace_id: WorkspaceId, head: ChangeSetId, by: str | None
) -> Workspace:
    """Raises as `named`."""
    record = WorkspaceRecordV1(
        id=RequestId.from_bytes(head.bytes),
        workspace_id=workspace_id,
        name=validated_name(name),
        head=head,
        created_at=now(),
        by=by,
    )
    its_head = ChangeSetRecordV1(
        id=record.id,
        workspace_id=workspace_id,
        change_set_id=head,
        name="head",
        kind=ChangeSetKind.HEAD,
        head=head,
        created_at=record.created_at,
        by=by,
    )
    return Workspace(record, its_head)


def new_branch(
    name: str, workspace: WorkspaceRecordV1, branch: ChangeSetId, base: ForkPoint, by: str | None
) -> ChangeSetRecordV1:
    """Raises as `named`."""
    return ChangeSetRecordV1(
        id=RequestId.from_bytes(branch.bytes),
        workspace_id=workspace.workspace_id,
        change_set_id=branch,
        name=validated_name(name),
        kind=ChangeSetKind.BRANCH,
        head=workspace.head,
        base=base,
        created_at=now(),
        by=by,
    )
