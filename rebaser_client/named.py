"""Workspaces, branches and change sets by their names, as people use them.

A change set by its name: read its values, plan and load drafts, fork and apply branches.

Values of two change sets that differ, for instance of a branch and its head.

Workspaces and their branches by name.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self, overload

from rebaser_client.client import BatchEnqueuer, BatchOutcome, Wait
from rebaser_client.display import Columns, arrow_table, html_table, pandas_frame, polars_frame
from rebaser_client.draft import ComputedByName, Draft, Source
from rebaser_client.errors import (
    AlreadyRegistered,
    InvalidDraft,
    NoSuchChangeSet,
    NoSuchValue,
    ReadRefused,
)
from rebaser_client.outcomes import Progress, Settlement, Values
from rebaser_client.plan import LoadPlan, build_plan, derived_id, input_ids, is_rewired
from rebaser_client.reader import BranchDifference, Provenance, RevertPlan, ValueSet
from rebaser_client.workspaces import AddressBook, Workspaces
from rebaser_core.codecs import json_equal
from rebaser_core.errors import offer
from rebaser_core.ids import ChangeSet
from rebaser_core.queries import FunctionSnapshot, ValueSnapshot
from rebaser_core.records import CommentRecordV1

NAMES_AT_ONCE: Final = 500
"""Names in one query: each may have 512 characters, and a message has room for 1 MB."""


class EditedDraft(Draft):
    """A draft that is compared with the change set, and loaded, at the end of `edit`."""

    outcome: BatchOutcome | None = None
    """What became of it; None before the end, and if nothing was sent."""
    _plan: LoadPlan | None = None

    @property
    def plan(self) -> LoadPlan:
        """What differed.

        Raises:
            InvalidDraft: the body of `edit` has not ended.
        """
        if self._plan is None:
            raise InvalidDraft("what differs is known once the body of `edit` has ended")
        return self._plan

    @property
    def failed(self) -> Values:
        """Values that failed because of it; none if nothing was sent."""
        return () if self.outcome is None else self.outcome.failed

    def end(self, plan: LoadPlan, outcome: BatchOutcome | None) -> None:
        """Take what `edit` has done."""
        self._plan, self.outcome = plan, outcome


class NamedChangeSet:
    """One change set. Its name is looked up once, at the first call that needs it."""

    def __init__(self, enqueuer: BatchEnqueuer, workspaces: Workspaces, address: str) -> None:
        self._enqueuer = enqueuer
        self._workspaces = workspaces
        self.address: Final = address
        """"shop" for the head of a workspace, "shop/winter" for a branch."""
        self._ids: ChangeSet | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}>"

    async def ids(self) -> ChangeSet:
        """The ids of workspace and change set, for methods of the client that take them.

        Raises:
            NoSuchChangeSet: there is none of that name.
            AmbiguousAddress: there is more than one.
        """
        if self._ids is None:
            found = await AddressBook(self._workspaces).find(self.address)
            self._ids = found.change_set
        return self._ids

    async def values(self, *names: str, at: int | None = None) -> ValueSet:
        """The values of these names or ids, or all, as of commit `at`, or of the last one.

        Raises:
            NoSuchValue: there is none of such a name; the message offers similar ones.
            Unreachable, ReadRefused, TooLarge: as `ChangeSetReader.values`.
        """
        reader = self._enqueuer.reader(*await self.ids())
        values = await reader.values(*names, at=at)
        if values.missing:
            known = []
            with suppress(ReadRefused):  # too many for one answer: nothing is offered
                every = await reader.values(at=at)
                known = [value.name for value in every.values() if value.name is not None]
            name = values.missing[0]
            raise NoSuchValue(f"there is no value {name!r} in {self.address}{offer(name, known)}")
        return values

    async def why(self, name: str, *, at: int | None = None) -> Provenance:
        """The edits that made the value of this name or id what it is, as of `at` or now.

        Raises: as `ChangeSetReader.why`.
        """
        return await self._enqueuer.reader(*await self.ids()).why(name, at=at)

    async def plan_revert(self, commit: int, *, force: bool = False) -> RevertPlan:
        """The batch that undoes a commit; enqueue its `updates` to have it done.

        What a later commit changed again stays, unless `force`. Raises as
        `ChangeSetReader.plan_revert`.
        """
        return await self._enqueuer.reader(*await self.ids()).plan_revert(commit, force=force)

    async def comment(self, text: str) -> CommentRecordV1:
        """Add a comment, which the pages and `comments` show; return it as it is kept."""
        return await self._workspaces.comment(*await self.ids(), text)

    async def comments(self) -> list[CommentRecordV1]:
        """All comments, the oldest first."""
        return await self._workspaces.comments(*await self.ids())

    async def settled(self, commit: int | None = None) -> Settlement:
        """Wait until all that `commit`, or the last one, left to be computed is.

        Returns what has no result. Raises as `BatchEnqueuer.settled`.
        """
        return await self._enqueuer.settled(*await self.ids(), commit)

    async def progress(self, commit: int | None = None) -> AsyncIterator[Progress]:
        """Progress of the work on `commit`, or the last one; ends when `settled` would return."""
        async for step in self._enqueuer.progress(*await self.ids(), commit):
            yield step

    async def plan(self, draft: Draft, *, prune: bool = False) -> LoadPlan:
        """Compare the draft with the change set as it is; change nothing.

        With `prune`, values that the draft does not name are removed. Without, none is but those
        in `draft.removed`.

        Raises:
            InvalidDraft: an input is neither in the draft nor in the change set; nor is a
                function, or there are several of its name; values would be computed from
                themselves; CEL text is wrong, where its engine is installed.
        """
        functions = await self._functions(draft)
        if prune:
            every = (await self.values()).values()
            known = {value.name: value for value in every if value.name is not None}
            taken = {value.id for value in every}
            return build_plan(draft, known, taken, prune=True, behind=every, functions=functions)
        existing = await self._by_name(_names_in(draft))
        new = [name for name in draft.definitions if name not in existing]
        clashing = await self._read(derived_id("value", name) for name in new)
        behind = await self._behind(draft, existing) if is_rewired(draft, existing) else []
        taken = {value.id for value in clashing}
        return build_plan(draft, existing, taken, behind=behind, functions=functions)

    async def load(
        self, draft: Draft | LoadPlan, *, prune: bool = False, wait: Wait = "computed"
    ) -> BatchOutcome | None:
        """Make the change set as the draft says, by one batch; None if it is so already.

        A plan is sent as it was made. What others changed since then, it does not see.

        Raises:
            InvalidDraft: as `plan`.
            ClientError: as `BatchEnqueuer.enqueue`.
        """
        plan = draft if isinstance(draft, LoadPlan) else await self.plan(draft, prune=prune)
        if not plan:
            return None
        return await self._enqueuer.enqueue(*await self.ids(), plan.batch(), wait=wait)

    @asynccontextmanager
    async def edit(
        self,
        *,
        prune: bool = False,
        wait: Wait = "computed",
        confirm: Callable[[LoadPlan], bool] = lambda _: True,
    ) -> AsyncIterator[EditedDraft]:
        """A draft that is loaded once the body ends, if anything differs and `confirm` agrees.

        Nothing is sent if the body raises. Afterwards the draft's `plan` and `outcome` say what
        was done.
        """
        edited = EditedDraft()
        yield edited
        await self.finish(edited, prune=prune, wait=wait, confirm=confirm)

    async def finish(
        self,
        edited: EditedDraft,
        *,
        prune: bool = False,
        wait: Wait = "computed",
        confirm: Callable[[LoadPlan], bool] = lambda _: True,
    ) -> None:
        """What `edit` does once its body has ended."""
        plan = await self.plan(edited, prune=prune)
        agreed = bool(plan) and confirm(plan)
        edited.end(plan, await self.load(plan, wait=wait) if agreed else None)

    async def _behind(
        self, draft: Draft, existing: dict[str, ValueSnapshot]
    ) -> list[ValueSnapshot]:
        """Values that the draft's inputs are computed from, level by level."""
        found: list[ValueSnapshot] = []
        seen = {value.id for value in existing.values()}
        level = [value for name, value in existing.items() if name not in draft.definitions]
        while level:
            ids = {each for value in level for each in input_ids(value)} - seen
            seen |= ids
            level = await self._read(sorted(ids))
            found += level
        return found

    async def _functions(self, draft: Draft) -> list[FunctionSnapshot]:
        """Functions of the change set that the draft names; others, too, if one is missing."""
        definitions = draft.definitions.values()
        names = {each.function.name for each in definitions if isinstance(each, ComputedByName)}
        if not names:
            return []
        reader = self._enqueuer.reader(*await self.ids())
        left, found = iter(sorted(names)), list[FunctionSnapshot]()
        while some := tuple(islice(left, NAMES_AT_ONCE)):
            found += await reader.functions(*some)
        if names - {each.name for each in found}:
            with suppress(ReadRefused):  # too many for one answer: none of them is offered
                found = await reader.functions()
        return found

    async def _by_name(self, names: Iterable[str]) -> dict[str, ValueSnapshot]:
        values = await self._read(names)
        return {value.name: value for value in values if value.name is not None}

    async def _read(self, names: Iterable[str]) -> list[ValueSnapshot]:
        """The values of those names or ids that there are."""
        reader = self._enqueuer.reader(*await self.ids())
        left, values = iter(names), list[ValueSnapshot]()
        while some := tuple(islice(left, NAMES_AT_ONCE)):
            values += (await reader.values(*some)).values()
        return values


def _names_in(draft: Draft) -> dict[str, None]:
    """All names that the draft defines, removes, or takes as inputs, each once."""
    names = dict.fromkeys([*draft.definitions, *draft.removed])
    for definition in draft.definitions.values():
        if not isinstance(definition, Source):
            names |= dict.fromkeys(definition.input_names())
    return names


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value that differs; a side is None where there is no such value."""

    id: str
    name: str | None
    head: Any
    branch: Any
    head_status: str | None
    branch_status: str | None


class ValueDifferences(Sequence[ValueDifference]):
    """All values that differ, sorted by name."""

    def __init__(self, head: ValueSet, branch: ValueSet) -> None:
        differences = _differences(head, branch)
        self._rows = sorted(differences, key=lambda row: (row.name or "", row.id))

    @overload
    def __getitem__(self, index: int) -> ValueDifference: ...
    @overload
    def __getitem__(self, index: slice) -> list[ValueDifference]: ...
    def __getitem__(self, index: int | slice) -> ValueDifference | list[ValueDifference]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`. Raises `MissingPackage` without pandas."""
        return pandas_frame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`. Raises `MissingPackage` without pyarrow."""
        return arrow_table(self._columns())

    def to_polars(self) -> Any:
        """A `polars.DataFrame`. Raises `MissingPackage` without Polars or pyarrow."""
        return polars_frame(self._columns())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for programs that take Arrow. Raises `MissingPackage` without pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _columns(self) -> Columns:
        names = ("name", "head", "branch", "head_status", "branch_status", "id")
        return {name: [getattr(row, name) for row in self._rows] for name in names}

    def _repr_html_(self) -> str:
        rows = [(row.name or row.id, row.head, row.branch, row.branch_status) for row in self._rows]
        return html_table(("value", "head", "branch", "status"), rows, f"{len(rows):,} differ")


def _differences(head: ValueSet, branch: ValueSet) -> Iterator[ValueDifference]:
    for value_id in {**dict.fromkeys(head), **dict.fromkeys(branch)}:
        one, other = head.get(value_id), branch.get(value_id)
        if _same(one, other):
            continue
        known = other or one
        yield ValueDifference(
            value_id,
            None if known is None else known.name,
            *(None if side is None else side.value for side in (one, other)),
            *(None if side is None else side.status for side in (one, other)),
        )


def _same(one: ValueSnapshot | None, other: ValueSnapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.status == other.status and json_equal(one.value, other.value)


class NamedWorkspace(NamedChangeSet):
    """The head of a workspace; its branches are made from here."""

    async def create(self, *, exist_ok: bool = False) -> Self:
        """Register a workspace of that name, whose head is empty; return this one.

        Raises:
            AlreadyRegistered: there is one of that name, unless `exist_ok`.
        """
        if not await _exists(self, exist_ok=exist_ok):
            await self._workspaces.create(self.address)
        return self

    def branch(self, name: str) -> "NamedBranch":
        """The open branch of that name; its `fork` makes one. No I/O."""
        return NamedBranch(self._enqueuer, self._workspaces, self, name)


class NamedBranch(NamedChangeSet):
    """A branch of a workspace."""

    def __init__(
        self, enqueuer: BatchEnqueuer, workspaces: Workspaces, head: NamedWorkspace, name: str
    ) -> None:
        super().__init__(enqueuer, workspaces, f"{head.address}/{name}")
        self.head: Final = head
        self.name: Final = name

    async def fork(self, *, exist_ok: bool = False) -> Self:
        """Fork a branch of that name from head, as head is; return this one.

        Raises:
            AlreadyRegistered: an open change set has that name, unless `exist_ok`.
        """
        if not await _exists(self, exist_ok=exist_ok):
            record = await self._workspaces.fork((await self.head.ids()).workspace_id, self.name)
            await self._workspaces.refresh(record.workspace_id, record.change_set_id)
        return self

    async def difference(self, *, computed: bool = False) -> BranchDifference:
        """The edits that `apply` would bring to head; with `computed`, also the results.

        Raises: as `ChangeSetReader.difference`.
        """
        return await self._enqueuer.reader(*await self.ids()).difference(computed=computed)

    async def differences(self) -> ValueDifferences:
        """The values that differ from head's, sources and computed ones, as both are."""
        return ValueDifferences(await self.head.values(), await self.values())

    async def apply(self, *, reviewed: str | None = None) -> Settlement:
        """Have head take the branch's difference, and wait until head's values are computed.

        Raises:
            RequestRefused: see `Workspaces.apply`.
        """
        await self._workspaces.apply(*await self.ids(), reviewed=reviewed)
        return await self.head.settled()

    async def abandon(self) -> None:
        """Have the branch closed without effect on head."""
        await self._workspaces.abandon(*await self.ids())


async def _exists(change_set: NamedChangeSet, *, exist_ok: bool) -> bool:
    try:
        await change_set.ids()
    except NoSuchChangeSet:
        return False
    if exist_ok:
        return True
    raise AlreadyRegistered(f"{change_set.address!r} is there already; exist_ok=True uses it")
