"""The definitions of some values, traced through the commits that are kept of a change set.

The history of a branch begins with that of the change set that it was forked from. Edits that
head's changes brought to it are those in head's log.

For each part of a definition, the edit that last changed it is known. An edit is a change by one
commit, so a batch that repeats a definition is none. A change of a value's function, and its
creation, define the value as a whole; other changes are of the value or of the inputs. The removal
of an input takes that input out, and leaves the others as they were.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSetId, RequestId
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.commit_log.state import SMALL_BATCH
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import NotRetained
from rebaser_server.graph_application.content import graph_of
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.columns import Inputs, ids_in, without
from rebaser_server.values.graph import Graph


class ValueState(NamedTuple):
    """A value's definition; a removed one does not exist, and has nothing else."""

    exists: bool = False
    func_id: str | None = None
    text: str | None = None
    """JSON of a source."""
    inputs: Inputs | None = None
    """Inputs of a computed value."""


class FuncState(NamedTuple):
    """A function's definition; all None for a removed function."""

    runtime: str | None = None
    code: str | None = None


_ABSENT: Final = ValueState()
_NO_FUNC: Final = FuncState()


def _value_state(graph: Graph, value_id: str) -> ValueState:
    value = graph.values.get(value_id)
    if value is None:
        return _ABSENT
    if value.func_id is None:
        return ValueState(exists=True, text=value.text)
    return ValueState(exists=True, func_id=value.func_id, inputs=value.inputs)


def _same_inputs(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> bool:
    return list((one or {}).items()) == list((other or {}).items())


E = TypeVar("E")


_NAMED_UPDATES: Final = 200
"""Number of a batch's updates up to which all its names are noted, else only those of inputs."""
_MAX_NAMES: Final = 100_000


class Attribution(NamedTuple, Generic[E]):
    edit: E
    id: str
    part: str
    """`definition`, `value`, `inputs`, `input` (one that was removed) or `function`."""
    before: ValueState | FuncState
    after: ValueState | FuncState
    lost: str = ""
    """The input that was removed."""


class _Tracked(Generic[E]):
    __slots__ = ("defined", "known", "lost", "now", "set", "unwired", "wired")

    def __init__(self, now: ValueState, *, known: bool) -> None:
        self.now = now
        self.known = known
        """Whether no edit before the history is part of `now`."""
        self.defined: Attribution[E] | None = None
        self.set: Attribution[E] | None = None
        self.wired: Attribution[E] | None = None
        self.unwired: Inputs = {}
        """Inputs that the value would have without the edit of `wired`."""
        self.lost: dict[str, Attribution[E]] = {}
        """Removed inputs, of those that `wired` set."""


class TrackedDefinitions(Generic[E]):
    """The definitions of `values` and `funcs`, as the commits of a history are applied in order."""

    def __init__(self, values: Iterable[str], funcs: Iterable[str]) -> None:
        self._values: dict[str, _Tracked[E]] = {i: _Tracked(_ABSENT, known=True) for i in values}
        self._funcs: dict[str, FuncState] = dict.fromkeys(funcs, _NO_FUNC)
        self._takers: dict[str, set[str]] = {}
        """Input → values that take it, or once did."""
        self._restored: set[str] = set()
        """Inputs that were put, and not removed since."""
        self.names: dict[str, str] = {}
        """Names of inputs, some of them removed since, as far as they are known."""
        self._older_funcs: set[str] = set()
        self._coded: dict[str, Attribution[E]] = {}

    def begin(self, graph: Graph) -> None:
        for value_id in self._values:
            state = _value_state(graph, value_id)
            self._values[value_id] = _Tracked(state, known=not state.exists)
            self._note_inputs(value_id, state.inputs)
            for input_id in ids_in(state.inputs or {}):
                self._note_name(input_id, graph.values[input_id].name)
        for func_id in self._funcs:
            func = graph.funcs.get(func_id)
            if func is not None:
                self._funcs[func_id] = FuncState(func.runtime, func.code)
                self._older_funcs.add(func_id)

    def begin_unknown(self) -> None:
        for value_id in self._values:
            self._values[value_id] = _Tracked(ValueState(exists=True), known=False)
        self._older_funcs.update(self._funcs)

    def apply(self, updates: Sequence[AnyUpdate], edit: E) -> None:
        values: dict[str, ValueState] = {}
        funcs: dict[str, FuncState] = {}
        removed: set[str] = set()
        for update in updates:
            match update:
                case PutFunc():
                    self._put_func(update.func_id, FuncState(update.runtime, update.code), funcs)
                case RemoveFunc():
                    self._put_func(update.func_id, _NO_FUNC, funcs)
                case RemoveValue():
                    removed.add(update.value_id)
                    self._remove(update.value_id, values)
                case PutValue() | SetValue() | SetInputs():
                    removed.discard(update.value_id)
                    self._change(update, values)
        self._unwire(removed)
        self._note_existence(updates, removed)
        for value_id, before in values.items():
            self._attribute(value_id, before, removed, edit)
        self._note_names(updates)
        for func_id, code in funcs.items():
            if code != (now := self._funcs[func_id]):
                self._coded[func_id] = Attribution(edit, func_id, "function", code, now)

    def _unwire(self, removed: Collection[str]) -> None:
        """Take removed values also out of `unwired`, the inputs without the last edit."""
        for value_id in removed:
            for taker in self._takers.get(value_id, ()):
                tracked = self._values[taker]
                tracked.unwired = without(tracked.unwired, {value_id})

    def _note_existence(self, updates: Sequence[AnyUpdate], removed: Collection[str]) -> None:
        """Note which inputs exist; an input's loss by two removals is blamed on neither.

        Without either removal, the other one would have removed the input.
        """
        for value_id in self._restored.intersection(removed):
            self._restored.remove(value_id)
            for taker in self._takers.get(value_id, ()):
                self._values[taker].lost.pop(value_id, None)
        puts = {update.value_id for update in updates if isinstance(update, PutValue)}
        self._restored |= puts.intersection(self._takers).difference(removed)

    def _note_names(self, updates: Sequence[AnyUpdate]) -> None:
        for update in updates:
            if isinstance(update, PutValue) and (
                len(updates) <= _NAMED_UPDATES or update.value_id in self._takers
            ):
                self._note_name(update.value_id, update.name)

    def _note_name(self, value_id: str, name: str | None) -> None:
        if name is not None and value_id not in self._values and len(self.names) < _MAX_NAMES:
            self.names[value_id] = name

    def _put_func(self, func_id: str, now: FuncState, before: dict[str, FuncState]) -> None:
        if func_id in self._funcs:
            before.setdefault(func_id, self._funcs[func_id])
            self._funcs[func_id] = now

    def _remove(self, value_id: str, before: dict[str, ValueState]) -> None:
        for taker in self._takers.get(value_id, ()):
            tracked = self._values[taker]
            if tracked.now.inputs:
                before.setdefault(taker, tracked.now)
                kept = without(tracked.now.inputs, {value_id})
                tracked.now = tracked.now._replace(inputs=kept)
        if value_id in self._values:
            before.setdefault(value_id, self._values[value_id].now)
            self._values[value_id].now = _ABSENT

    def _change(
        self, update: PutValue | SetValue | SetInputs, before: dict[str, ValueState]
    ) -> None:
        tracked = self._values.get(update.value_id)
        if tracked is None:
            return
        before.setdefault(update.value_id, tracked.now)
        if isinstance(update, SetInputs):
            tracked.now = tracked.now._replace(exists=True, text=None, inputs=update.inputs)
        elif isinstance(update, PutValue) and update.func_id is not None:
            func_id, inputs = update.func_id, update.inputs or {}
            tracked.now = ValueState(exists=True, func_id=func_id, inputs=inputs)
        else:
            tracked.now = ValueState(exists=True, text=dumps(update.value))
        self._note_inputs(update.value_id, tracked.now.inputs)

    def _note_inputs(self, value_id: str, inputs: Inputs | None) -> None:
        for input_id in ids_in(inputs or {}):
            self._takers.setdefault(input_id, set()).add(value_id)

    def _attribute(
        self, value_id: str, before: ValueState, removed: Collection[str], edit: E
    ) -> None:
        tracked = self._values[value_id]
        after = tracked.now
        if (before.exists, before.func_id) != (after.exists, after.func_id):
            tracked.defined = Attribution(edit, value_id, "definition", before, after)
            tracked.set = tracked.wired = None
            tracked.lost, tracked.known = {}, True
        elif before.text != after.text:
            tracked.set = Attribution(edit, value_id, "value", before, after)
        elif not _same_inputs(before.inputs, after.inputs):
            gone = {i for i in ids_in(before.inputs or {}) if i in removed}
            if _same_inputs(without(before.inputs or {}, gone), after.inputs):
                for lost in gone:
                    part = Attribution(edit, value_id, "input", before, after, lost)
                    tracked.lost[lost] = part
            else:
                tracked.wired = Attribution(edit, value_id, "inputs", before, after)
                tracked.unwired, tracked.lost = before.inputs or {}, {}

    def attributions(self) -> Iterator[Attribution[E]]:
        """Parts that an edit of the history changed last, each with the edit."""
        yield from self._coded.values()
        for value_id in self._values:
            yield from self.attributions_of(value_id)

    def attributions_of(self, value_id: str) -> Iterator[Attribution[E]]:
        tracked = self._values[value_id]
        if tracked.defined is not None:
            yield tracked.defined
        if tracked.set is not None:
            yield tracked.set
        if tracked.wired is not None and not _same_inputs(tracked.unwired, tracked.now.inputs):
            yield tracked.wired
        yield from tracked.lost.values()

    def older(self) -> Iterator[str]:
        """Values and functions that are, in part at least, as the history found them."""
        yield from (func_id for func_id in self._older_funcs if func_id not in self._coded)
        yield from (value_id for value_id, tracked in self._values.items() if not tracked.known)

    def count_older(self) -> int:
        return sum(1 for _ in self.older())


class CommittedEdit(NamedTuple):
    change_set_id: ChangeSetId
    commit: int
    entry: CommitV2
    from_head: int | None = None
    """Head's last commit that it merges, for a commit that brought head's changes to a branch."""
    begins_update: bool = False
    """Whether no update was due before it."""


class DefinitionHistory:
    """Definitions of `values` and `funcs`, brought forward from commit to commit."""

    def __init__(
        self, loader: StateLoader, values: Collection[str], funcs: Collection[str]
    ) -> None:
        self._loader = loader
        self._workspace = str(loader.change_set.workspace_id)
        self._ids = values, funcs
        self._commit = -1
        """The last commit that the definitions have; -1 if they have not begun."""
        self._is_due = False
        self.begins = 0
        """Commit behind which the history begins; 0 if nothing was before it."""
        self.definitions = TrackedDefinitions[CommittedEdit]((), ())
        self.requests: dict[int, tuple[int, RequestId]] = {}
        """Sequence of a request that left values to recompute → its commit, and that one's id."""

    async def advance(self, until: int) -> None:
        """Go on to a commit, at first and after a purge from the earliest commit that is kept.

        If the commit is before that one, or the change set was deleted, no definition is known.

        Raises:
            HistoryInconsistent: commits are missing that were not purged.
            MissingBatch, DamagedBatch, MalformedMessage: a batch cannot be read.
        """
        try:
            await self._loader.from_earliest(until, partial(self._advance, until))
        except NotRetained:
            await self._forget()
            self.definitions.begin_unknown()
            self.begins = await self._loader.earliest_commit()

    async def _advance(self, until: int, begins: int) -> None:
        if self._commit < begins:
            await self._begin(begins)
        async for sequence, entry in self._loader.log.entries(self._commit, until):
            await self._apply(sequence, entry)
            # Only now: a batch that was purged meanwhile is not passed over afterwards.
            self._commit, self._is_due = sequence, entry.control.dvu_due

    async def _begin(self, begins: int) -> None:
        await self._forget()
        if begins:
            state = await self._loader.load(begins)
            self._is_due = state.control.dvu_due
            await compute_in_turn(self._workspace, self.definitions.begin, graph_of(state))
        elif (first := await self._loader.log.oldest()) and first.control.branch is not None:
            base = first.control.branch.base
            if base.commit:  # else it is empty, whether or not its log goes back to that
                origin = self._of(base.change_set_id)
                await origin.advance(base.commit)
                self.definitions = origin.definitions
        self._commit = self.begins = begins

    async def _forget(self) -> None:
        """Take all definitions for absent, as before the first commit."""
        kind = TrackedDefinitions[CommittedEdit]
        self.definitions = await compute_in_turn(self._workspace, kind, *self._ids)
        self._commit = -1

    async def _apply(self, sequence: int, entry: CommitV2) -> None:
        settled, change_set_id = entry.settled, self._loader.change_set.change_set_id
        if settled is None or settled.updates is None or settled.covers is not None:
            return
        if entry.control.dirty_sequence == settled.sequence:
            self.requests[settled.sequence] = sequence, entry.id
        batch = await self._loader.batches.fetch(settled.updates, settled.id)
        branch, from_head = entry.control.branch, None
        if batch.head_side is not None and branch is not None:
            from_head = branch.cursor
        edit = CommittedEdit(change_set_id, sequence, entry, from_head, not self._is_due)
        if len(batch.updates) < SMALL_BATCH:
            self.definitions.apply(batch.updates, edit)
        else:
            await compute_in_turn(self._workspace, self.definitions.apply, batch.updates, edit)

    async def attributions(self) -> AsyncIterator[Attribution[CommittedEdit]]:
        """Each part of the definitions with its edit; edits of head are those in head's log."""
        merged: dict[int, list[Attribution[CommittedEdit]]] = {}
        for attribution in await self.listed():
            if attribution.edit.from_head is None:
                yield attribution
            else:
                merged.setdefault(attribution.edit.from_head, []).append(attribution)
        async for attribution in self._in_head(merged):
            yield attribution

    async def _in_head(
        self, merged: dict[int, list[Attribution[CommittedEdit]]]
    ) -> AsyncIterator[Attribution[CommittedEdit]]:
        """The edits of head that the merges up to these commits of head brought."""
        head: DefinitionHistory | None = None
        known: dict[tuple[str, str, str], Attribution[CommittedEdit]] = {}
        for cursor, attributions in sorted(merged.items()):
            branch = attributions[0].edit.entry.control.branch
            if head is None and branch is not None:
                head = self._of(branch.head)
            if head is not None:
                await head.advance(cursor)
                known = {_part(each): each for each in await head.listed()}
            for each in attributions:
                yield known.get(_part(each), each)

    def _of(self, change_set_id: ChangeSetId) -> "DefinitionHistory":
        return DefinitionHistory(self._loader.sibling(change_set_id), *self._ids)

    async def listed(self) -> list[Attribution[CommittedEdit]]:
        return await compute_in_turn(self._workspace, list, self.definitions.attributions())


def _part(attribution: Attribution[CommittedEdit]) -> tuple[str, str, str]:
    return attribution.id, attribution.part, attribution.lost
