"""Actions of the page: what people and operators may do over HTTP.

An action is posted to `/actions/…` as JSON, and takes a role of the visitor's token. Operators
pause and resume, cancel updates, replay dead letters: the work of `rebaser pause` and others. What
people do to the content of change sets is the application's, as in `value_actions`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog
from aiohttp import web
from pydantic import ValidationError

from rebaser_client.client import RebaserClient
from rebaser_client.requests import ReplyInbox
from rebaser_core import codecs
from rebaser_core.errors import (
    MalformedMessage,
    NoSuchChangeSet,
    NotConfirmed,
    RebaserError,
    Unreachable,
)
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStreamError, deadlines
from rebaser_core.records import PauseScope
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.versioning import WireModel, first_error
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state_loader import OpenLoader
from rebaser_server.ops.answers import cancel_update
from rebaser_server.ops.auth import Guard, Visitor
from rebaser_server.ops.dead_letters import NoSuchLetter, replay
from rebaser_server.processor.context import Services
from rebaser_server.settings.settings import Role


class NotAllowed(RebaserError):
    """The visitor's role does not include what the action takes; nothing was done."""


class ActionInvalid(RebaserError):
    """The action's body makes no sense; nothing was done."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Services that one action works with, in the name of one visitor."""

    streams: Streams
    batches: BatchStore
    open_loader: OpenLoader
    client: RebaserClient
    """Client that names the visitor as the author of its requests."""
    author: str
    role: Role

    @property
    def registry(self) -> Registry:
        return Registry(self.streams)

    def require(self, role: Role, what: str) -> None:
        """Raise `NotAllowed` unless the visitor's role includes `role`; `what` names the action."""
        if not self.role.includes(role):
            raise NotAllowed(
                f"{what} takes the role {role.value}, and {self.author} is {self.role.value}"
            )


class OfChangeSet(WireModel):
    """Body of an action on one change set."""

    workspace: WorkspaceId
    change_set: ChangeSetId

    @property
    def target(self) -> ChangeSet:
        return ChangeSet(self.workspace, self.change_set)


B = TypeVar("B", bound=WireModel)

Perform = Callable[[ActionContext, B], Awaitable[str]]
"""Function that does the action and returns a sentence about what was done.

Errors of the client and the readers pass through.
"""


@dataclass(frozen=True, slots=True)
class Action(Generic[B]):
    """An action that visitors can request."""

    role: Role
    """Role that it takes; a change set's kind may take more."""
    body: type[B]
    perform: Perform[B]


class OfComment(OfChangeSet):
    text: str


async def comment(context: ActionContext, body: OfComment) -> str:
    """Add a comment, as `rebaser change-sets describe --comment` does."""
    try:
        await context.client.change_set(*body.target).comment(body.text)
    except MalformedMessage as error:
        raise ActionInvalid(str(error)) from None
    return "the comment is stored"


_MAX_REASON: Final = 500  # characters


class OfLetter(WireModel):
    number: int


class OfScope(WireModel):
    """Scope of a pause: a change set, without it a workspace, without both everything."""

    workspace: WorkspaceId | None = None
    change_set: ChangeSetId | None = None
    reason: str | None = None

    @property
    def scope(self) -> PauseScope:
        """Scope as the store of pauses has it."""
        if self.workspace is None and self.change_set is not None:
            raise ActionInvalid("a change set is named by its workspace and itself")
        return PauseScope(self.workspace, self.change_set)


async def _replay_letter(context: ActionContext, body: OfLetter) -> str:
    """Replay a dead letter, as `rebaser dead-letters replay` does."""
    request = await replay(context.streams, context.batches, context.client, body.number)
    return f"dead letter {body.number} is enqueued again as request {request}"


async def pause(context: ActionContext, body: OfScope) -> str:
    """Pause a scope, as `rebaser pause` does."""
    reason = (body.reason or "").strip()[:_MAX_REASON] or None
    store = PauseStore(context.streams)
    await store.pause(body.scope, by=context.author, reason=reason)
    return f"{_scope_text(body.scope)} is paused; Rebasers finish the requests in hand"


async def resume(context: ActionContext, body: OfScope) -> str:
    """Resume a scope, as `rebaser resume` does."""
    store = PauseStore(context.streams)
    before = await store.of(body.scope)
    tasks = await store.resume(body.scope)
    outcome = "is resumed" if before else "was not paused"
    return f"{_scope_text(body.scope)} {outcome}; change sets with work: {tasks}"


def _scope_text(scope: PauseScope) -> str:
    if scope.change_set_id is not None:
        return "the change set"
    return "everything" if scope.workspace_id is None else "the workspace"


async def cancel(context: ActionContext, body: OfChangeSet) -> str:
    """Cancel an update, as `rebaser dvu cancel` does."""
    cancelled = await cancel_update(context.streams, body.target)
    if cancelled is None:
        return "no Rebaser works on this change set"
    if not cancelled:
        return "no update of this change set runs"
    return "cancelled; the update stays due, and Rebaser tries it again a minute later"


async def checkpoint(context: ActionContext, body: OfChangeSet) -> str:
    """Request a checkpoint, as `rebaser checkpoint` does, without waiting for the store."""
    commit = await context.client.change_set(*body.target).checkpoint()
    return f"the checkpoint of commit {commit} is being written"


ACTIONS: Final[Mapping[str, Action[Any]]] = {
    "comment": Action(Role.EDITOR, OfComment, comment),
    "replay": Action(Role.OPERATOR, OfLetter, _replay_letter),
    "pause": Action(Role.OPERATOR, OfScope, pause),
    "resume": Action(Role.OPERATOR, OfScope, resume),
    "cancel": Action(Role.OPERATOR, OfChangeSet, cancel),
    "checkpoint": Action(Role.OPERATOR, OfChangeSet, checkpoint),
}
"""Actions that each application has, by the last part of their paths, `/actions/…`."""


log: Final = structlog.get_logger()

_WITHIN: Final = 20.0
"""Seconds for an action to be done; a request that was enqueued by then takes effect later."""

_FOREIGN: Final = (
    "Actions take the header Content-Type: application/json, and come from this page.\n"
)
_WAITS: Final = (
    "not done yet: what was enqueued by now waits behind other requests, or for a resume; the log "
    "of the change set shows it once it is done"
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: int
    text: str


class ActionService:
    """Checks who asks, performs the action, and logs it."""

    def __init__(
        self,
        services: Services,
        replies: ReplyInbox,
        guard: Guard,
        of_application: Mapping[str, Action[Any]],
    ) -> None:
        """Offer the actions that each application has, and those of this one."""
        self._actions = {**of_application, **ACTIONS}
        self._services = services
        self._replies = replies
        self._guard = guard

    def routes(self) -> list[web.RouteDef]:
        """The actions, and `/identity`: who the visitor is and what the visitor may do."""
        return [
            web.get("/identity", self._identity),
            *(web.post(f"/actions/{name}", self._act) for name in self._actions),
        ]

    async def _identity(self, request: web.Request) -> web.Response:
        visitor = self._guard.admitted(request)
        may = [name for name, action in self._actions.items() if visitor.role.includes(action.role)]
        return web.json_response({"name": visitor.name, "role": visitor.role.value, "may": may})

    async def _act(self, request: web.Request) -> web.Response:
        # A page of another site can send neither this type nor an honest header without asking.
        if (
            request.content_type != "application/json"
            or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        ):
            return web.Response(status=403, text=_FOREIGN)
        visitor, name = self._guard.admitted(request), request.path.rpartition("/")[2]
        action = self._actions[name]
        try:
            asked = codecs.loads(codecs.JSON, await request.read())
            body: WireModel = action.body.from_wire(asked)
        except ValidationError as error:
            return web.Response(status=400, text=f"{first_error(error)}\n")
        except MalformedMessage as error:
            return web.Response(status=400, text=f"the body: {error}\n")
        outcome = await self._outcome(action, visitor, name, body)
        level = log.warning if outcome.status == web.HTTPForbidden.status_code else log.info
        level(
            "action",
            action=name,
            author=visitor.name,
            role=visitor.role.value,
            asked=json.dumps(body.to_wire(), default=str)[:1_000],
            status=outcome.status,
            outcome=outcome.text,
        )
        if outcome.status >= web.HTTPBadRequest.status_code:
            return web.Response(status=outcome.status, text=f"{outcome.text}\n")
        return web.json_response({"said": outcome.text}, status=outcome.status)

    async def _outcome(
        self, action: Action[Any], visitor: Visitor, name: str, body: WireModel
    ) -> _Outcome:
        context = self._context(visitor)
        try:
            context.require(action.role, name)
            async with deadlines.within(_WITHIN):
                return _Outcome(200, await action.perform(context, body))
        except NotAllowed as error:
            return _Outcome(403, str(error))
        except ActionInvalid as error:
            return _Outcome(400, str(error))
        except TimeoutError:
            return _Outcome(202, _WAITS)
        except (Unreachable, NotConfirmed, JetStreamError, OSError) as error:
            return _Outcome(503, str(error))
        except RebaserError as error:
            is_missing = isinstance(error, NoSuchLetter | NoSuchChangeSet)
            return _Outcome(404 if is_missing else 409, str(error))

    def _context(self, visitor: Visitor) -> ActionContext:
        services = self._services
        client = RebaserClient(
            services.streams.js,
            self._replies,
            prefix=services.streams.prefix,
            limits=services.settings.batch_limits,
            author=visitor.name,
        )
        who = visitor.name, visitor.role
        return ActionContext(services.streams, services.batches, services.loader, client, *who)
