"""An action of the page: who may do it, what it is asked with, and what it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rebaser_client.client import RebaserClient
from rebaser_client.registry import Registry
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import WireModel
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.queries.state_cache import OpenLoader, StateCache
from rebaser_server.settings.settings import Role


class NotAllowed(RebaserError):
    """The visitor's role does not include what the action takes; nothing was done."""


class ActionInvalid(RebaserError):
    """What was asked for makes no sense; nothing was done."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """What one action works with, in the name of one visitor."""

    js: JetStream
    subjects: Subjects
    batches: BatchStore
    open_loader: OpenLoader
    states: StateCache
    client: RebaserClient
    """Names the visitor as the author of what it sends."""
    author: str
    role: Role

    @property
    def registry(self) -> Registry:
        """Workspaces and change sets."""
        return Registry(self.js, self.subjects)

    def require(self, role: Role, what: str) -> None:
        """Raise `NotAllowed` unless the visitor may do what takes `role`."""
        if not self.role.includes(role):
            raise NotAllowed(
                f"{what} takes the role {role.value}, and {self.author} is {self.role.value}"
            )


class OfChangeSet(WireModel):
    """What an action on one change set is asked with, at least."""

    workspace: WorkspaceId
    change_set: ChangeSetId

    @property
    def target(self) -> ChangeSet:
        """The change set."""
        return ChangeSet(self.workspace, self.change_set)


B = TypeVar("B", bound=WireModel)

Perform = Callable[[ActionContext, B], Awaitable[str]]
"""Does it; returns a sentence that says what was done.

It raises what the client and the readers raise.
"""


@dataclass(frozen=True, slots=True)
class Action(Generic[B]):
    """One thing that a visitor can have done."""

    role: Role
    """The least that it takes; a change set's kind may take more."""
    body: type[B]
    perform: Perform[B]
