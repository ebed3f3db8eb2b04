"""The values of a change set that failed, and which of them a request affected."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rebaser_client.errors import ClientError
from rebaser_client.outcomes import MissingResults, Values, read_missing_results
from rebaser_core.errors import RebaserError, many
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment

_LISTED: Final = 5
"""Failed values that are named for people at most."""

_NOT_INSTALLED: Final = "is installed here"
"""Part of the message of a value whose function is missing: "no Python function … is …"."""


class FailuresUnknown(RebaserError):
    """The request is committed and computed, but no Rebaser replied whether values failed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The values that failed, as of the last commit, in the words of commands."""

    missing: MissingResults
    address: str
    """Address of the change set, for the next command."""
    named: frozenset[str] = frozenset()
    """Names and ids of the values that the command names."""

    @property
    def affected(self) -> int:
        """How many failed because of the request."""
        return len(self.missing.failed)

    @property
    def stand(self) -> bool:
        """Whether anything that the command names or changed has no result now."""
        missing = self.missing
        return bool(missing.failed or missing.affected_blocked or self._named_before)

    @property
    def _named_before(self) -> Values:
        """Values that the command names, and that had no result before it."""
        missing = self.missing
        return tuple(
            value
            for value in (*missing.failed_before, *missing.blocked)
            if not self.named.isdisjoint((value.id, value.name))
        )

    def plain(self) -> dict[str, Any]:
        """As plain data, for programs."""
        return {
            "failed": self.affected + len(self.missing.failed_before),
            "blocked": len(self.missing.blocked),
            "failedByThis": [
                {"id": value.id, "name": value.name, "message": value.message}
                for value in self.missing.failed
            ],
            "standing": [
                {"id": value.id, "name": value.name, "message": value.message}
                for value in self._named_before
            ],
        }

    def lines(self) -> list[str]:
        """Lines for people; an empty list if no value failed."""
        missing, count = self.missing, self.affected
        lines = _listed(missing.failed)
        if count:
            blocked = len(missing.blocked)
            lines.insert(0, f"{many(count, 'value')} failed by this, {blocked:,} blocked:")
        if count > _LISTED:
            lines.append(f"  and {count - _LISTED:,} more: `rebaser dvu status {self.address}`")
        standing = self._named_before
        if standing:
            found = many(len(standing), "value")
            lines.append(f"{found} of those named had no result before, and have none:")
            lines += _listed(standing)
        if missing.failed_before:
            others = "others" if count else "of this change set"
            lines.append(f"{many(len(missing.failed_before), 'value')} {others} had failed before")
        return lines + self._next_step()

    def _next_step(self) -> list[str]:
        """Advice about values that are failed or blocked."""
        if not self.stand:
            return []
        every = (*self.missing.failed, *self.missing.failed_before)
        is_missing = any(_NOT_INSTALLED in (value.message or "") for value in every)
        cause = "`pip install` the function's package" if is_missing else "remove the cause"
        return [f"{cause}, then: `rebaser dvu run {self.address} --failed`"]


def _listed(values: Values) -> list[str]:
    """A line for each of the first few."""
    return [
        f"  {value.name or value.id}: {value.message or value.status}" for value in values[:_LISTED]
    ]


async def failures(
    deployment: Deployment,
    change_set: ChangeSet,
    commit: int,
    changed: Iterable[str],
    *,
    everything: bool = False,
    named: Iterable[str] = (),
) -> Failures:
    """The failed values, once no update is due, split by whether the request affected them.

    `commit` is the request's. `changed`: names or ids of the values, and ids of the functions,
    that it changed; with `everything` it affected all that failed. `named`: names or ids of more
    values, which the command names. A Rebaser answers, so that
    the command needs no access to the store.

    Raises:
        FailuresUnknown: no Rebaser answered; the request is committed and computed.
    """
    reader = deployment.client.reader(*change_set)
    try:
        missing = await read_missing_results(reader, None if everything else commit, changed)
    except ClientError as error:
        raise FailuresUnknown(
            f"commit {commit} is computed, but it is unknown whether values failed: {error}; "
            "`rebaser dvu status ADDRESS` reads that from the store"
        ) from error
    address = shlex.quote(await deployment.client.addresses.address_of(change_set))
    return Failures(missing, address, frozenset(named))
