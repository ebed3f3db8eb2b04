"""The state of a change set as of one commit of its log."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from rebaser_core.commits import NO_REQUEST, CommitV1, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.messages import Inline, UpdatesAddress
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase.edits import Edits
from rebaser_server.values.rebase.edits_json import edits_from_json, edits_to_json

MAX_RECENT: Final = 1_000
"""Requests remembered by id: more than a client can have in doubt within its retry horizon."""

_EXTERNAL_BATCHES: Final = TypeAdapter(list[tuple[int, UpdatesAddress]])


class BranchOrigin(NamedTuple):
    """Where a branch began, while its own log does not say so."""

    cursor: int
    """Commit of head's log that its base included."""
    lost: str | None = None
    """Why the base cannot be loaded; the branch is empty then."""


class RecentRequest(NamedTuple):
    """What the state keeps of a settled request; the request's commit has the rest."""

    commit: int
    outcome: RequestOutcome


@dataclass(slots=True)
class State:
    """The whole state of one change set; only `advance` and `apply_batch` change it."""

    graph: Graph = field(default_factory=Graph)
    control: ControlState = field(default_factory=ControlState)
    commit: int = 0
    """Sequence of the last commit that the state includes."""
    recent: OrderedDict[RequestId, RecentRequest] = field(default_factory=OrderedDict)
    """Oldest first."""
    external_batches: list[tuple[int, UpdatesAddress]] = field(default_factory=list)
    """Commits whose batch is not inline, and its address: deleted after the commit is purged."""
    edits: Edits | None = None
    """A branch's own edits; None for a change set that is no branch."""
    origin: BranchOrigin | None = None
    """Set for a branch that was loaded from its base, or from a checkpoint that has an origin."""

    @property
    def cursor(self) -> int:
        """The last commit of head's log that a branch includes."""
        branch = self.control.branch
        known = None if branch is None else branch.cursor
        return known if known is not None else self.origin.cursor if self.origin else 0

    @property
    def is_unstarted_branch(self) -> bool:
        """Whether it is a branch whose own log does not yet say where it began."""
        branch = self.control.branch
        return self.origin is not None and branch is not None and branch.cursor is None

    def advance(self, commit: CommitV1, sequence: int) -> None:
        """Take over the control record of `commit`, whose updates the graph already includes."""
        closed = (
            commit.control.closing is not None and commit.control.closing.standing != "applying"
        )
        if commit.control.clean_sequence > self.control.clean_sequence and not closed:
            # A closed branch keeps its roots: a fork of it computes them.
            self.graph.clear_roots(commit.control.clean_sequence)
        self.control = commit.control
        self.commit = sequence
        if commit.handled is not None:
            self._remember(commit.handled, sequence)

    def _remember(self, handled: SettledRequest, sequence: int) -> None:
        if handled.outcome is not RequestOutcome.DUPLICATE and handled.sequence != NO_REQUEST:
            self.recent[handled.id] = RecentRequest(sequence, handled.outcome)
            while len(self.recent) > MAX_RECENT:
                self.recent.popitem(last=False)
        if handled.updates is not None and not isinstance(handled.updates, Inline):
            self.external_batches.append((sequence, handled.updates))

    def metadata(self) -> dict[str, Any]:
        """Return all but the graph, as plain data for a checkpoint."""
        edits = {} if self.edits is None else {"edits": edits_to_json(self.edits, self.graph)}
        origin = {"origin": self.origin.cursor} if self.origin and self.is_unstarted_branch else {}
        return {
            **edits,
            **origin,
            "head": self.control.model_dump(mode="json", by_alias=True),
            "recent": [[str(i), known.commit, known.outcome] for i, known in self.recent.items()],
            "stored": _EXTERNAL_BATCHES.dump_python(
                self.external_batches, mode="json", by_alias=True
            ),
        }

    @classmethod
    def from_checkpoint(cls, graph: Graph, commit: int, small: dict[str, Any]) -> "State":
        """Build the state from a checkpoint of commit `commit`."""
        stored = _EXTERNAL_BATCHES.validate_python(small["stored"])
        head = ControlState.model_validate(small["head"])
        edits = edits_from_json(small["edits"], graph) if "edits" in small else None
        origin = BranchOrigin(small["origin"]) if "origin" in small else None
        return cls(graph, head, commit, recent_requests_in(small), stored, edits, origin)


def recent_requests_in(small: dict[str, Any]) -> OrderedDict[RequestId, RecentRequest]:
    """Read the recent requests from the `State.metadata` of a checkpoint."""
    return OrderedDict(
        (RequestId.from_str(i), RecentRequest(entry, RequestOutcome(outcome)))
        for i, entry, outcome in small["recent"]
    )
