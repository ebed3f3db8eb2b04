"""Workspaces and change sets by name: records in a bucket, changed by compare-and-swap alone.

The first record of a workspace, head or branch has the id of its change set, so that a repeated
request is recognised. `WorkspaceCheck` knows whether a workspace and a change set belong together,
as far as the registry knows.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from rebaser_core.calls import ServiceRecord, ServiceRecordV1
from rebaser_core.codecs import JSON
from rebaser_core.commits import ForkPoint
from rebaser_core.errors import (
    AlreadyRegistered,
    MalformedMessage,
    MessageError,
    NoSuchChangeSet,
    NotInWorkspace,
    QuotaExceeded,
    many,
)
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    JetStreamError,
    KeyNotFound,
    KeyValue,
    StreamNotFound,
    WrongLastSequence,
)
from rebaser_core.jetstream.deadlines import Backoff, within
from rebaser_core.jetstream.key_value import KeyValueEntry
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecord,
    ChangeSetRecordV1,
    CommentRecord,
    CommentRecordV1,
    RecordName,
    WorkspaceRecord,
    WorkspaceRecordV1,
    now,
)
from rebaser_core.requests import RETRY_FOR, retry
from rebaser_core.streams import Streams
from rebaser_core.versioning import MessageType, Versioned, first_error

T = TypeVar("T", bound=Versioned)

_POLL_BACKOFF: Final = Backoff(0.02, 1.0)
"""Pauses between two reads of a record."""

_COUNTING: Final = timedelta(minutes=1)
"""Time after which a forgotten count is gone."""

_VISIBLE_AFTER: Final = 0.1
"""Seconds until a record is looked for again that the server says is there, and does not show."""


class Registry:
    """The records.

    Reads ask the stream's leader, unless `by_key`. Every call may be cancelled and repeated.
    """

    def __init__(
        self,
        streams: Streams,
        on_skipped: Callable[[str, MessageError], None] = lambda _, __: None,
        *,
        by_key: bool = False,
    ) -> None:
        """Open the registry. `on_skipped` gets the keys of records that lists leave out, and why.

        Lists leave out a record that this release cannot read, for example of a newer release.

        With `by_key`, records are asked for by subjects that have their keys, as a client that is
        bound to a workspace must. Any replica answers then.
        """
        self._streams = streams
        self._on_skipped = on_skipped
        self._name = streams.change_sets_bucket
        self._bucket = KeyValue(streams.js, self._name, direct=by_key)

    async def workspace(self, workspace_id: WorkspaceId) -> WorkspaceRecordV1:
        """The workspace. Raises `NoSuchChangeSet`: it was never created here."""
        return (await self._read(WorkspaceRecord, str(workspace_id)))[0]

    async def change_set(self, change_set: ChangeSet) -> ChangeSetRecordV1:
        """The change set.

        Raises:
            NoSuchChangeSet: it was never created here, or is deleted and gone. It may take requests
                all the same: enqueueing by ids needs no record.
        """
        return (await self._read(ChangeSetRecord, str(change_set)))[0]

    async def change_set_once(
        self, change_set: ChangeSet, until: Callable[[ChangeSetRecordV1], bool]
    ) -> ChangeSetRecordV1:
        """The change set, once `until` accepts its record, which follows the change set's log.

        A NATS that is started again does not end the wait.
        """
        read, pause = partial(self.change_set, change_set), self._streams.js.connection.sleep
        for delay in _POLL_BACKOFF:
            record = await retry(read, RETRY_FOR, pause)
            if until(record):
                return record
            await pause(delay)
        raise AssertionError("delays have no end")

    async def has_change_set(self, change_set: ChangeSet) -> bool:
        return await self._bucket.last(str(change_set)) is not None

    async def is_key(self, change_set: ChangeSet) -> bool:
        """Whether it is registered as the key of a service."""
        try:
            return (await self.change_set(change_set)).kind is ChangeSetKind.KEY
        except NoSuchChangeSet:
            return False

    async def has_workspace(self, workspace_id: WorkspaceId) -> bool:
        return await self._bucket.last(str(workspace_id)) is not None

    async def workspace_of(self, change_set_id: ChangeSetId) -> WorkspaceId | None:
        """The workspace in which a change set of that id is registered; None if it is in none."""
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
            AlreadyRegistered: the workspace has another record.
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
        return [record async for record in self._list(CommentRecord, f"{change_set}.*")]

    async def last_comment(self, change_set: ChangeSet) -> int:
        """A number that changes with each comment; 0 if there is none."""
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

    async def service(self, workspace_id: WorkspaceId) -> ServiceRecordV1:
        """The description of a service. Raises `NoSuchChangeSet`: no worker ever served it."""
        return (await self._read(ServiceRecord, _description(workspace_id)))[0]

    async def services(self) -> AsyncIterator[ServiceRecordV1]:
        async for record in self._list(ServiceRecord, "*.service.description"):
            yield record

    async def put_service(self, record: ServiceRecordV1) -> None:
        """Store the description of a service, unless there is one of a newer version."""
        key, payload = _description(record.workspace_id), ServiceRecord.encode(record, JSON)[1]
        while True:
            with suppress(WrongLastSequence):
                try:
                    there, revision = await self._read(ServiceRecord, key)
                except NoSuchChangeSet:
                    await self._bucket.create(key, payload)
                    return
                if there.version > record.version or there == record:
                    return
                await self._bucket.update(key, payload, revision)
                return

    async def check_quota(self, workspace_id: WorkspaceId, quota: int) -> None:
        """Raise `QuotaExceeded` if the workspace has `quota` change sets, closed ones included."""
        from rebaser_core.jetstream import ConsumerConfig  # slow to import

        config = ConsumerConfig(
            filter_subject=f"$KV.{self._name}.{workspace_id}.*",
            deliver_policy="last_per_subject",
            ack_policy="none",
            headers_only=True,
            inactive_threshold=_COUNTING,
            name=f"count-{RequestId()}",
        )
        stream = f"KV_{self._name}"
        info = await self._streams.js.create_consumer(stream, config)
        await self._streams.js.delete_consumer(stream, info.name)
        if info.num_pending >= quota:
            raise QuotaExceeded(f"workspace {workspace_id} has {many(quota, 'change set')} already")

    async def _create(self, kind: MessageType[T], key: str, record: T) -> None:
        while True:
            try:
                await self._bucket.create(key, kind.encode(record, JSON)[1])
            except WrongLastSequence:
                try:
                    there, _ = await self._read(kind, key)
                except NoSuchChangeSet:  # stored a moment ago, and not to be read yet; or deleted
                    await asyncio.sleep(_VISIBLE_AFTER)
                    continue
                if there.id != record.id:
                    raise AlreadyRegistered(f"{key} is there already") from None
            return

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


def _description(workspace_id: WorkspaceId) -> str:
    """Return the key of a service's description: no change set and no comment has such a one."""
    return f"{workspace_id}.service.description"


_NAME: Final = TypeAdapter(RecordName)


class Workspace(NamedTuple):
    """A workspace and its head, as they are registered."""

    record: WorkspaceRecordV1
    head: ChangeSetRecordV1


def validated_name(name: str) -> str:
    """Return the name if it is valid. Raises `MalformedMessage`: it is not."""
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        why = first_error(error).removeprefix("the body: ")
        raise MalformedMessage(f"name {name[:40]!r}: {why}") from error


def new_workspace(
    name: str, workspace_id: WorkspaceId, head: ChangeSetId, by: str | None
) -> Workspace:
    """Return the first records of a workspace and its head. Raises as `validated_name`."""
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
    """Return the first record of a branch. Raises as `validated_name`."""
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


_LOOKUP_TIMEOUT: Final = 2.0  # seconds
_RETRY_AFTER_FAILURE: Final = 60.0
"""Seconds without a lookup after a failed one: the client may lack the permission."""

_MAX_KNOWN: Final = 10_000
"""Number of pairs that are remembered."""


class WorkspaceCheck:
    """Looks a pair up once: one read if it is registered, two if it is not."""

    def __init__(self, registry: Registry | None) -> None:
        """Check pairs in `registry`, which is None if this client may not read it all."""
        self._registry = registry
        self._known: OrderedDict[ChangeSet, None] = OrderedDict()
        self._suspended_until = float("-inf")

    async def check(self, change_set: ChangeSet) -> None:
        """Raise if the pair is known not to belong together. May be cancelled and repeated.

        A pair that the registry does not know may be in use all the same. If the registry does not
        answer, or may not be asked, every pair passes.

        Raises:
            NotInWorkspace: the change set is another workspace's, or the id of a workspace.
        """
        if self._registry is None or change_set in self._known:
            return
        clock = asyncio.get_running_loop().time
        if clock() < self._suspended_until:
            return
        try:
            async with within(_LOOKUP_TIMEOUT):
                objection = await _mismatch(self._registry, change_set)
        except (JetStreamError, TimeoutError, ValueError):  # a key may be anything
            self._suspended_until = clock() + _RETRY_AFTER_FAILURE
            return
        if objection is not None:
            raise NotInWorkspace(objection)
        self._known[change_set] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


async def _mismatch(registry: Registry, change_set: ChangeSet) -> str | None:
    workspace_id, change_set_id = change_set
    home = await registry.workspace_of(change_set_id)
    if home == workspace_id:
        return None
    if home is not None:
        if await registry.has_change_set(change_set):
            return None
        return f"change set {change_set_id} belongs to workspace {home}, not {workspace_id}"
    workspace = WorkspaceId.from_bytes(change_set_id.bytes)
    if not await registry.has_workspace(workspace):
        return None
    swapped = ChangeSet(workspace, ChangeSetId.from_bytes(workspace_id.bytes))
    if await registry.has_change_set(swapped):
        return (
            f"these are swapped: {workspace} is the workspace, {swapped.change_set_id} the "
            "change set"
        )
    return f"{change_set_id} is a workspace, not a change set"
