"""A plan: the changes of a change set that make it as a draft says.

The comparison reads the change set as far as it needs; all else does no I/O.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, Final, Literal

from blake3 import blake3
from pydantic import ValidationError

from rebaser_client.display import html_table, table_text
from rebaser_client.draft import (
    BUILTIN_PARAMETERS,
    Computed,
    ComputedByName,
    Definition,
    Draft,
    Function,
    FunctionName,
    Source,
    TableUpload,
    cel_mistake,
    function_of,
)
from rebaser_client.errors import InvalidDraft, ReadRefused
from rebaser_client.outcomes import BatchOutcome, Values
from rebaser_client.reader import ReadsValues
from rebaser_core.codecs import json_equal
from rebaser_core.errors import many, offer
from rebaser_core.ids import FuncId, RequestId, ValueId
from rebaser_core.queries import FunctionSnapshot, ValueSnapshot
from rebaser_core.requests import INLINE_UPDATES
from rebaser_core.table_values import upload_of
from rebaser_core.updates import AnyUpdate, PutValue, RemoveValue, SetInputs, SetValue
from rebaser_core.versioning import first_error

Change = Literal["added", "changed", "removed"]

_OK: Final = "ok"
"""Status of a value that has a result, so that its function is there."""

_SHOWN: Final = 20
"""Maximum number of changes in a plan's text."""


_CEL_UNCHECKED: Final = (
    "CEL is not checked here, since cel-expr-python is not installed (pip install "
    "'rebaser[server]'): values of an expression that is wrong will fail"
)

_SHOWN_CODE: Final = 80
"""Maximum number of characters of CEL text in an error."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change of one value."""

    name: str
    change: Change
    what: Literal["value", "inputs", "function"]
    """The part that differs."""
    before: Any
    after: Any

    def sides(self) -> tuple[Any, Any]:
        return self.before, self.after


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The changes, and the updates that make them. It is false if there is none.

    Example:
        plan = await shop.plan(draft)
        if plan:
            print(plan.summary())
            await shop.load(plan)
    """

    changes: tuple[PlannedChange, ...]
    updates: tuple[AnyUpdate, ...]
    unchanged: int
    """Number of values that are already as the draft says."""
    warnings: tuple[str, ...] = ()
    """Warnings of faults that cannot be checked here, and may appear when values are computed."""
    uploads: Mapping[str, TableUpload] = field(default_factory=dict)
    """Files, by their digests, that are stored before the updates are sent."""

    def __bool__(self) -> bool:
        return bool(self.updates)

    def batch(self) -> Sequence[AnyUpdate]:
        """The updates to send: many as a table, if it can say them and pyarrow is installed."""
        if len(self.updates) <= INLINE_UPDATES:
            return self.updates
        try:
            tables = import_module("rebaser_client.tables")
        except ModuleNotFoundError:
            return self.updates
        table: Sequence[AnyUpdate] | None = tables.as_table(self.updates)
        return self.updates if table is None else table

    def text(self, side: Any) -> str | None:
        """A side of a change that is a table, in words; None for another one."""
        upload = self.uploads.get(upload_of(side) or "")
        return table_text(side) if upload is None else f"table: {many(upload.rows, 'row')}"

    def count(self, change: Change) -> int:
        """Number of values that are added, changed or removed."""
        return sum(each.change == change for each in self.changes)

    def summary(self) -> str:
        """One line for people."""
        counts = [f"{self.count(each):,} {each}" for each in ("added", "changed", "removed")]
        return f"{', '.join(counts)}, {self.unchanged:,} as they are"

    def _repr_html_(self) -> str:
        rows = [
            (each.name, each.change, each.what, *(self.text(s) or s for s in each.sides()))
            for each in self.changes
        ]
        return html_table(("value", "change", "of it", "before", "after"), rows, self.summary())

    def __str__(self) -> str:
        lines = [
            f"{each.change:8}{each.name}  {each.what}: "
            + " -> ".join(self.text(side) or _text(side) for side in each.sides())
            for each in self.changes[:_SHOWN]
        ]
        if len(self.changes) > _SHOWN:
            lines.append(f"and {len(self.changes) - _SHOWN:,} more")
        return "\n".join([*lines, self.summary(), *self.warnings])


def _text(side: Any) -> str:
    return "none" if side is None else str(side)


def _derived_id(kind: Literal["value", "function"], *names: str) -> str:
    """The id of a new value or function, equal in every program that gives it these names."""
    digest = blake3("\0".join((kind, *names)).encode()).digest()
    return str(RequestId.from_bytes(digest[:16]))


def new_value_id(name: str, taken: Collection[str] = ()) -> ValueId:
    """The id of a new value of that name."""
    value_id, attempt = _derived_id("value", name), 0
    while value_id in taken:
        attempt += 1
        value_id = _derived_id("value", name, str(attempt))
    return value_id


def _function_id(function: Function) -> FuncId:
    """A new function's id, which follows from its whole definition, so its presence shows that."""
    return function.func_id or _derived_id(
        "function", function.runtime, function.code, function.name
    )


def _defined(function: Function, func_id: FuncId) -> AnyUpdate:
    try:
        return function.update(func_id)
    except ValidationError as error:
        raise InvalidDraft(f"function {function.name!r:.80}: {first_error(error)}") from error


NAMES_AT_ONCE: Final = 500
"""Number of names in one query: each may have 512 characters, and a message has room for 1 MB."""


class EditedDraft(Draft):
    """A draft that is compared with the change set, and loaded, at the end of `edit`.

    Example:
        async with shop.edit() as g:
            g.source("net", 120)
        print(g.plan.summary(), g.failed)
    """

    outcome: BatchOutcome | None = None
    """Outcome of the batch; None before the end, and if nothing was sent."""
    _plan: LoadPlan | None = None

    @property
    def plan(self) -> LoadPlan:
        """The differences from the change set.

        Raises:
            InvalidDraft: the body of `edit` has not ended.
        """
        if self._plan is None:
            raise InvalidDraft("the differences are known once the body of `edit` has ended")
        return self._plan

    @property
    def failed(self) -> Values:
        """Values that failed because of it; none if nothing was sent."""
        return Values() if self.outcome is None else self.outcome.failed

    def end(self, plan: LoadPlan, outcome: BatchOutcome | None) -> None:
        """Note the plan and the outcome of `edit`."""
        self._plan, self.outcome = plan, outcome


async def compare(change_set: ReadsValues, draft: Draft, *, prune: bool = False) -> LoadPlan:
    """Compare the draft with the change set as it is. See `ChangeSetHandle.plan`."""
    functions = await _read_named_functions(change_set, draft)
    if prune:
        every = (await change_set.values()).values()
        known = {value.name: value for value in every if value.name is not None}
        taken = {value.id for value in every}
        functions += await _read_functions_of(change_set, known)
        return build_plan(draft, known, taken, prune=True, behind=every, functions=functions)
    named = await read_named(change_set, _names_in(draft))
    existing = {value.name: value for value in named if value.name is not None}
    functions += await _read_functions_of(change_set, existing)
    taken = await _read_new(change_set, draft, existing)
    rewired = _is_rewired(draft, existing)
    behind = await _read_behind(change_set, draft, existing) if rewired else []
    given = (name for name, each in draft.definitions.items() if isinstance(each, Source))
    inputs = filter(None, (existing[name].input_ids() for name in given if name in existing))
    for value in await read_named(change_set, next(inputs, [])[: _SHOWN + 1]):
        existing[value.name or value.id] = value  # for the error that names them
    return build_plan(draft, existing, taken, behind=behind, functions=functions)


async def _read_new(
    change_set: ReadsValues, draft: Draft, existing: dict[str, ValueSnapshot]
) -> set[str]:
    """Return the ids that new values of the draft cannot have, since others do.

    Values of the draft that another program put meanwhile are added to `existing`.
    """
    taken = set[str]()
    ids = {new_value_id(name): name for name in draft.definitions if name not in existing}
    while ids:
        found = [each for each in await read_named(change_set, ids) if each.id in ids]
        for value in found:
            name = ids[value.id]
            if value.name == name:
                existing[name] = value
            else:  # it was given another name since it was put
                taken.add(value.id)
        others = (ids[value.id] for value in found if value.id in taken)
        ids = {new_value_id(name, taken): name for name in others}
    return taken


async def _read_behind(
    change_set: ReadsValues, draft: Draft, existing: dict[str, ValueSnapshot]
) -> list[ValueSnapshot]:
    """Values that the draft's inputs are computed from, level by level."""
    found: list[ValueSnapshot] = []
    seen = {value.id for value in existing.values()}
    level = [value for name, value in existing.items() if name not in draft.definitions]
    while level:
        ids = {each for value in level for each in value.input_ids()} - seen
        seen |= ids
        level = await read_named(change_set, sorted(ids))
        found += level
    return found


async def _read_named_functions(change_set: ReadsValues, draft: Draft) -> list[FunctionSnapshot]:
    """Functions of the change set that the draft names; others, too, if one is missing."""
    definitions = draft.definitions.values()
    names = {each.function.name for each in definitions if isinstance(each, ComputedByName)}
    if not names:
        return []
    left, found = iter(sorted(names)), list[FunctionSnapshot]()
    try:
        while some := tuple(islice(left, NAMES_AT_ONCE)):
            found += await change_set.functions(*some)
    except ReadRefused as error:
        raise InvalidDraft(
            f"{min(names)!r} is no function that the draft defines, and Rebaser does not tell "
            f"what the change set has of that name ({error}): define it in `functions` of a "
            "graph file, or update Rebaser"
        ) from error
    if names - {each.name for each in found}:
        with suppress(ReadRefused):  # too many for one answer: none of them is offered
            found = await change_set.functions()
    return found


async def _read_functions_of(
    change_set: ReadsValues, existing: Mapping[str, ValueSnapshot]
) -> list[FunctionSnapshot]:
    """Functions of values without a result, as far as they exist: one may have been removed."""
    without = (value for value in existing.values() if value.status != _OK)
    left = iter(sorted({value.func_id for value in without if value.func_id is not None}))
    found = list[FunctionSnapshot]()
    with suppress(ReadRefused):  # of an older Rebaser: they are defined again, as they are
        while some := tuple(islice(left, NAMES_AT_ONCE)):
            found += await change_set.functions(*some)
    return found


async def read_named(change_set: ReadsValues, names: Iterable[str]) -> list[ValueSnapshot]:
    """The existing values of those names or ids."""
    left, values = iter(names), list[ValueSnapshot]()
    while some := tuple(islice(left, NAMES_AT_ONCE)):
        values += (await change_set.values(*some, missing_ok=True)).values()
    return values


def _names_in(draft: Draft) -> dict[str, None]:
    """All names that the draft defines, removes, or takes as inputs, each once."""
    names = dict.fromkeys([*draft.definitions, *draft.removed])
    for definition in draft.definitions.values():
        if not isinstance(definition, Source):
            names |= dict.fromkeys(definition.input_names())
    return names


def build_plan(
    draft: Draft,
    existing: Mapping[str, ValueSnapshot],
    taken: Collection[str] = (),
    *,
    prune: bool = False,
    behind: Iterable[ValueSnapshot] = (),
    functions: Iterable[FunctionSnapshot] = (),
) -> LoadPlan:
    """Compare the draft with existing values, and check it whole.

    Args:
        draft: the wanted definitions.
        existing: the change set's values by name: at least all that the draft names.
        taken: ids that other values have.
        prune: remove all other values in `existing`.
        behind: values that those in `existing` are computed from, directly or not.
        functions: the change set's functions of the names that the draft uses, and of existing
            values without a result; others are offered in place of a missing one.

    Raises:
        InvalidDraft: a function is known by name, and none or several have it; an input is neither
            defined nor existing, or is removed; a source's name is that of a computed value; values
            are computed from themselves, directly or not; CEL text cannot be compiled.
    """
    there = {each.id: each for each in functions}
    draft = _with_functions(draft, existing, [*there.values()])
    warnings = _check_cel(draft)
    removed = [name for name in draft.removed if name in existing]
    if prune:
        removed += [n for n in existing if n not in draft.definitions and n not in draft.removed]
    gone = {*removed}
    ids = {name: existing[name].id for name in existing if name not in gone}
    for name in draft.definitions:
        if name not in ids:
            ids[name] = new_value_id(name, taken)
    plan = _Comparison(draft, existing, ids, there).plan(removed)
    removed_ids = {existing[name].id for name in gone}
    staying = [each for each in (*existing.values(), *behind) if each.id not in removed_ids]
    places = {value_id: place for place, value_id in enumerate(_ordered(draft, ids, staying))}

    def place_of(update: AnyUpdate) -> int:
        if isinstance(update, PutValue | SetValue | SetInputs):
            return places[update.value_id]
        return -1

    return replace(
        plan,
        # Behind its inputs, no value meets an old input that would close a cycle with new ones.
        updates=tuple(sorted(plan.updates, key=place_of)),
        warnings=warnings,
        uploads=_new_uploads(draft, plan, existing),
    )


def _new_uploads(
    draft: Draft, plan: LoadPlan, existing: Mapping[str, ValueSnapshot]
) -> dict[str, TableUpload]:
    """Files that the plan's values refer to, and no existing value does."""
    there = {upload_of(value.value) for value in existing.values()}
    wanted = {upload_of(change.after) for change in plan.changes} - there
    return {digest: file for digest, file in draft.uploads.items() if digest in wanted}


def is_computed(name: str, inputs: Iterable[str]) -> InvalidDraft:
    """The error that refuses content for a computed value with inputs of these names."""
    names = [*dict.fromkeys(inputs)]
    shown = ", ".join(names[:_SHOWN] + ["…"] * (len(names) > _SHOWN)) or "it has none"
    return InvalidDraft(
        f"{name!r} is computed; set its inputs instead: {shown}; or let it be computed by the "
        "builtin function `identity`, from a source that has another name"
    )


def _is_rewired(draft: Draft, existing: Mapping[str, ValueSnapshot]) -> bool:
    """Whether an existing value gets a new input: only that closes a cycle."""
    for name, definition in draft.definitions.items():
        if not isinstance(definition, Source) and name in existing:
            before = set(existing[name].input_ids())
            for given in definition.input_names():
                if given not in existing or existing[given].id not in before:
                    return True
    return False


def _with_functions(
    draft: Draft, existing: Mapping[str, ValueSnapshot], there: Sequence[FunctionSnapshot]
) -> Draft:
    """The draft with each function of the change set in place of its name."""
    defined = [name for name in draft.definitions if name in existing]
    here = Counter(existing[name].func_id for name in defined)
    found, known = dict[str, Function](), Draft()
    known.removed, known.uploads = draft.removed, draft.uploads
    for name, definition in draft.definitions.items():
        if isinstance(definition, ComputedByName):
            wanted = definition.function
            if wanted.name not in found:
                found[wanted.name] = _function_called(name, wanted, there, here)
            known.definitions[name] = definition.computed(name, found[wanted.name])
        else:
            known.definitions[name] = definition
    return known


def _function_called(
    value: str,
    wanted: FunctionName,
    there: Sequence[FunctionSnapshot],
    here: Mapping[str | None, int],
) -> Function:
    """The function that computes values outside the draft; else one that computes any; else any.

    A function whose text was changed is another one, and the former stays without values.
    `here`: how many values that the draft defines each function computes by now.
    """
    called = [each for each in there if each.name == wanted.name]
    elsewhere = [each for each in called if each.users > here.get(each.id, 0)]
    candidates = elsewhere or [each for each in called if each.users] or called
    if not candidates:
        known = [*wanted.similar, *BUILTIN_PARAMETERS, *(each.name for each in there)]
        raise InvalidDraft(
            f"{value!r}: no function is called {wanted.name!r}{offer(wanted.name, known)}; neither "
            "file nor change set has one: define it in `functions` of a graph file, or take a "
            f"builtin one: {', '.join(sorted(BUILTIN_PARAMETERS))}"
        )
    if len(candidates) > 1:
        codes = "; ".join(f"{each.runtime} {each.code!r:.80}" for each in candidates[:_SHOWN])
        raise InvalidDraft(
            f"{value!r}: the change set has {len(candidates)} functions called {wanted.name!r} "
            f"({codes}): define the one that is meant in `functions` of a graph file"
        )
    return function_of(candidates[0])


def _check_cel(draft: Draft) -> tuple[str, ...]:
    """Warnings of CEL that cannot be checked here; `InvalidDraft` for CEL that is wrong."""
    checked = set[tuple[Function, tuple[str, ...]]]()
    for name, definition in draft.definitions.items():
        if not isinstance(definition, Computed) or definition.function.runtime != "cel":
            continue
        function, variables = definition.function, tuple(definition.inputs)
        if (function, variables) in checked:
            continue
        checked.add((function, variables))
        try:
            mistake = cel_mistake(function.code, variables)
        except ImportError:
            return (_CEL_UNCHECKED,)
        if mistake is not None:
            takes = ", ".join(variables) or "none"
            raise InvalidDraft(
                f"{name!r}: {function.code[:_SHOWN_CODE]!r} is no CEL with the inputs {takes}; "
                f"{mistake}"
            )
    return ()


def _ordered(
    draft: Draft, ids: Mapping[str, ValueId], there: Iterable[ValueSnapshot]
) -> Iterable[ValueId]:
    """Ids of the draft's values and of those that they are computed from, inputs first.

    Raises:
        InvalidDraft: values are computed from themselves; the message has their names.
    """
    inputs: dict[str, list[str]] = {value.id: value.input_ids() for value in there}
    names = {value.id: value.name or value.id for value in there}
    for name, definition in draft.definitions.items():
        names[ids[name]] = name
        taken = definition.input_names() if isinstance(definition, Computed) else ()
        inputs[ids[name]] = [ids[each] for each in taken]
    done, path = dict[str, None](), dict[str, Iterator[str]]()
    for start in map(ids.__getitem__, draft.definitions):
        path[start] = iter(() if start in done else inputs[start])
        while path:
            last = next(reversed(path))
            following = next(path[last], None)
            if following is None:
                del path[last]
                done[last] = None
            elif following in path:
                cycle = [*path][[*path].index(following) :]
                shown = [names.get(each, each) for each in (*cycle, following)]
                if len(shown) > _SHOWN:
                    shown[_SHOWN // 2 : -_SHOWN // 2] = ["…"]
                raise InvalidDraft(
                    f"a cycle, where each is computed from the next: {' -> '.join(shown)}; take "
                    "one of them out of the inputs of the one before it"
                )
            elif following not in done:
                path[following] = iter(inputs.get(following, ()))
    return done


class _Comparison:
    """A comparison of definitions, one after the other."""

    def __init__(
        self,
        draft: Draft,
        existing: Mapping[str, ValueSnapshot],
        ids: Mapping[str, ValueId],
        functions: Collection[FuncId],
    ) -> None:
        self._draft = draft
        self._existing = existing
        self._ids = ids
        self._names = {value_id: name for name, value_id in ids.items()}
        computed = {value.func_id for value in existing.values() if value.status == _OK}
        self._functions = computed.union(functions)

    def plan(self, removed: list[str]) -> LoadPlan:
        changes, updates, functions = [], [], dict[str, Function]()
        for name in removed:
            before = self._existing[name]
            changes.append(PlannedChange(name, "removed", "value", before.value, None))
            updates.append(RemoveValue(value_id=before.id))
        puts: list[AnyUpdate] = []
        for name, definition in self._draft.definitions.items():
            for change, update in self._difference(name, definition):
                changes.append(change)
                puts.append(update)
            if isinstance(definition, Computed):
                func_id = _function_id(definition.function)
                if func_id not in self._functions and definition.function.func_id is None:
                    functions[func_id] = definition.function
        defined = [_defined(function, func_id) for func_id, function in functions.items()]
        unchanged = len(self._draft.definitions) - len(puts)
        return LoadPlan(tuple(changes), (*updates, *defined, *puts), unchanged)

    def _difference(
        self, name: str, definition: Definition
    ) -> Iterator[tuple[PlannedChange, AnyUpdate]]:
        before = self._existing.get(name)
        if isinstance(definition, Source):
            yield from self._source_difference(name, definition, before)
        elif isinstance(definition, Computed):
            yield from self._computed_difference(name, definition, before)

    def _source_difference(
        self, name: str, source: Source, before: ValueSnapshot | None
    ) -> Iterator[tuple[PlannedChange, AnyUpdate]]:
        value_id, value = self._ids[name], source.value
        put = PutValue(value_id=value_id, name=name, value=value)
        if before is None:
            yield PlannedChange(name, "added", "value", None, value), put
        elif before.func_id is not None:
            raise is_computed(name, (self._names.get(each, each) for each in before.input_ids()))
        elif not json_equal(before.value, value):
            update = SetValue(value_id=value_id, value=value)
            yield PlannedChange(name, "changed", "value", before.value, value), update

    def _computed_difference(
        self, name: str, computed: Computed, before: ValueSnapshot | None
    ) -> Iterator[tuple[PlannedChange, AnyUpdate]]:
        value_id, function = self._ids[name], computed.function
        inputs = _renamed(computed.inputs, partial(self._input_id, name))
        func_id = _function_id(function)
        put = PutValue(value_id=value_id, name=name, func_id=func_id, inputs=inputs)
        if before is None:
            yield PlannedChange(name, "added", "function", None, function.name), put
        elif before.func_id != func_id:
            was = before.value if before.func_id is None else "another function"
            yield PlannedChange(name, "changed", "function", was, function.name), put
        elif func_id not in self._functions:
            yield PlannedChange(name, "changed", "function", "none", function.name), put
        elif (before.inputs or {}) != inputs:
            was = _renamed(before.inputs or {}, lambda each: self._names.get(each, each))
            change = PlannedChange(name, "changed", "inputs", was, dict(computed.inputs))
            yield change, SetInputs(value_id=value_id, inputs=inputs)

    def _input_id(self, name: str, given: str) -> ValueId:
        found = self._ids.get(given)
        if found is None:
            removed = given in self._existing or given in self._draft.removed
            raise InvalidDraft(
                f"{name!r} is computed from {given!r}, which is removed: leave it out of the inputs"
                if removed
                else f"{name!r} is computed from {given!r}, and no value is called so: define it"
            )
        return found


def _renamed(
    inputs: Mapping[str, str | list[str]], rename: Callable[[str], str]
) -> dict[str, str | list[str]]:
    return {
        argument: rename(given) if isinstance(given, str) else [*map(rename, given)]
        for argument, given in inputs.items()
    }
