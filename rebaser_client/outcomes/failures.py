"""Values that have no result: which failed, because of which request, and which are blocked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rebaser_client.errors import ClientError
from rebaser_client.value_reader import ChangeSetReader
from rebaser_core.queries import ValueSnapshot
from rebaser_core.updates import LazyUpdates, PutFunc, RemoveFunc

FAILED: Final = "failed"
BLOCKED: Final = "blocked"

Values = tuple[ValueSnapshot, ...]


@dataclass(frozen=True, slots=True)
class MissingResults:
    """Values without a result, as of the last commit."""

    failed: Values
    """Those whose failure the request explains: they depend on its values, or are new failures."""
    failed_before: Values
    """Those that had failed before the request."""
    blocked: Values
    """Values that are not computed because one of their inputs failed."""
    affected_blocked: Values = field(default=(), kw_only=True)
    """Blocked values that depend on what the request changed; all, if its commit is not given."""


async def read_missing_results(
    reader: ChangeSetReader, commit: int | None = None, changed: Iterable[str] = ()
) -> MissingResults:
    """The values without a result, split by whether the request of that commit affected them.

    `changed`: names or ids of the values, and ids of the functions, that the request changed.
    Without a commit, all failures are in `failed`.

    Raises:
        ClientError: as `ChangeSetReader.values`.
    """
    values = await reader.values()
    failed = tuple(value for value in values.values() if value.status == FAILED)
    blocked = tuple(value for value in values.values() if value.status == BLOCKED)
    if not failed or commit is None:
        return MissingResults(failed, (), blocked, affected_blocked=blocked)
    changed_ids = {values[each].id if each in values else each for each in changed}
    affected = dependents_of(changed_ids, values)
    unaffected = [value.id for value in failed if value.id not in affected]
    if unaffected:
        affected |= {*unaffected} - await _failed_before(reader, commit, unaffected)
    return MissingResults(
        tuple(value for value in failed if value.id in affected),
        tuple(value for value in failed if value.id not in affected),
        blocked,
        affected_blocked=tuple(value for value in blocked if value.id in affected),
    )


async def _failed_before(reader: ChangeSetReader, commit: int, value_ids: list[str]) -> set[str]:
    """Those that had failed before the commit; none if that past is not retained."""
    try:
        before = await reader.values(*value_ids, at=max(0, commit - 1))
    except ClientError:
        return set()
    return {value.id for value in before.values() if value.status == FAILED}


def dependents_of(changed: set[str], values: Mapping[str, ValueSnapshot]) -> set[str]:
    """The changed values and functions, and the values that depend on them."""
    dependents: dict[str, list[str]] = {}
    for value in values.values():
        for source in _sources(value):
            dependents.setdefault(source, []).append(value.id)
    reached, front = set(changed), list(changed)
    while front:
        front = [
            value_id
            for source in front
            for value_id in dependents.get(source, ())
            if value_id not in reached
        ]
        reached.update(front)
    return reached


def _sources(value: ValueSnapshot) -> Iterable[str]:
    if value.func_id is not None:
        yield value.func_id
    for argument in (value.inputs or {}).values():
        yield from [argument] if isinstance(argument, str) else argument


def changed_by(updates: Iterable[Any]) -> set[str]:
    """Ids of the values and functions that updates, as classes or as the wire has them, change."""
    ids = set()
    for update in updates.to_wire() if isinstance(updates, LazyUpdates) else updates:
        plain = update if isinstance(update, dict) else update.to_wire()
        for kind, body in plain.items():
            key = "funcId" if kind in (PutFunc.KIND, RemoveFunc.KIND) else "valueId"
            ids.add(body.get(key) if isinstance(body, dict) else None)
    return {each for each in ids if isinstance(each, str)}
