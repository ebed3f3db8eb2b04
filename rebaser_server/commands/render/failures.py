"""The values of a change set that failed, and which of them a request affected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rebaser_client.errors import ClientError
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.value_query import ValueSnapshot
from rebaser_server.commands.support.deployment import Deployment

_FAILED: Final = "failed"
_BLOCKED: Final = "blocked"
_LISTED: Final = 5
"""Failed values that are named for people at most."""


class FailuresUnknown(RebaserError):
    """The request is committed and computed, but no Rebaser replied whether values failed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The values that failed, as of the last commit."""

    affected: list[ValueSnapshot]
    """Those that the request affected: they depend on its values, or had not failed before."""
    others: list[ValueSnapshot]
    blocked: int
    """Values that are not computed because one of their inputs failed."""

    def plain(self) -> dict[str, Any]:
        """As plain data, for programs."""
        return {
            "failed": len(self.affected) + len(self.others),
            "blocked": self.blocked,
            "failedByThis": [
                {"id": value.id, "name": value.name, "message": value.message}
                for value in self.affected
            ],
        }

    def lines(self) -> list[str]:
        """Lines for people; an empty list if no value failed."""
        count = len(self.affected)
        lines = [
            f"  {value.name or value.id}: {value.message}" for value in self.affected[:_LISTED]
        ]
        if count:
            lines.insert(0, f"{_values(count)} failed by this, {self.blocked:,} blocked:")
        if count > _LISTED:
            lines.append(f"  and {count - _LISTED:,} more: `rebaser dvu status`")
        if self.others:
            others = "others" if count else "of this change set"
            lines.append(f"{_values(len(self.others))} {others} had failed before")
        return lines


def _values(count: int) -> str:
    return f"{count:,} value{'' if count == 1 else 's'}"


async def failures(
    deployment: Deployment,
    change_set: ChangeSet,
    commit: int,
    changed: Iterable[str],
    *,
    everything: bool = False,
) -> Failures:
    """The failed values, once no update is due, split by whether the request affected them.

    `commit` is the request's. `changed`: names or ids of the values, and ids of the functions,
    that it changed; with `everything` it affected all that failed. A Rebaser answers, so that
    the command needs no access to the store.

    Raises:
        FailuresUnknown: no Rebaser answered; the request is committed and computed.
    """
    try:
        values = await deployment.client.reader(*change_set).values()
    except ClientError as error:
        raise FailuresUnknown(
            f"commit {commit} is computed, but it is unknown whether values failed: {error}; "
            "`rebaser dvu status WORKSPACE CHANGE_SET` reads that from the store"
        ) from error
    failed = [value for value in values.values() if value.status == _FAILED]
    blocked = sum(value.status == _BLOCKED for value in values.values())
    if not failed:
        return Failures([], [], blocked)
    if everything:
        return Failures(failed, [], blocked)
    affected = _dependents(
        values, {values[each].id if each in values else each for each in changed}
    )
    unaffected = [value.id for value in failed if value.id not in affected]
    if unaffected:
        before = await _failed_before(deployment, change_set, commit, unaffected)
        affected |= {*unaffected} - before
    return Failures(
        [value for value in failed if value.id in affected],
        [value for value in failed if value.id not in affected],
        blocked,
    )


async def _failed_before(
    deployment: Deployment, change_set: ChangeSet, commit: int, value_ids: list[str]
) -> set[str]:
    """Those that had failed before the commit; none if that past is not retained."""
    try:
        before = await deployment.client.reader(*change_set).values(
            *value_ids, at=max(0, commit - 1)
        )
    except ClientError:
        return set()
    return {value.id for value in before.values() if value.status == _FAILED}


def _dependents(values: Mapping[str, ValueSnapshot], changed: set[str]) -> set[str]:
    """The changed values and those that depend on them."""
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
    """Ids of the values and functions that updates, as the wire has them, define or change."""
    ids = set()
    for update in updates:
        for kind, body in update.items() if isinstance(update, dict) else ():
            key = "funcId" if kind in ("putFunc", "removeFunc") else "valueId"
            ids.add(body.get(key) if isinstance(body, dict) else None)
    return {each for each in ids if isinstance(each, str)}
