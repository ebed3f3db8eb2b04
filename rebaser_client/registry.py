"""Workspaces and change sets by name: records in a bucket, changed by compare-and-swap alone."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

from rebaser_client.errors import AlreadyRegistered, NoSuchChangeSet, QuotaExceeded
from rebaser_core.codecs import JSON
from rebaser_core.errors import MessageError, many
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    JetStream,
    KeyNotFound,
    KeyValue,
    StreamNotFound,
    WrongLastSequence,
)
from rebaser_core.jetstream.key_value import KeyValueEntry
from rebaser_core.records import (
    ChangeSetRecord,
    ChangeSetRecordV1,
    CommentRecord,
    CommentRecordV1,
    WorkspaceRecord,
    WorkspaceRecordV1,
)
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MessageType, Versioned

T = TypeVar("T", bound=Versioned)

_COUNTING: Final = timedelta(minutes=1)
"""After which a forgotten count is gone."""


class Registry:
    """Reads ask the stream's leader, unless `by_key`; all may be cancelled and repeated."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        on_skipped: Callable[[str, MessageError], None] = lambda _, __: None,
        *,
        by_key: bool = False,
    ) -> None:
        """`on_skipped` is called with the key of each record that lists leave out, and why.

        This release cannot read such a record, which may be of a newer release.

        `by_key`: records are asked for by subjects that have their keys, as a client must that is
        bound to a workspace. Any replica answers then.
        """
        self._js = js
        self._on_skipped = on_skipped
        self._name = subjects.change_sets_bucket
        self._bucket = KeyValue(js, self._name, direct=by_key)

    async def workspace(self, workspace_id: WorkspaceId) -> WorkspaceRecordV1:
        """The workspace.

        Raises:
            NoSuchChangeSet: it was never created here.
        """
        return (await self._read(WorkspaceRecord, str(workspace_id)))[0]

    async def change_set(self, change_set: ChangeSet) -> ChangeSetRecordV1:
        """The change set.

        Raises:
            NoSuchChangeSet: it was never created here, or is deleted and gone. It may take
                requests all the same: what is enqueued to directly needs no record.
        """
        return (await self._read(ChangeSetRecord, str(change_set)))[0]

    async def has_change_set(self, change_set: ChangeSet) -> bool:
        """Whether it is registered."""
        return await self._bucket.last(str(change_set)) is not None

    async def has_workspace(self, workspace_id: WorkspaceId) -> bool:
        """Whether it is registered."""
        return await self._bucket.last(str(workspace_id)) is not None

    async def workspace_of(self, change_set_id: ChangeSetId) -> WorkspaceId | None:
        """The workspace that a change set of that id is registered in; None if in none."""
        entry = await self._bucket.last(f"*.{change_set_id}")
        return None if entry is None else WorkspaceId.from_str(entry.key.partition(".")[0])

    async def workspaces(self) -> AsyncIterator[WorkspaceRecordV1]:
        """All workspaces, oldest first."""
        async for record in self._list(WorkspaceRecord, "*"):
            yield record

    async def change_sets(
        self, workspace_id: WorkspaceId | None
    ) -> AsyncIterator[ChangeSetRecordV1]:
        """All change sets of the workspace, or of all, in the order of their last change."""
        async for record in self._list(ChangeSetRecord, f"{workspace_id or '*'}.*"):
            yield record

    async def create_workspace(self, record: WorkspaceRecordV1) -> None:
        """Store the record of a new workspace; idempotent per id.

        Raises:
            AlreadyRegistered: there is another one of that workspace.
        """
        await self._create(WorkspaceRecord, str(record.workspace_id), record)

    async def create_change_set(self, record: ChangeSetRecordV1) -> None:
        """Store the record of a new change set; idempotent per id.

        Raises:
            AlreadyRegistered: the registry has another change set of that id.
        """
        key = f"{record.workspace_id}.{record.change_set_id}"
        await self._create(ChangeSetRecord, key, record)

    async def update(
        self, change_set: ChangeSet, edit: Callable[[ChangeSetRecordV1], ChangeSetRecordV1]
    ) -> ChangeSetRecordV1:
        """Apply `edit` to the current record, store the result if it differs, and return it.

        Raises:
            NoSuchChangeSet: there is none.
        """
        while True:
            record, revision = await self._read(ChangeSetRecord, str(change_set))
            changed = edit(record)
            if changed == record:
                return record
            changed = changed.model_copy(update={"id": RequestId()})
            payload = ChangeSetRecord.encode(changed, JSON)[1]
            with suppress(WrongLastSequence):
                await self._bucket.update(str(change_set), payload, revision)
                return changed

    async def create_comment(self, record: CommentRecordV1) -> None:
        """Store a comment; idempotent per id."""
        await self._create(CommentRecord, record.key, record)

    async def comments(self, change_set: ChangeSet) -> list[CommentRecordV1]:
        """All comments on the change set, oldest first."""
        return [record async for record in self._list(CommentRecord, f"{change_set}.*")]

    async def last_comment(self, change_set: ChangeSet) -> int:
        """A number that is another after each comment; 0 if there is none."""
        entry = await self._bucket.last(f"{change_set}.*")
        return 0 if entry is None else entry.revision

    async def delete(self, change_set: ChangeSet) -> None:
        """Delete the record of a change set and its comments; no error if there are none."""
        for key in await self._bucket.keys(f"{change_set}.*"):
            await self._bucket.purge(key)
        await self._bucket.purge(str(change_set))

    async def delete_workspace(self, workspace_id: WorkspaceId) -> None:
        """Delete the record of a workspace; no error if there is none."""
        await self._bucket.purge(str(workspace_id))

    async def check_quota(self, workspace_id: WorkspaceId, quota: int) -> None:
        """Raise `QuotaExceeded` if the workspace has `quota` change sets, closed ones included."""
        from rebaser_core.jetstream import ConsumerConfig  # the same

        config = ConsumerConfig(
            filter_subject=f"$KV.{self._name}.{workspace_id}.*",
            deliver_policy="last_per_subject",
            ack_policy="none",
            headers_only=True,
            inactive_threshold=_COUNTING,
            name=f"count-{RequestId()}",
        )
        stream = f"KV_{self._name}"
        info = await self._js.create_consumer(stream, config)
        await self._js.delete_consumer(stream, info.name)
        if info.num_pending >= quota:
            raise QuotaExceeded(f"workspace {workspace_id} has {many(quota, 'change set')} already")

    async def _create(self, kind: MessageType[T], key: str, record: T) -> None:
        try:
            await self._bucket.create(key, kind.encode(record, JSON)[1])
        except WrongLastSequence:
            there, _ = await self._read(kind, key)
            if there.id != record.id:
                raise AlreadyRegistered(f"{key} is there already") from None

    async def _read(self, kind: MessageType[T], key: str) -> tuple[T, int]:
        try:
            entry = await self._bucket.get(key)
        except (KeyNotFound, StreamNotFound):
            raise NoSuchChangeSet(f"{key} is not registered") from None
        return kind.decode_stored(entry.value), entry.revision

    async def _list(self, kind: MessageType[T], pattern: str) -> AsyncIterator[T]:
        try:
            async with self._bucket.watch(pattern) as watch:
                while (entry := await watch.next()) is not None:
                    record = None if entry.is_deleted else self._decode(kind, entry)
                    if record is not None:
                        yield record
        except StreamNotFound:
            return

    def _decode(self, kind: MessageType[T], entry: KeyValueEntry) -> T | None:
        try:
            return kind.decode_stored(entry.value)
        except MessageError as error:
            self._on_skipped(entry.key, error)
            return None
