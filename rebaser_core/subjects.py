"""Streams and subjects of a deployment, all of them behind one optional prefix."""

import re
from dataclasses import dataclass
from typing import Final

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId

TASKS_CONSUMER: Final = "rebaser-tasks"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIXES: Final[dict[str, list[str]]] = {
    "requests": [],
    "tasks": ["process"],
    "commits": [],
    "dead-letters": [],
    "activities": [],
    "outcomes": [],
    "states": [],
    "values": [],
    "tables": [],
    "table-differences": [],
    "provenance": [],
    "differences": [],
    "reverts": [],
    "cancellations": [],
}
"""Kind of subject → what follows the change set in it."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """Names: `P_REBASER_REQUESTS` and `P.rebaser.requests.…` for prefix P."""

    prefix: str | None = None

    def __post_init__(self) -> None:
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise ValueError(f"prefix {self.prefix[:80]!r} is not {_PREFIX.pattern}")

    def prefixed(self, name: str) -> str:
        return f"{self.prefix}_{name}" if self.prefix else name

    def join(self, *tokens: object) -> str:
        return ".".join(map(str, ((self.prefix,) if self.prefix else ()) + tokens))

    def _of(self, change_set: ChangeSet, kind: str) -> str:
        begin = f"{self.prefix}.rebaser" if self.prefix else "rebaser"
        return f"{begin}.{kind}.{change_set.workspace_id}.{change_set.change_set_id}"

    @property
    def requests_stream(self) -> str:
        return self.prefixed("REBASER_REQUESTS")

    @property
    def tasks_stream(self) -> str:
        return self.prefixed("REBASER_TASKS")

    @property
    def commits_stream(self) -> str:
        return self.prefixed("REBASER_COMMITS")

    @property
    def dead_letters_stream(self) -> str:
        return self.prefixed("REBASER_DEAD_LETTERS")

    @property
    def alarms_stream(self) -> str:
        return self.prefixed("REBASER_ALARMS")

    @property
    def batches_bucket(self) -> str:
        return self.prefixed("REBASER_BATCHES")

    @property
    def change_sets_bucket(self) -> str:
        return self.prefixed("REBASER_CHANGE_SETS")

    @property
    def pauses_bucket(self) -> str:
        return self.prefixed("REBASER_PAUSES")

    @property
    def store_bucket(self) -> str:
        return self.prefixed("REBASER_STORE")

    def requests(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "requests")

    def task(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "tasks") + ".process"

    def commits(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "commits")

    def dead_letters(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "dead-letters")

    def outcomes(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "outcomes")

    def states(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "states")

    def queries(self, change_set: ChangeSet, kind: str) -> str:
        return self._of(change_set, kind)

    def cancellations(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "cancellations")

    def activities(self, change_set: ChangeSet) -> str:
        return self._of(change_set, "activities")

    def parse_change_set(self, subject: str) -> ChangeSet:
        """Return the change set in a subject of any of our kinds.

        Raises:
            UnknownSubject: it is not as we write it, behind our prefix and with canonical ULIDs.
        """
        try:
            ours = self.join("rebaser.")
            if not subject.startswith(ours):
                raise ValueError(f"it does not start with {ours}")
            kind, workspace_id, change_set_id, *end = subject.removeprefix(ours).split(".", 4)
            if end != _SUFFIXES.get(kind):
                raise ValueError("no such kind")
            return ChangeSet(
                WorkspaceId.from_str(workspace_id), ChangeSetId.from_str(change_set_id)
            )
        except ValueError as error:
            raise UnknownSubject(f"{subject[:200]!r} names no change set: {error}") from error
