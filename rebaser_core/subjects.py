"""Where messages travel: streams and subjects, all of them behind one optional prefix."""

from dataclasses import dataclass
from typing import Final

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId

TASKS_CONSUMER: Final = "rebaser-tasks"

_REQUEST_TOKENS: Final = 4
_TASK_TOKENS: Final = 5


@dataclass(frozen=True, slots=True)
class Subjects:
    """Names: `P_REBASER_REQUESTS` and `P.rebaser.requests.…` for prefix P."""

    prefix: str | None = None

    def stream(self, name: str) -> str:
        return f"{self.prefix}_{name}" if self.prefix else name

    def subject(self, *tokens: object) -> str:
        return ".".join(map(str, ((self.prefix,) if self.prefix else ()) + tokens))

    @property
    def requests_stream(self) -> str:
        return self.stream("REBASER_REQUESTS")

    @property
    def tasks_stream(self) -> str:
        return self.stream("REBASER_TASKS")

    @property
    def commits_stream(self) -> str:
        return self.stream("REBASER_COMMITS")

    @property
    def dead_letters_stream(self) -> str:
        return self.stream("REBASER_DEAD_LETTERS")

    @property
    def batches_bucket(self) -> str:
        return self.stream("REBASER_BATCHES")

    def requests(self, change_set: ChangeSet) -> str:
        return self.subject("rebaser", "requests", *change_set)

    def task(self, change_set: ChangeSet) -> str:
        return self.subject("rebaser", "tasks", *change_set, "process")

    def commits(self, change_set: ChangeSet) -> str:
        return self.subject("rebaser", "commits", *change_set)

    def dead_letters(self, change_set: ChangeSet) -> str:
        return self.subject("rebaser", "dead-letters", *change_set)

    def activities(self, change_set: ChangeSet) -> str:
        return self.subject("rebaser", "activities", *change_set)

    def change_set_of(self, subject: str) -> ChangeSet:
        """The change set that a request's, commit's or task's subject names.

        Raises:
            UnknownSubject: not `rebaser.<kind>.<ULID>.<ULID>[.process]` behind our prefix.
        """
        prefix = f"{self.prefix}." if self.prefix else ""
        tokens = subject.removeprefix(prefix).split(".")
        task = len(tokens) == _TASK_TOKENS and tokens[4] == "process"
        try:
            if not subject.startswith(prefix) or not (task or len(tokens) == _REQUEST_TOKENS):
                raise ValueError("wrong number of tokens")
            return ChangeSet(WorkspaceId.from_str(tokens[2]), ChangeSetId.from_str(tokens[3]))
        except ValueError as error:
            raise UnknownSubject(f"{subject[:200]!r} names no change set: {error}") from error
