"""Presentation of services: the state of a key, and its page."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

import orjson
from aiohttp import web

from rebaser_client.display import cut
from rebaser_client.reader import LogEntry, read_log
from rebaser_client.workspaces import AddressBook
from rebaser_core.calls import (
    CallRequest,
    CallRequestV1,
    StateQuery,
    StateQueryV1,
    StateReply,
    StateReplyV1,
    TimerState,
    key_of,
)
from rebaser_core.errors import MessageError, NoSuchChangeSet
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import Question
from rebaser_core.records import utc_text
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.handlers.checkpoints import content_of
from rebaser_server.ops.dead_letters import DeadLetter, NotReplayable, latest_of
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.queue_pages import answering, change_set_asked, rows_asked
from rebaser_server.processor.context import Services
from rebaser_server.queries.query_service import QueryKind

_STATES: Final = Question("states", StateQuery, StateReply, {})

_MAX_STATE: Final = 20_000
"""Maximum number of characters of a state that is shown."""
_MAX_TEXT: Final = 500
"""Maximum number of characters of arguments and results."""
_LISTED: Final = 20
"""Maximum number of waiting calls, and of dead letters, that are listed."""


class ServicePresentation(Presentation):
    """The queries and pages of services: the state of a key, and what became of its calls."""

    of_services: ClassVar = True

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def queries(self) -> Sequence[QueryKind[Any, Any]]:
        return [QueryKind(_STATES, self._states)]

    async def _states(
        self, query: StateQueryV1, headers: Mapping[str, str]
    ) -> AsyncGenerator[StateReplyV1, None]:
        del headers
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        yield _state(query.id, await self._load(change_set))

    async def _load(self, change_set: ChangeSet) -> State:
        # From log and checkpoint: a run holds its own state for as long as a handler takes.
        services, log = self._services, CommitLog(self._services.streams, change_set)
        loader = StateLoader(change_set, log, services.batches, services.application)
        return await loader.load()

    def routes(self, addresses: AddressBook) -> list[web.RouteDef]:
        return [web.get("/services/key", answering(partial(self._key, addresses)))]

    async def _key(self, addresses: AddressBook, request: web.Request) -> Any:
        """All about the key that is named, or has these ids."""
        streams, asked = self._services.streams, change_set_asked(request)
        if asked is None:
            service, key = (request.query.get(each, "") for each in ("service", "key"))
            asked = key_of(service, key)
        else:
            record = await Registry(streams).change_set(asked)
            service, key = await addresses.name_of(asked.workspace_id), record.name
            if asked != key_of(service, key):
                raise NoSuchChangeSet(f"{service}/{key} is no key of a service")
        rows = rows_asked(request)
        loaded, entries, letters, waiting, requests, dead = await asyncio.gather(
            self._load(asked),
            read_log(streams, asked, limit=rows + 1),
            latest_of(streams, asked, _LISTED),
            _first_calls(streams, asked),
            streams.js.stream_subjects(streams.requests_stream, streams.requests(asked)),
            streams.js.stream_subjects(streams.dead_letters_stream, streams.dead_letters(asked)),
        )
        if not (entries or letters or waiting or loaded.commit):
            raise NoSuchChangeSet(f"key {key!r} of service {service!r} was never called")
        about = _state(RequestId(), loaded)
        state = json.dumps(about.state, indent=2, ensure_ascii=False)
        return {
            **asked.plain(),
            "service": service,
            "key": key,
            "commit": about.commit,
            "state": None if about.state is None else cut(state, _MAX_STATE),
            "stateSize": len(state),
            "stateVersion": about.state_version,
            "timers": [each.to_wire() for each in about.timers],
            "sending": about.sending,
            "waiting": waiting,
            "waitingCount": sum(requests.values()),
            "letters": [_letter(each) for each in letters],
            "letterCount": sum(dead.values()),
            "calls": [_settled(each) for each in entries[: -rows - 1 : -1]],
            "areMore": len(entries) > rows,
        }


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


async def _first_calls(streams: Streams, change_set: ChangeSet) -> list[dict[str, Any]]:
    """The calls that wait, the next one first, at most `_LISTED`."""
    found, stream, sequence = list[dict[str, Any]](), streams.requests_stream, 0
    while len(found) < _LISTED:
        message = await streams.js.get_message(
            stream, sequence=sequence + 1, next_by_subject=streams.requests(change_set)
        )
        if message is None:
            break
        sequence = message.sequence
        row = {"sequence": sequence, "stored": utc_text(message.time), "request": None}
        try:
            call = CallRequest.decode(message.headers, message.payload)
            row |= {"request": str(call.id), "call": _call(call)}
        except MessageError as error:
            row["call"] = str(error)
        found.append(row)
    return found


def _letter(letter: DeadLetter) -> dict[str, Any]:
    row = letter.summary() | {"request": None, "call": ""}
    with suppress(NotReplayable):  # and has no words
        request = letter.request()
        if isinstance(request, CallRequestV1):
            row |= {"request": str(request.id), "call": _call(request)}
    return row


def _call(call: CallRequestV1) -> str:
    """Say in one line what the call asks for, as in Python."""
    given = call.arguments
    pairs = given.items() if isinstance(given, dict) else [("", each) for each in given]
    arguments = ", ".join(
        f"{name}{name and '='}{json.dumps(each, ensure_ascii=False)}" for name, each in pairs
    )
    text = f"{call.handler}({arguments})"
    if call.timer is not None:
        text = f"timer {call.timer.name}: {text}"
    elif call.cancel is not None:
        text = f"cancel timer {call.cancel}"
    elif call.firing is not None:
        text = f"timer {call.firing.name}"
    return cut(text, _MAX_TEXT)


def _settled(entry: LogEntry) -> dict[str, Any]:
    row, call = entry.as_dict(), entry.call
    row.pop("call", None)  # its effect may be large
    result = "" if call is None else json.dumps(call.result, ensure_ascii=False)
    return row | {"handler": call and call.handler, "result": cut(result, _MAX_TEXT)}
