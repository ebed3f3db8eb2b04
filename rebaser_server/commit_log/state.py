"""The state of a change set as of one commit of its log."""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from rebaser_core.commits import NO_REQUEST, CommitV1, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.messages import Inline, UpdatesAddress
from rebaser_server.commit_log.content import Checkpoint, Content
from rebaser_server.commit_log.recent_requests import RecentRequests

_EXTERNAL_BATCHES: Final = TypeAdapter(list[tuple[int, UpdatesAddress]])


@dataclass(slots=True)
class State:
    """The whole state of one change set; only `advance` and `content.apply` change it."""

    content: Content
    control: ControlState = field(default_factory=ControlState)
    commit: int = 0
    """Sequence of the last commit that the state includes."""
    commit_id: RequestId | None = None
    """Its id; None if the checkpoint that the state was loaded from does not name it."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    external_batches: list[tuple[int, UpdatesAddress]] = field(default_factory=list)
    """Commits whose batch is not inline, and its address: deleted after the commit is purged."""

    def advance(self, commit: CommitV1, sequence: int) -> None:
        """Take over the control record of `commit`, whose batch the content already includes."""
        closed = (
            commit.control.closing is not None and commit.control.closing.standing != "applying"
        )
        if commit.control.clean_sequence > self.control.clean_sequence and not closed:
            # A closed branch keeps what was left to do: a fork of it does it.
            self.content.complete(commit.control.clean_sequence)
        self.control = commit.control
        self.commit, self.commit_id = sequence, commit.id
        if commit.handled is not None:
            self._remember(commit, commit.handled, sequence)

    def _remember(self, commit: CommitV1, handled: SettledRequest, sequence: int) -> None:
        if handled.outcome is not RequestOutcome.DUPLICATE and handled.sequence != NO_REQUEST:
            stored, digest = commit.id.milliseconds, commit.request_digest
            self.recent.remember(handled.id, sequence, handled.outcome, stored, digest)
        if handled.updates is not None and not isinstance(handled.updates, Inline):
            self.external_batches.append((sequence, handled.updates))

    def metadata(self) -> dict[str, Any]:
        """Return all but the content, as plain data for a checkpoint."""
        return {
            "commitId": None if self.commit_id is None else str(self.commit_id),
            "head": self.control.model_dump(mode="json", by_alias=True),
            **self.recent.metadata(),
            "stored": _EXTERNAL_BATCHES.dump_python(
                self.external_batches, mode="json", by_alias=True
            ),
        }

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "State":
        """Build the state that a checkpoint holds."""
        metadata, commit_id = checkpoint.metadata, checkpoint.metadata.get("commitId")
        return cls(
            checkpoint.content,
            ControlState.model_validate(metadata["head"]),
            checkpoint.commit,
            None if commit_id is None else RequestId.from_str(commit_id),
            RecentRequests.from_metadata(metadata),
            _EXTERNAL_BATCHES.validate_python(metadata["stored"]),
        )
