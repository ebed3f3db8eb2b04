"""Presentation of services: the state of a key."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import orjson

from rebaser_core.calls import StateQuery, StateQueryV1, StateReply, StateReplyV1, TimerState
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.handlers.checkpoints import content_of
from rebaser_server.ops.presentation import Presentation
from rebaser_server.processor.context import Services
from rebaser_server.queries.query_service import QueryKind


class ServicePresentation(Presentation):
    """The queries of services: the state of a key."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def queries(self) -> Sequence[QueryKind[Any, Any]]:
        return [QueryKind("states", StateQuery, StateReply, self._states, _no_state)]

    async def _states(
        self, query: StateQueryV1, headers: Mapping[str, str]
    ) -> AsyncGenerator[StateReplyV1, None]:
        del headers
        services, change_set = self._services, ChangeSet(query.workspace_id, query.change_set_id)
        # From log and checkpoint: a run holds its own state for as long as a handler takes.
        log = CommitLog(services.streams, change_set)
        loader = StateLoader(change_set, log, services.batches, services.application)
        yield _state(query.id, await loader.load())


def _state(asked: RequestId, state: State) -> StateReplyV1:
    content = content_of(state)
    return StateReplyV1(
        id=asked,
        commit=state.commit,
        key=content.key or None,
        state=None if content.state is None else orjson.loads(content.state),
        state_version=content.version,
        timers=[
            TimerState(
                name=name,
                handler=timer.handler,
                next=timer.next,
                every=timer.every,
                zone=timer.zone,
            )
            for name, timer in sorted(content.timers.items(), key=lambda each: each[1].next)
        ],
        sending=len(content.outgoing),
    )


def _no_state(asked: RequestId, reason: str) -> StateReplyV1:
    return StateReplyV1(id=asked, error=reason)
