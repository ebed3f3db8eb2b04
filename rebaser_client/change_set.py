"""`ChangeSetHandle`: everything about one change set, by its address or its ids.

The calls are requests in the change set's own queue, queries to any Rebaser, and reads of the
log and the registry. A `WorkspaceHandle` is the handle of a workspace's head, from which branches
are forked.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from rebaser_client.display import Rows, package
from rebaser_client.errors import NoSuchValue, ReadRefused, RequestRefused
from rebaser_client.outcomes import (
    BatchOutcome,
    Progress,
    Settlement,
    SettlementWatch,
    Wait,
    committed,
)
from rebaser_client.reader import (
    BranchDifference,
    LogEntry,
    PastValue,
    Provenance,
    QuerySender,
    RevertPlan,
    ValueDifferences,
    ValueSet,
    follow_log,
    read_log,
)
from rebaser_client.requests import Reply, RequestSender, Updates
from rebaser_client.table_reads import TableValue, open_table
from rebaser_client.workspaces import CLOSED_STATUSES, AddressBook, Workspaces, delete
from rebaser_core.errors import (
    AlreadyRegistered,
    MalformedMessage,
    NoSuchChangeSet,
    QuotaExceeded,
    TooLarge,
    offer,
)
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.messages import OutcomeReplyV2
from rebaser_core.queries import (
    DIFFERENCES,
    PROVENANCE,
    REVERTS,
    TABLE_DIFFERENCES,
    TABLES,
    VALUES,
    FunctionSnapshot,
    QueryT,
    Question,
    ReplyT,
    ResultlessValues,
    ValueSnapshot,
)
from rebaser_core.records import (
    ChangeSetKind,
    ChangeSetRecordV1,
    ChangeSetStatus,
    CommentRecordV1,
    now,
)
from rebaser_core.registry import validated_name
from rebaser_core.table_values import upload_of
from rebaser_core.versioning import first_error

if TYPE_CHECKING:  # slow, and only for who writes values by name
    from rebaser_client.draft import Draft
    from rebaser_client.plan import EditedDraft, LoadPlan

MAX_COMMENTS: Final = 1_000
"""Maximum number of comments on a change set."""


class ChangeSetHandle:
    """One change set. Making a handle costs no request.

    An address is looked up once, at the first call that needs it, which then raises
    `NoSuchChangeSet` or `AmbiguousAddress`, if it names none or several. Each coroutine may be
    cancelled, which does not take back a request that was sent.

    Example:
        winter = client.change_set("shop/winter")
        values = await winter.values("net", "gross")
        print(values["gross"].value)
    """

    def __init__(
        self, sender: RequestSender, workspaces: Workspaces, where: ChangeSet | str
    ) -> None:
        self._sender = sender
        self._workspaces = workspaces
        self.address: Final = where if isinstance(where, str) else "/".join(map(str, where))
        """Address: "shop" for the head of a workspace, "shop/winter" for a branch; or two ids."""
        self._ids = None if isinstance(where, str) else where

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}>"

    async def ids(self) -> ChangeSet:
        """The ids of workspace and change set.

        Raises:
            NoSuchChangeSet: nothing has that address; the message offers similar names.
            AmbiguousAddress: there is more than one.
        """
        if self._ids is None:
            self._ids = (await AddressBook(self._workspaces).find(self.address)).change_set
        return self._ids

    async def enqueue(
        self,
        updates: Updates,
        *,
        wait: Wait = "committed",
        request_id: RequestId | str | None = None,
        from_change_set_id: ChangeSetId | str | None = None,
    ) -> BatchOutcome:
        """Enqueue a batch, wait, and return its outcome.

        A cancellation does not take the batch back. Requests of a change set are applied in the
        order in which they were stored, each once, whole or not at all. To try again after an error
        pass its `request_id`. A batch too large for a message is stored beside the stream first.
        With `wait="computed"` the outcome has the values that failed: a failure of a value is no
        error of the batch.

        Args:
            updates: as classes of `rebaser_core.updates`, or as the wire has them.
            wait: when to return: the request is `stored`, `committed`, or its dependent values
                `computed`.
            request_id: the id of a request that is sent again (default: a new one).
            from_change_set_id: the change set that the batch was taken from, for readers of
                requests.

        Raises:
            NotInWorkspace: the registry knows the change set in another workspace; nothing was
                sent. If it knows neither, a new change set begins with the request.
            MalformedMessage: `updates` are no updates; nothing was sent.
            TooLarge: they are beyond a limit; nothing was sent.
            NotConfirmed: not confirmed in time; it may be stored all the same.
            QueueFull: too much waits already; it is not stored. Ask again later.
            RequestIdUsed: another batch was sent under the id before; nothing of this one was done.
            RequestRefused, RequestDead: final; nothing was done.
            OutcomeUnknown: no Rebaser remembers the request, which was settled long ago.
            Unreachable, ReadRefused: committed and computed, but no Rebaser said what failed.
        """
        ids = await self.ids()
        if wait == "stored":
            sent = await self._sender.enqueue(ids, updates, request_id, from_change_set_id)
            return BatchOutcome(sent)
        _, reply = await self._sender.enqueue_with_reply(
            ids, updates, request_id, from_change_set_id
        )
        outcome = committed(await reply)
        if wait == "committed":
            return outcome
        watch = await self._watch()
        settlement = await watch.settlement(self, outcome.commit or None, of_commit=True)
        return BatchOutcome(outcome.request_id, outcome.commit, outcome.corrections, settlement)

    async def enqueue_with_reply(
        self,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
        from_change_set_id: ChangeSetId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """Enqueue, and return once it is stored; the response to await comes once, and is final.

        Bound the wait with `asyncio.timeout`; giving up does not take the request back. Awaiting
        raises `OutcomeUnknown` if no Rebaser remembers the request, which was settled long ago.
        """
        return await self._sender.enqueue_with_reply(
            await self.ids(), updates, request_id, from_change_set_id
        )

    async def enqueue_table(
        self,
        table: Any,
        *,
        functions: Updates = (),
        wait: Wait = "committed",
        request_id: RequestId | str | None = None,
    ) -> BatchOutcome:
        """Enqueue `functions` and, behind them, a put or a set for each row of a table.

        Args:
            table: of pyarrow, Polars, pandas or DuckDB, or the path or URI of a Parquet file, with
                the columns in docs/clients.md: `id` and any of `name`, `value` or `json`,
                `function`, `inputs` and `set`.
            functions: updates before those of the rows. If a table is sent in parts, send them with
                the first: all values of a function that is defined again are computed anew.
            wait: as `enqueue`.
            request_id: as `enqueue`.

        Raises:
            MissingPackage: a package of the extra `arrow` is not installed.
            MalformedMessage: the rows are no updates; the message names the column.
            OSError: the file cannot be read.
            ClientError: as `enqueue`.
        """
        request_id = None if request_id is None else RequestId.of(request_id, "request_id")
        tables = package("rebaser_client.tables", extra="arrow")
        updates = await asyncio.to_thread(tables.read_updates, table, functions)
        return await self.enqueue(updates, wait=wait, request_id=request_id)

    async def set_value(self, name: str, value: Any, *, wait: Wait = "committed") -> BatchOutcome:
        """Set what the source of this name or id is, and wait as `enqueue` does.

        A value that is computed by the time the request is applied stays so; then
        `BatchOutcome.corrections` has one.

        Raises:
            InvalidDraft: the value is computed; the message names its inputs. Nothing was sent.
            NoSuchValue: no value has that name; the message offers similar ones.
            ClientError: as `values` and `enqueue`.
        """
        from rebaser_client.plan import is_computed

        there = await self.values(name, inputs=1)
        found = there.get(name)
        if found is None:  # a `*` in the name fits others
            raise NoSuchValue(f"there is no value {name!r} in {self.address}")
        if found.func_id is not None:
            raise is_computed(name, (there[each].name or each for each in found.input_ids()))
        update = {"setValue": {"valueId": found.id, "value": value}}
        return await self.enqueue([update], wait=wait)

    async def outcome(self, request_id: RequestId | str) -> OutcomeReplyV2:
        """The outcome of a recent request, for a caller that missed the reply.

        Changes nothing and may be repeated at will.

        Raises:
            Unreachable: no Rebaser answered.
        """
        request_id = RequestId.of(request_id, "request_id")
        return await self._sender.outcome(await self.ids(), request_id)

    async def settled(self, commit: int | None = None) -> Settlement:
        """Wait until the values due after `commit` are computed; return those without a result.

        The default is the last commit. Changes nothing, and may be cancelled and repeated. Bound
        the wait with `asyncio.timeout`: while a change set is paused, it has no end.

        Raises:
            Unreachable, ReadRefused: no Rebaser said which values failed.
        """
        return await (await self._watch()).settlement(self, commit)

    async def progress(self, commit: int | None = None) -> AsyncIterator[Progress]:
        """Yield how far the work on `commit` is, as it changes; ends when `settled` would return.

        The first item comes at once, each further one within a few seconds.
        """
        async for step in (await self._watch()).progress(commit):
            yield step

    async def values(
        self,
        *names: str,
        inputs: int = 0,
        dependents: int = 0,
        at: int | None = None,
        missing_ok: bool = False,
    ) -> ValueSet:
        """Values of these names or ids, or all, and levels of their inputs and dependents.

        A `*` in a name stands for any text: "price/*/UK". All are as of one commit: `at`, or the
        last one when the query arrived, so that a client that has the reply to a request reads the
        request's effect. With `missing_ok`, unknown names are in `ValueSet.missing`.

        Raises:
            NoSuchValue: no value has one of the names; the message offers similar ones.
            Unreachable: no Rebaser answered in time, or all were too busy.
            TooLarge: the names do not fit into a query.
            ReadRefused: a Rebaser refused, and said why: the past is not kept so long.
        """
        if any("*" in name for name in names):
            whole = await self.values(at=at)
            fitting, missing = _fitting(whole, names)
            if missing and not missing_ok:
                raise NoSuchValue(f"there is no value {missing[0]!r} in {self.address}")
            if not (inputs or dependents):
                stale = whole.may_be_stale
                return ValueSet(whole.commit, fitting, missing, may_be_stale=stale)
            names, at = (*(value.id for value in fitting), *missing), whole.commit
        asked = {"which": [*names], "inputs": inputs, "dependents": dependents}
        replies = await self._ask(VALUES, **asked, at=at, after="")
        while (last := replies[-1]).next is not None:
            replies += await self._ask(VALUES, **asked, at=last.commit, after=last.next)
        if last.missing and not missing_ok:
            known = []
            with suppress(ReadRefused):  # too many for one answer: nothing is offered
                every = [each for reply in await self._ask(VALUES, at=at) for each in reply.values]
                known = [value.name for value in every if value.name is not None]
            name = last.missing[0]
            raise NoSuchValue(f"there is no value {name!r} in {self.address}{offer(name, known)}")
        values = [value for reply in replies for value in reply.values]
        return ValueSet(last.commit, values, last.missing, may_be_stale=bool(last.due))

    async def table(self, name: str, *, at: int | None = None) -> TableValue:
        """The value of this name or id as a table, as of `at` or the last commit, without its rows.

        Raises:
            NoSuchValue: there is no such value.
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: the value is no table, or has no result; its rows are not kept any more;
                the past is not kept so long.
        """
        return await open_table(
            partial(self._ask, TABLES), partial(self._ask, TABLE_DIFFERENCES), name, at
        )

    async def without_result(
        self, changed_by: int | None = None, changed: Iterable[str] = ()
    ) -> list[ResultlessValues]:
        """Failed and blocked values as of the last commit: how many, and the first thousand each.

        They are split by whether the commit `changed_by` affects them. `changed`: names and ids of
        further values and functions that it changed.

        Raises:
            Unreachable, TooLarge, ReadRefused: as `values`.
        """
        asked = {"without_result": True, "changed_by": changed_by}
        [reply] = await self._ask(VALUES, **asked, which=sorted(changed))
        return reply.without_result or []

    async def functions(self, *names: str) -> list[FunctionSnapshot]:
        """Existing functions of these names or ids, or all, as of the last commit.

        Several may have one name.

        Raises:
            Unreachable, TooLarge: as `values`.
            ReadRefused: the Rebaser is of an older release, or the answer is too large.
        """
        replies = await self._ask(VALUES, which=[*names], functions=True)
        return [function for reply in replies for function in reply.functions or ()]

    async def log(self, *, after: int = 0, last: int | None = None) -> Rows[LogEntry]:
        """Requests settled behind commit `after`, or the `last` ones of them, oldest first."""
        return await read_log(self._sender.streams, await self.ids(), after=after, limit=last)

    async def history(self, name: str, *, last: int = 20) -> Rows[PastValue]:
        """The past of the value of this name or id, oldest first: a row for each time it changed.

        The log's `last` requests are looked at, by a read each; results that are due are left out.

        Example:
            (await shop.history("gross")).to_pandas().plot(x="time", y="value")

        Raises:
            NoSuchValue: no value has the name as of any of them.
            Unreachable, TooLarge, ReadRefused: as `values`.
        """
        found = list[PastValue]()
        for entry in await self.log(last=last):
            read = await self.values(name, at=entry.commit, missing_ok=True)
            for value in filter(None, [read.get(name)]):  # a `*` in the name fits others, too
                state = value.value, value.status, value.message
                past = PastValue(entry.commit, entry.time, *state)
                if value.status != "pending" and not (found and found[-1].is_alike(past)):
                    found.append(past)
        if not found:
            raise NoSuchValue(f"as of none of the last {last} requests is there a value {name!r}")
        return Rows(found, asdict)

    async def changes(self, *, after: int = 0) -> AsyncIterator[LogEntry]:
        """Yield the requests settled behind commit `after`, oldest first, and then each new one.

        Ends by an error alone; it waits while NATS cannot be reached. A program that keeps the
        `commit` of the last entry that it has worked on, and passes it the next time, misses none.

        Raises:
            ReadRefused: not all of them are kept; the message says how to go on.
            ClientClosed: the client is closed.
        """
        async with aclosing(
            follow_log(self._sender.streams, await self.ids(), after=after)
        ) as entries:
            async for entry in entries:
                yield entry

    async def why(self, name: str, *, at: int | None = None) -> Provenance:
        """The edits that made the value of this name or id what it is, as of `at` or now.

        Edits before the commits that are kept are not known: see `Provenance.older`.

        Raises:
            NoSuchValue: no such value exists, or existed in the commits that are kept.
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: a Rebaser refused, and said why: the past is not kept so long.
        """
        [reply] = await self._ask(PROVENANCE, value=name, at=at)
        if reply.is_missing:
            raise NoSuchValue(reply.error or f"there is no value {name!r}")
        return Provenance.of(reply)

    async def difference(self, *, computed: bool = False) -> BranchDifference:
        """Return the changes of head that applying the branch would make, as of both last commits.

        `computed` adds the results that differ, as far as they are computed.

        Raises:
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: a Rebaser refused, and said why: the change set is no branch, no Rebaser
                has taken it up yet, or the difference is too large for an answer.
        """
        [reply] = await self._ask(DIFFERENCES, computed=computed)
        return BranchDifference.of(reply)

    async def differences(self) -> ValueDifferences:
        """The values, sources and computed ones, that differ from head's, as both are."""
        record = await self.describe()
        ids = ChangeSet(record.workspace_id, record.head)
        head = ChangeSetHandle(self._sender, self._workspaces, ids)
        return ValueDifferences(await head.values(), await self.values())

    async def plan_revert(self, commit: int, *, force: bool = False) -> RevertPlan:
        """The batch that undoes `commit`; enqueue its `updates` to undo it.

        Values and functions that a later commit changed again stay, as do functions of its values,
        and are in `skipped`; with `force` they are undone.

        Raises:
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: a Rebaser refused, and said why: there is no such commit, it changed no
                definition, or the past is not kept so long.
        """
        [reply] = await self._ask(REVERTS, commit=commit, force=force)
        return RevertPlan(commit, reply.now, reply.updates, [*map(str, reply.skipped)])

    async def plan(self, draft: "Draft", *, prune: bool = False) -> "LoadPlan":
        """Compare the draft with the change set as it is; change nothing.

        With `prune`, values that the draft does not name are removed; without it, only those in
        `draft.removed`.

        Raises:
            InvalidDraft: an input is neither in the draft nor in the change set; a function is in
                neither, or several have its name; a source has the name of a computed value; values
                would be computed from themselves; CEL text is wrong, where its engine is installed.
            TooLarge: a value, its name or its inputs are beyond a limit; a table is too large to be
                uploaded.
        """
        from rebaser_client.plan import compare

        limits = self._sender.options.limits
        for name, definition in draft.definitions.items():
            if (excess := limits.excess(name, definition)) is not None:
                raise TooLarge(f"{name!r:.80}: {excess}")
        plan = await compare(self, draft, prune=prune)
        at_most = limits.batch_bytes
        for digest, file in plan.uploads.items():
            if file.size > at_most:
                name = next(each.name for each in plan.changes if upload_of(each.after) == digest)
                raise TooLarge(
                    f"table {name!r} has {file.size:,} bytes as Parquet, and at most {at_most:,} "
                    "are allowed: load it as several tables, which a query unites by UNION ALL"
                )
        return plan

    async def upload(self, plan: "LoadPlan") -> None:
        """Store the files that the plan's updates refer to, as `load` does; may be repeated.

        Raises:
            NotConfirmed, QueueFull: a file is not stored, perhaps, or surely.
        """
        workspace = str((await self.ids()).workspace_id)
        for digest, file in plan.uploads.items():
            await self._sender.upload(workspace, digest, await asyncio.to_thread(file.read))

    async def load(
        self, draft: "Draft | LoadPlan", *, prune: bool = False, wait: Wait = "computed"
    ) -> BatchOutcome | None:
        """Make the change set as the draft says, by one batch; return None if it is so already.

        A plan is sent as it was made, without regard to what others changed since then.

        Raises:
            InvalidDraft: as `plan`.
            ClientError: as `enqueue`.
        """
        from rebaser_client.plan import LoadPlan

        plan = draft if isinstance(draft, LoadPlan) else await self.plan(draft, prune=prune)
        if not plan:
            return None
        await self.upload(plan)
        return await self.enqueue(plan.batch(), wait=wait)

    @asynccontextmanager
    async def edit(
        self,
        *,
        prune: bool = False,
        wait: Wait = "computed",
        confirm: "Callable[[LoadPlan], bool]" = lambda _: True,
    ) -> "AsyncIterator[EditedDraft]":
        """Yield a draft, which is loaded after the body if anything differs and `confirm` agrees.

        Nothing is sent if the body raises. Afterwards, read the draft's `plan` and `outcome`.
        """
        from rebaser_client.plan import EditedDraft

        edited = EditedDraft()
        yield edited
        plan = await self.plan(edited, prune=prune)
        agreed = bool(plan) and confirm(plan)
        edited.end(plan, await self.load(plan, wait=wait) if agreed else None)

    async def describe(self) -> ChangeSetRecordV1:
        """Return its record in the registry.

        Raises:
            NoSuchChangeSet: the change set is not registered.
        """
        return await self._workspaces.registry.change_set(await self.ids())

    async def rename(self, name: str) -> ChangeSetRecordV1:
        """Rename it; return its record. Several change sets may have one name."""
        return await self._workspaces.registry.update(
            await self.ids(),
            lambda record: record.model_copy(update={"name": validated_name(name)}),
        )

    async def comment(self, text: str) -> CommentRecordV1:
        """Add a comment, also to a closed change set; return its record. A comment never changes.

        Raises:
            NoSuchChangeSet: the change set is not registered.
            MalformedMessage: the text is empty, or longer than 2,000 characters.
            QuotaExceeded: the change set has `MAX_COMMENTS` comments already.
        """
        record = await self.describe()
        if len(await self.comments()) >= MAX_COMMENTS:
            raise QuotaExceeded(f"{record.name} has {MAX_COMMENTS:,} comments already")
        try:
            comment = CommentRecordV1(
                id=RequestId(),
                **(await self.ids())._asdict(),
                text=text,
                created_at=now(),
                by=self._sender.options.author,
            )
        except ValidationError as error:
            raise MalformedMessage(f"comment: {first_error(error)}") from None
        await self._workspaces.registry.create_comment(comment)
        return comment

    async def comments(self) -> list[CommentRecordV1]:
        """All comments, the oldest first."""
        return await self._workspaces.registry.comments(await self.ids())

    async def checkpoint(self) -> int:
        """Request a checkpoint; return the commit that it will include.

        The owner writes the checkpoint a moment later, beside the requests. It is written once the
        store has a checkpoint of that commit or a later one.

        Raises:
            RequestRefused: the change set is closed.
        """
        return (await self._sender.command(await self.ids(), "checkpoint"))[1]

    async def recompute(self, values: Sequence[str] | None = None) -> int:
        """Recompute the values of these names or ids, or all failed ones; return the commit.

        The update follows the commit at once, even if an earlier one failed or was cancelled.

        Raises:
            RequestRefused: one of them does not exist or has no function, or the change set is
                closed.
        """
        return (await self._sender.command(await self.ids(), "recompute", values=values))[1]

    async def refresh(self) -> None:
        """Materialise the branch and merge every change that head has by now.

        Raises:
            RequestRefused: the branch's base is not kept any more, or the branch is closed.
        """
        await self._sender.command(await self.ids(), "refresh")

    async def apply(self, *, reviewed: str | None = None) -> ChangeSetRecordV1:
        """Apply the branch's difference to head; return its record, once head has it.

        With `reviewed`, the digest of a difference, no other difference is applied. The branch
        takes no request from then on. Giving up waiting does not take the request back. Head's
        values may be computed later: see `settled` of head.

        Raises:
            RequestRefused: it is no branch, is closed, was changed since it was reviewed, or head
                refuses it. A branch that was open stays open.
        """
        ids = await self.ids()
        request, _ = await self._sender.command(ids, "apply", reviewed=reviewed)
        record = await self._workspaces.registry.change_set_once(
            ids,
            lambda r: (
                r.application is not None
                and r.application.request == request
                and r.status != ChangeSetStatus.APPLYING
            ),
        )
        if record.status == ChangeSetStatus.OPEN:
            raise RequestRefused(record.problem or "head would not have it")
        return record

    async def abandon(self) -> None:
        """Close the branch without effect on head. Its data stays; it can be forked.

        Raises:
            RequestRefused: it is no branch, or closed.
        """
        ids = await self.ids()
        await self._sender.command(ids, "abandon")
        await self._workspaces.registry.change_set_once(
            ids, lambda record: record.status in CLOSED_STATUSES
        )

    async def delete(self) -> None:
        """Close the branch for good, and drop its data after the retention time.

        A head is deleted with its whole workspace: see `Workspaces.delete_workspace`.

        Raises:
            NoSuchChangeSet: it is not registered.
            RequestRefused: it is a head, is being applied to head, or is deleted already.
        """
        if (await self.describe()).kind == ChangeSetKind.HEAD:
            raise RequestRefused("a head is deleted with its workspace only")
        await delete(self._sender, self._workspaces.registry, await self.ids())

    async def _watch(self) -> SettlementWatch:
        return SettlementWatch(self._sender.streams, await self.ids())

    async def _ask(self, question: Question[QueryT, ReplyT], **asked: Any) -> list[ReplyT]:
        ids, options = await self.ids(), self._sender.options
        asking = QuerySender(
            self._sender.streams.js,
            question.query,
            question.reply,
            options.content_type,
            _error_in,
            lambda reply: getattr(reply, "more", False),
        )
        try:
            message = question.query.current(id=RequestId(), **ids._asdict(), **asked)
        except ValidationError as error:
            raise MalformedMessage(first_error(error)) from None
        try:
            return await asking.ask(self._sender.streams.queries(ids, question.name), message)
        except ReadRefused as error:  # the Rebaser knows the ids alone
            raise ReadRefused(str(error).replace(str(ids), self.address)) from None


def _fitting(every: ValueSet, names: Sequence[str]) -> tuple[list[ValueSnapshot], list[str]]:
    """Return the values that the names, ids or patterns stand for, and those that none fits."""
    found, missing = dict[str, ValueSnapshot](), list[str]()
    for name in names:
        fits = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL).fullmatch
        fitting = {v.id: v for v in every.values() if v.id == name or fits(v.name or "")}
        found |= fitting
        missing += [] if fitting else [name]
    return [*found.values()], missing


def _error_in(reply: Any) -> str | None:
    """Reason for no answer; that there is no such value is an answer."""
    error: str | None = None if getattr(reply, "is_missing", False) else reply.error
    return error


class WorkspaceHandle(ChangeSetHandle):
    """The head of a workspace, and the way to its other change sets.

    Example:
        shop = await client.workspace("shop").create(exist_ok=True)
        winter = await shop.fork("winter", exist_ok=True)
    """

    async def create(self, *, exist_ok: bool = False) -> Self:
        """Register a workspace of that name, with an empty head; return this handle.

        Raises:
            AlreadyRegistered: a workspace of that name exists, unless `exist_ok`.
        """
        if not await _exists(self, exist_ok=exist_ok):
            await self._workspaces.create(self.address)
            return self
        ids = await self.ids()
        if not await self._workspaces.registry.has_change_set(ids):  # its creation broke off
            with suppress(AlreadyRegistered):  # a service, which has no head
                workspace, head = ids
                await self._workspaces.create(self.address, workspace_id=workspace, head=head)
        return self

    def change_set(self, name: str) -> ChangeSetHandle:
        """The open change set of that name or id. No request."""
        return ChangeSetHandle(self._sender, self._workspaces, f"{self.address}/{name}")

    async def fork(self, name: str, *, exist_ok: bool = False) -> ChangeSetHandle:
        """Fork a branch of that name from head as it is; return its handle.

        Raises:
            AlreadyRegistered: an open change set has that name, unless `exist_ok`.
        """
        branch = self.change_set(name)
        if not await _exists(branch, exist_ok=exist_ok):
            await self._workspaces.fork((await self.ids()).workspace_id, name)
            await branch.refresh()
        return branch


async def _exists(change_set: ChangeSetHandle, *, exist_ok: bool) -> bool:
    try:
        await change_set.ids()
    except NoSuchChangeSet:
        return False
    if exist_ok:
        return True
    raise AlreadyRegistered(f"{change_set.address!r} is there already; exist_ok=True uses it")
