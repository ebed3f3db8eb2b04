"""The values of a change set that failed, and which of them a request affected."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rebaser_client.errors import ClientError
from rebaser_client.outcomes.failures import MissingResults, read_missing_results
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment

_LISTED: Final = 5
"""Failed values that are named for people at most."""


class FailuresUnknown(RebaserError):
    """The request is committed and computed, but no Rebaser replied whether values failed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The values that failed, as of the last commit, in the words of commands."""

    missing: MissingResults

    @property
    def affected(self) -> int:
        """How many failed because of the request."""
        return len(self.missing.failed)

    def plain(self) -> dict[str, Any]:
        """As plain data, for programs."""
        return {
            "failed": self.affected + len(self.missing.failed_before),
            "blocked": len(self.missing.blocked),
            "failedByThis": [
                {"id": value.id, "name": value.name, "message": value.message}
                for value in self.missing.failed
            ],
        }

    def lines(self) -> list[str]:
        """Lines for people; an empty list if no value failed."""
        missing, count = self.missing, self.affected
        lines = [
            f"  {value.name or value.id}: {value.message}" for value in missing.failed[:_LISTED]
        ]
        if count:
            blocked = len(missing.blocked)
            lines.insert(0, f"{_values(count)} failed by this, {blocked:,} blocked:")
        if count > _LISTED:
            lines.append(f"  and {count - _LISTED:,} more: `rebaser dvu status`")
        if missing.failed_before:
            others = "others" if count else "of this change set"
            lines.append(f"{_values(len(missing.failed_before))} {others} had failed before")
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
    reader = deployment.client.reader(*change_set)
    try:
        return Failures(await read_missing_results(reader, None if everything else commit, changed))
    except ClientError as error:
        raise FailuresUnknown(
            f"commit {commit} is computed, but it is unknown whether values failed: {error}; "
            "`rebaser dvu status ADDRESS` reads that from the store"
        ) from error
