"""What is paused: records in the bucket `REBASER_PAUSES`, each of a change set, a workspace or all.

A record's key says what it is of: `<workspace>.<change set>`, `<workspace>` or `all`.
"""

from datetime import UTC, datetime
from typing import ClassVar, Final, NamedTuple, Self

from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.records.registry_records import Timestamp
from rebaser_core.versioning import MessageType, Versioned

ALL: Final = "all"


class PauseScope(NamedTuple):
    """What a pause is of: a change set, with None for it a workspace, with None for both all."""

    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None

    @property
    def key(self) -> str:
        return ".".join(str(each) for each in self if each is not None) or ALL

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Raises `ValueError` if the key is of nothing that can be paused."""
        if key == ALL:
            return cls()
        workspace, dot, change_set = key.partition(".")
        return cls(
            WorkspaceId.from_str(workspace), ChangeSetId.from_str(change_set) if dot else None
        )


def enclosing_scopes(change_set: ChangeSet) -> tuple[PauseScope, ...]:
    """Each of them is enough to pause the change set; the narrowest first."""
    return PauseScope(*change_set), PauseScope(change_set.workspace_id), PauseScope()


class PauseRecordV1(Versioned):
    """A pause, for as long as it lies there. `id` is that of the write."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId | None = None
    change_set_id: ChangeSetId | None = None
    since: Timestamp
    by: str | None = None
    reason: str | None = None

    @property
    def scope(self) -> PauseScope:
        return PauseScope(self.workspace_id, self.change_set_id)


PauseRecord: Final = MessageType("PauseRecord", current=PauseRecordV1)

_UNREADABLE: Final = "this release cannot read the record of the pause"


def decode_pause(key: str, payload: bytes, stored: datetime) -> PauseRecordV1:
    """The pause that lies under the key, which alone says what it is of.

    A record that cannot be read, one of a newer release for example, pauses as well: to
    work on what an operator may have paused is worse than to wait for `rebaser resume`.

    Raises:
        ValueError: the key is of nothing that can be paused.
    """
    scope = PauseScope.of_key(key)
    try:
        record = PauseRecord.decode_stored(payload)
        if record.scope == scope:
            return record
    except MessageError:
        pass
    return PauseRecordV1(
        id=RequestId.from_int(0),
        workspace_id=scope.workspace_id,
        change_set_id=scope.change_set_id,
        since=stored.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        reason=_UNREADABLE,
    )
