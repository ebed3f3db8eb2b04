"""Enqueue batches: until they are stored, committed, or their dependent values computed."""

from typing import TYPE_CHECKING, Literal

from rebaser_client.batches import Updates, encode_request
from rebaser_client.outcomes.batch_outcome import BatchOutcome, committed
from rebaser_client.request_sender import Reply, RequestOptions, RequestSender
from rebaser_client.workspace_check import WorkspaceCheck
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.subjects import Subjects
from rebaser_core.updates import BatchLimits
from rebaser_core.versioning import AUTHOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rebaser_client.outcomes.settlement import Progress, Settlement, SettlementWatch
    from rebaser_client.value_reader import ChangeSetReader

Wait = Literal["stored", "committed", "computed"]
"""Until when `enqueue` waits; each includes the one before it."""


class BatchEnqueuer:
    """Enqueues batches, and waits for what becomes of them."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        sender: RequestSender,
        options: RequestOptions,
        limits: BatchLimits,
        workspace_check: WorkspaceCheck,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._batches = ObjectStore(js, subjects.batches_bucket)
        self._sender = sender
        self._options = options
        self._limits = limits
        self.workspace_check = workspace_check
        """Which workspaces and change sets belong together."""

    async def enqueue(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        wait: Wait = "committed",
        request_id: RequestId | str | None = None,
    ) -> BatchOutcome:
        """Enqueue a batch, wait, and return its outcome. A cancellation does not take it back.

        With `wait="computed"` the outcome has the values that failed: a failure of a value is
        no error of the batch.

        Raises:
            NotInWorkspace, MalformedMessage, TooLarge, NotConfirmed, QueueFull: as
                `enqueue_updates`.
            RequestIdUsed: another batch was sent under the id before; nothing of this one was done.
            RequestRefused, RequestDead: final; nothing was done.
            OutcomeUnknown: the request was handled so long ago that no Rebaser remembers it.
            Unreachable, ReadRefused: committed and computed, but no Rebaser said what failed.
        """
        if wait == "stored":
            sent = await self.enqueue_updates(
                workspace_id, change_set_id, updates, request_id=request_id
            )
            return BatchOutcome(sent)
        _, reply = await self.enqueue_updates_with_reply(
            workspace_id, change_set_id, updates, request_id=request_id
        )
        outcome = committed(await reply)
        if wait == "committed":
            return outcome
        reader = self.reader(workspace_id, change_set_id)
        watch = self._watch(workspace_id, change_set_id)
        settlement = await watch.settlement(reader, outcome.commit, updates)
        return BatchOutcome(outcome.request_id, outcome.commit, outcome.corrections, settlement)

    async def settled(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        commit: int | None = None,
    ) -> "Settlement":
        """Wait until all that `commit` left to be computed is; return what has no result.

        Without a commit, the last one counts. Changes nothing, and may be cancelled and repeated.
        Bound the wait with `asyncio.timeout`: while a change set is paused, it has no end.

        Raises:
            Unreachable: no Rebaser answered which values failed.
            ReadRefused: the change set has too many values for one answer.
        """
        reader = self.reader(workspace_id, change_set_id)
        return await self._watch(workspace_id, change_set_id).settlement(reader, commit)

    def progress(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        commit: int | None = None,
    ) -> "AsyncIterator[Progress]":
        """How far the work on `commit` is, as it changes; ends when `settled` would return.

        The first item comes at once; between two there are at most a few seconds.
        """
        return self._watch(workspace_id, change_set_id).progress(commit)

    def reader(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> "ChangeSetReader":
        """Return a reader of the change set's values and history; makes no request."""
        from rebaser_client.value_reader import ChangeSetReader  # slow, and not needed to send

        change_set = ChangeSet.of(workspace_id, change_set_id)
        return ChangeSetReader(self._js, self._subjects, change_set, self._options.content_type)

    async def enqueue_updates(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> RequestId:
        """Enqueue a batch; its request id, once it is stored and its task known to exist.

        Requests of a change set are applied in the order in which they were stored, each
        once, whole or not at all. To try again after an error pass the same `request_id`.
        A batch too large for a message is stored beside the stream first.

        Raises:
            NotInWorkspace: the registry knows the change set in another workspace; nothing was
                sent. Where it knows neither, a new change set begins with the request.
            MalformedMessage: `updates` are no updates; nothing was sent.
            TooLarge: they are beyond a limit; nothing was sent.
            NotConfirmed: not confirmed in time; it may be stored all the same.
            QueueFull: too much waits already; it is not stored. Ask again later.
        """
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue(change_set, None, updates, request_id)

    async def enqueue_updates_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """As `enqueue_updates`, with the response to await: it comes once and is final.

        Bound the wait with `asyncio.timeout`; giving up does not take the request back.
        Awaiting raises `OutcomeUnknown` if the request was handled so long ago that no Rebaser
        remembers it.
        """
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, None, updates, request_id)

    async def enqueue_updates_from_change_set(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> RequestId:
        """As `enqueue_updates`, for a batch that was taken from another change set."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue(change_set, from_change_set_id, updates, request_id)

    async def enqueue_updates_from_change_set_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """As `enqueue_updates_from_change_set`, with the response to await."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, from_change_set_id, updates, request_id)

    def _watch(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> "SettlementWatch":
        from rebaser_client.outcomes.settlement import SettlementWatch  # the same

        return SettlementWatch(self._js, self._subjects, ChangeSet.of(workspace_id, change_set_id))

    async def _enqueue(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | str | None,
        updates: Updates,
        given: RequestId | str | None,
    ) -> RequestId:
        request_id = _request_id(given)
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        await self._sender.send(change_set, headers, payload)
        return request_id

    async def _enqueue_with_reply(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | str | None,
        updates: Updates,
        given: RequestId | str | None,
    ) -> tuple[RequestId, Reply]:
        request_id = _request_id(given)
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        reply = await self._sender.send_with_reply(change_set, request_id, headers, payload)
        return request_id, reply

    async def _encode(
        self,
        change_set: ChangeSet,
        given_origin: ChangeSetId | str | None,
        updates: Updates,
        request_id: RequestId,
    ) -> tuple[dict[str, str], bytes]:
        origin = None
        if given_origin is not None:
            origin = ChangeSetId.of(given_origin, "from_change_set_id")
        await self.workspace_check.check(change_set)
        content_type, limits = self._options.content_type, self._limits
        headers, payload = await encode_request(
            self._batches, request_id, change_set, origin, updates, content_type, limits
        )
        if self._options.author is not None:
            headers[AUTHOR] = self._options.author
        return headers, payload


def _request_id(given: RequestId | str | None) -> RequestId:
    return RequestId() if given is None else RequestId.of(given, "request_id")
