"""Actions over HTTP: posted to `/actions/…` as JSON, and done by the role of the token."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiohttp import web
from pydantic import ValidationError

from rebaser_client.client import RebaserClient
from rebaser_client.errors import NoSuchChangeSet, NotConfirmed, Unreachable
from rebaser_client.requests import ReplyInbox
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, RebaserError
from rebaser_core.jetstream import JetStreamError, deadlines
from rebaser_core.versioning import WireModel, first_error
from rebaser_server.ops.actions.action import Action, ActionContext, ActionInvalid, NotAllowed
from rebaser_server.ops.actions.branch_actions import BRANCH_ACTIONS
from rebaser_server.ops.actions.dead_letters import NoSuchLetter
from rebaser_server.ops.actions.operator_actions import OPERATOR_ACTIONS
from rebaser_server.ops.auth import Guard, Visitor
from rebaser_server.processor.context import Services
from rebaser_server.queries.state_cache import StateCache

log: Final = structlog.get_logger()

ACTIONS: Final[Mapping[str, Action[Any]]] = BRANCH_ACTIONS | OPERATOR_ACTIONS

WITHIN: Final = 20.0
"""Seconds for an action to be done; what was enqueued by then takes effect later."""

_FOREIGN: Final = (
    "Actions take the header Content-Type: application/json, and come from this page.\n"
)
_WAITS: Final = "enqueued, and not handled yet: it waits behind other requests, or for a resume"


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: int
    text: str


class ActionService:
    """Checks who asks, does it, and logs it."""

    def __init__(
        self, services: Services, replies: ReplyInbox, states: StateCache, guard: Guard
    ) -> None:
        self._services = services
        self._replies = replies
        self._states = states
        self._guard = guard

    def routes(self) -> list[web.RouteDef]:
        """The actions, and `/identity`: who the visitor is and what the visitor may do."""
        return [
            web.get("/identity", self._identity),
            *(web.post(f"/actions/{name}", self._act) for name in ACTIONS),
        ]

    async def _identity(self, request: web.Request) -> web.Response:
        visitor = self._visitor(request)
        may = [name for name, action in ACTIONS.items() if visitor.role.includes(action.role)]
        return web.json_response({"name": visitor.name, "role": visitor.role.value, "may": may})

    async def _act(self, request: web.Request) -> web.Response:
        # A page of another site can send neither this type nor an honest header without asking.
        if (
            request.content_type != "application/json"
            or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        ):
            return web.Response(status=403, text=_FOREIGN)
        visitor, name = self._visitor(request), request.path.rpartition("/")[2]
        action = ACTIONS[name]
        try:
            asked = codecs.loads(codecs.JSON, await request.read())
            body: WireModel = action.body.from_wire(asked)
        except ValidationError as error:
            return web.Response(status=400, text=f"{first_error(error)}\n")
        except MalformedMessage as error:
            return web.Response(status=400, text=f"the body: {error}\n")
        outcome = await self._outcome(action, visitor, name, body)
        facts = {"action": name, "author": visitor.name, "role": visitor.role.value}
        level = log.warning if outcome.status == web.HTTPForbidden.status_code else log.info
        level(
            "action",
            **facts,
            asked=json.dumps(body.to_wire(), default=str)[:1_000],
            status=outcome.status,
            outcome=outcome.text,
        )
        if outcome.status >= web.HTTPBadRequest.status_code:
            return web.Response(status=outcome.status, text=f"{outcome.text}\n")
        return web.json_response({"said": outcome.text}, status=outcome.status)

    def _visitor(self, request: web.Request) -> Visitor:
        visitor = self._guard.visitor(request)
        if visitor is None:
            raise web.HTTPUnauthorized  # the guard has admitted none such
        return visitor

    async def _outcome(
        self, action: Action[Any], visitor: Visitor, name: str, body: WireModel
    ) -> _Outcome:
        context = self._context(visitor)
        try:
            context.require(action.role, name)
            async with deadlines.within(WITHIN):
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
            services.js,
            self._replies,
            prefix=services.subjects.prefix,
            limits=services.settings.batch_limits,
            author=visitor.name,
        )
        return ActionContext(
            services.js,
            services.subjects,
            services.batches,
            services.loader,
            self._states,
            client,
            visitor.name,
            visitor.role,
        )
