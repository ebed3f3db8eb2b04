"""The values of a change set that failed, and which of them a request affected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rebaser_client.errors import ClientError
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.value_query import ReadValue
from rebaser_server.commands.support.deployment import Deployment

_FAILED: Final = "failed"
_BLOCKED: Final = "blocked"
_LISTED: Final = 5
"""Failed values that are named for people."""


class FailuresUnknown(RebaserError):
    """The request is committed and computed, and no Rebaser said whether values failed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The values that failed, as of the last commit."""

    affected: list[ReadValue]
    """Those that the request affected: they depend on what it changed, or had not failed before."""
    others: list[ReadValue]
    blocked: int
    """Values that have none because others failed."""

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
        """What people are told; nothing if no value failed."""
        count = len(self.affected)
        told = [f"  {value.name or value.id}: {value.message}" for value in self.affected[:_LISTED]]
        if count:
            told.insert(0, f"{_values(count)} failed by this, {self.blocked:,} blocked:")
        if count > _LISTED:
            told.append(f"  and {count - _LISTED:,} more: `rebaser dvu status`")
        if self.others:
            others = "others" if count else "of this change set"
            told.append(f"{_values(len(self.others))} {others} had failed before")
        return told


def _values(count: int) -> str:
    return f"{count:,} value{'' if count == 1 else 's'}"


async def failures(
    at: Deployment,
    change_set: ChangeSet,
    commit: int,
    changed: Iterable[str],
    *,
    everything: bool = False,
) -> Failures:
    """What failed, once nothing is due, of what the request behind `commit` affected.

    `changed`: names or ids of the values, and ids of the functions, that it named; with
    `everything` it affected all that failed. A Rebaser is asked, so that no store is needed.

    Raises:
        FailuresUnknown: no Rebaser could say; the request is committed and computed.
    """
    try:
        values = await at.client.reader(*change_set).values()
    except ClientError as error:
        raise FailuresUnknown(
            f"commit {commit} is computed, but not known is whether values failed: {error}; "
            "`rebaser dvu status WORKSPACE CHANGE_SET` reads it from the store"
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
    unsure = [value.id for value in failed if value.id not in affected]
    if unsure:
        affected |= {*unsure} - await _failed_before(at, change_set, commit, unsure)
    return Failures(
        [value for value in failed if value.id in affected],
        [value for value in failed if value.id not in affected],
        blocked,
    )


async def _failed_before(
    at: Deployment, change_set: ChangeSet, commit: int, which: list[str]
) -> set[str]:
    """Those that had failed by the commit before; of a past that is not kept, none had."""
    try:
        before = await at.client.reader(*change_set).values(*which, at=max(0, commit - 1))
    except ClientError:
        return set()
    return {value.id for value in before.values() if value.status == _FAILED}


def _dependents(values: Mapping[str, ReadValue], changed: set[str]) -> set[str]:
    """The values that depend on those, themselves included."""
    users: dict[str, list[str]] = {}
    for value in values.values():
        for each in _sources(value):
            users.setdefault(each, []).append(value.id)
    reached, front = set(changed), list(changed)
    while front:
        front = [user for each in front for user in users.get(each, ()) if user not in reached]
        reached.update(front)
    return reached


def _sources(value: ReadValue) -> Iterable[str]:
    if value.func_id is not None:
        yield value.func_id
    for given in (value.inputs or {}).values():
        yield from [given] if isinstance(given, str) else given


def changed_by(updates: Iterable[Any]) -> set[str]:
    """Ids of the values and functions that updates, as the wire has them, define or change."""
    found = set()
    for update in updates:
        for kind, body in update.items() if isinstance(update, dict) else ():
            key = "funcId" if kind in ("putFunc", "removeFunc") else "valueId"
            found.add(body.get(key) if isinstance(body, dict) else None)
    return {each for each in found if isinstance(each, str)}
