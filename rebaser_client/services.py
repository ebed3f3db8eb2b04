"""Services of others: call a handler for a key, now or later, and read the key's state.

order = client.service("orders").key("o-17")
count = await order.call("add", "cup")
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, Protocol

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from rebaser_client.errors import (
    CallRejected,
    CallTimeout,
    NoSuchService,
    OutcomeUnknown,
    ReadRefused,
)
from rebaser_client.reader import QuerySender
from rebaser_client.requests import RequestSender, settled
from rebaser_core import codecs
from rebaser_core.calls import (
    SERVICE_VERSION,
    CallRequest,
    CallRequestV1,
    ServiceRecordV1,
    StateQuery,
    StateQueryV1,
    StateReply,
    TimerChange,
    TimerState,
    arguments_violation,
    key_of,
    service_id,
    timer_change,
)
from rebaser_core.errors import MalformedMessage, NoSuchChangeSet, TooLarge
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.messages import EnqueueUpdatesResponseV3, RequestState
from rebaser_core.registry import Registry, validated_name
from rebaser_core.versioning import AUTHOR, CONTENT_TYPE, MESSAGE_ID, first_error


class DeclaredService(Protocol):
    """A service as its own program declares it: `rebaser_server.Service` is one."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a key as of a commit.

    Example:
        print((await order.state()).value)
    """

    value: Any
    """State as plain data; None: the key was never called with effect."""
    commit: int
    """Sequence of the last commit; 0: there is none."""
    version: int
    """Version of its shape."""
    timers: Sequence[TimerState]
    sending: int
    """Number of calls to other keys that are not confirmed yet."""


class ServiceHandle:
    """A service: its keys are `key(…)`. Nothing is sent until one is called.

    Example:
        described = await client.service("orders").describe()
        print(sorted(described.handlers))
    """

    def __init__(
        self, sender: RequestSender, registry: Registry, service: str | DeclaredService
    ) -> None:
        self._sender = sender
        self._registry = registry
        self._version: int | None = None
        if isinstance(service, str):
            self.name = service
        else:
            self.name, self._version = service.name, service.version
        self._described: ServiceRecordV1 | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def key(self, key: str) -> "KeyHandle":
        """The key of that name. No request.

        Raises:
            MalformedMessage: it cannot be a name: empty, beyond 200 characters, or with control
                characters.
        """
        return KeyHandle(self._sender, self, key)

    async def describe(self) -> ServiceRecordV1:
        """Handlers with JSON schemas of their arguments and results, as a worker wrote them.

        Raises:
            NoSuchService: no worker ever served it.
        """
        try:
            self._described = await self._registry.service(service_id(self.name))
        except NoSuchChangeSet:
            names = []
            if not self._sender.streams.js.is_imported:  # where clients may read no list
                names = [each.name async for each in self._registry.services()]
            close = get_close_matches(self.name, names, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            known = f"; there is {', '.join(sorted(names))}" if names and not close else ""
            raise NoSuchService(
                f"no worker ever served a service {self.name!r}{meant}{known}"
            ) from None
        return self._described

    async def version(self, handler: str | None = None) -> int:
        """The version to call it as: that of the program's own declaration, or of the description.

        With a `handler`, a description that lacks it is read anew first. No worker need
        serve a service of the program's own yet: its calls wait for one.

        Raises:
            NoSuchService: no worker ever served it.
            MalformedMessage: no handler can have that name.
            CallRejected: it has no such handler; nothing was sent.
        """
        if self._version is not None:
            if handler is not None and not _is_handler_name(handler):
                raise MalformedMessage(f"{handler!r:.80} is no name of a handler")
            return self._version
        described = self._described or await self.describe()
        if handler is None:
            return described.version
        if handler not in described.handlers:  # it may be newer than what is known here
            described = await self.describe()
        if handler not in described.handlers:
            close = get_close_matches(handler, described.handlers, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            known = ", ".join(sorted(described.handlers))
            raise CallRejected(f"{self.name} has no handler {handler}, but {known}{meant}")
        return described.version


class KeyHandle:
    """A key of a service: its calls are made one after the other.

    Example:
        order = client.service("orders").key("o-17")
        print(await order.call("add", "cup"))
    """

    def __init__(self, sender: RequestSender, service: ServiceHandle, key: str) -> None:
        self.service: Final = service
        self.key: Final = key
        self._sender = sender
        try:
            self._change_set = key_of(service.name, key)
        except (UnicodeEncodeError, AttributeError):  # half of a surrogate pair, or no text
            raise MalformedMessage(f"{key!r:.80} of {service.name!r:.80} is no name") from None
        try:  # the one check of both names; the request of a call is built without
            CallRequestV1(
                id=RequestId(),
                **self._change_set._asdict(),
                service=service.name,
                key=key,
                handler="_",
                arguments=[],
                service_version=1,
            )
        except ValidationError as error:
            raise MalformedMessage(
                f"key {key!r:.80} of {service.name!r:.80}: {first_error(error)}"
            ) from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.service.name}/{self.key}>"

    async def call(
        self,
        handler: str,
        /,
        *arguments: Any,
        returns: Any = None,
        request_id: RequestId | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - what it leaves behind is said below
        **named: Any,
    ) -> Any:
        """Call a handler; return what it returned, once that is committed.

        A cancelled call, or one that takes too long, takes effect all the same once it is stored:
        `outcome` asks for its answer.

        Args:
            handler: its name.
            *arguments: by position; or else by name, in `named`.
            returns: type that the result is made into, by pydantic; the default is plain data.
            request_id: of a call that is repeated: it has no second effect.
            timeout: seconds to wait for the answer; None: as long as it takes.
            **named: arguments by name.

        Raises:
            CallRejected: final, nothing was changed: the handler said why, or it does not take such
                a call.
            RequestIdUsed: another call was sent under the id before; this one was not made.
            RequestDead: final, nothing was changed: the handler failed each time.
            CallTimeout: there was no answer in time.
            OutcomeUnknown: a repeated call was settled so long ago that its answer is forgotten.
            NotConfirmed, QueueFull: it is not stored, perhaps, or surely.
            NoSuchService, MalformedMessage, TooLarge: nothing was sent.
        """
        sent = RequestId() if request_id is None else RequestId.of(request_id, "request_id")
        encoded = await self._encode(sent, handler, arguments, named, None)
        reply = await self._sender.send_encoded_with_reply(self._change_set, sent, *encoded)
        try:
            async with deadlines.within(timeout):
                response = await reply
        except TimeoutError:
            raise CallTimeout(self.service.name, self.key, handler, sent, timeout) from None
        return _result(response, returns)

    async def send(
        self,
        handler: str,
        /,
        *arguments: Any,
        at: datetime | None = None,
        after: timedelta | float | None = None,
        every: str | None = None,
        zone: str | None = None,
        missed: Literal["once", "skip"] = "once",
        timer: str | None = None,
        request_id: RequestId | str | None = None,
        **named: Any,
    ) -> RequestId:
        """Store a call, which is made in its turn, or at a time; return its request's id.

        With a time, it returns once the timer is set: a key may have any number, by name.

        Args:
            handler: its name.
            *arguments: by position; or else by name, in `named`.
            at: time of the call, with a zone.
            after: seconds, or a duration, until the call.
            every: times of calls, in five fields of cron.
            zone: time zone of `every`, by its name in the database of zones; the default is UTC.
            missed: whether times of `every` that pass while no worker runs are made up by one call.
            timer: name of the timer; one of that name is replaced. The default is the request's id,
                and `every` takes a name.
            request_id: of a call that is repeated: it has no second effect.
            **named: arguments by name.

        Raises:
            CallRejected: the service has no such handler, or the timer cannot be set; nothing was
                changed.
            NotConfirmed, QueueFull: it is not stored, perhaps, or surely.
            NoSuchService, MalformedMessage, TooLarge: nothing was sent.
        """
        sent = RequestId() if request_id is None else RequestId.of(request_id, "request_id")
        change = timer_change(
            timer, sent, at=at, after=after, every=every, zone=zone, missed=missed
        )
        encoded = await self._encode(sent, handler, arguments, named, change)
        if change is None:
            await self._sender.send_encoded(self._change_set, *encoded)
        else:
            reply = await self._sender.send_encoded_with_reply(self._change_set, sent, *encoded)
            settled(await reply, CallRejected)
        return sent

    async def cancel(self, timer: str) -> None:
        """Cancel a timer.

        Raises:
            CallRejected: there is none of that name: it may have made its call.
            NoSuchService, MalformedMessage: nothing was sent.
        """
        sent, name = RequestId(), validated_name(timer)
        version = await self.service.version()
        encoded = self._encoded(sent, "_", [], version, {"cancel": name})
        reply = await self._sender.send_encoded_with_reply(self._change_set, sent, *encoded)
        settled(await reply, CallRejected)

    async def timers(self) -> Sequence[TimerState]:
        """The timers that are set. Raises as `state`."""
        return (await self.state()).timers

    async def state(self) -> KeyState:
        """The state as of the last commit.

        Raises:
            Unreachable: no worker answered.
            ReadRefused: a worker refused, and said why.
        """
        streams = self._sender.streams
        asker = QuerySender(
            streams.js,
            StateQuery,
            StateReply,
            self._sender.options.content_type,
            lambda reply: reply.error,
        )
        query = StateQueryV1(id=RequestId(), **self._change_set._asdict())
        [reply] = await asker.ask(streams.states(self._change_set), query)
        return KeyState(
            reply.state, reply.commit, reply.state_version, tuple(reply.timers), reply.sending
        )

    async def outcome(self, request_id: RequestId | str, *, returns: Any = None) -> Any:
        """Outcome of an earlier call: its result, or its error, as `call`.

        Raises:
            CallTimeout: it waits.
            OutcomeUnknown: it was never stored, or is forgotten.
            CallRejected, RequestDead: as `call`.
            Unreachable: no worker answered.
        """
        asked = RequestId.of(request_id, "request_id")
        reply = await self._sender.outcome(self._change_set, asked)
        if reply.response is not None:
            return _result(reply.response, returns)
        if reply.state is RequestState.UNKNOWN:
            raise OutcomeUnknown(
                f"request {asked} of {self.service.name}/{self.key} is neither waiting nor "
                "remembered: it was never stored, or settled long ago"
            )
        raise CallTimeout(self.service.name, self.key, None, asked, None)

    async def _encode(
        self,
        sent: RequestId,
        handler: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        timer: TimerChange | None,
    ) -> tuple[dict[str, str], bytes]:
        if arguments and named:
            raise MalformedMessage("give arguments by position or by name, not some of each")
        version = await self.service.version(handler)
        plain = _plain(named or list(arguments), handler)
        more = {} if timer is None else {"timer": timer.to_wire()}
        return self._encoded(sent, handler, plain, version, more)

    def _encoded(
        self, sent: RequestId, handler: str, plain: Any, version: int, more: Mapping[str, Any]
    ) -> tuple[dict[str, str], bytes]:
        content_type = self._sender.options.content_type
        # Plain data: it was checked, or is our own. A model for each call takes as long as the
        # rest of it.
        body: dict[str, Any] = {
            "id": str(sent),
            "workspaceId": str(self._change_set.workspace_id),
            "changeSetId": str(self._change_set.change_set_id),
            "service": self.service.name,
            "key": self.key,
            "handler": handler,
            "arguments": plain,
            **more,
        }
        payload = codecs.dumps(content_type, {_VERSION: body})
        violation = arguments_violation(handler, plain, len(payload))
        if violation is not None:
            raise TooLarge(violation)
        headers = _HEADERS | {CONTENT_TYPE: content_type, MESSAGE_ID: str(sent)}
        headers[SERVICE_VERSION] = str(version)
        if self._sender.options.author is not None:
            headers[AUTHOR] = self._sender.options.author
        return headers, payload


_VERSION: Final = f"v{CallRequestV1.VERSION}"
_HEADERS: Final = CallRequest.headers(codecs.CBOR)
_is_handler_name: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}").fullmatch


def _plain(arguments: Any, handler: str) -> Any:
    try:
        plain = to_jsonable_python(arguments)
        codecs.validate_json(plain)
    except (MalformedMessage, ValueError, TypeError, RecursionError) as error:
        raise MalformedMessage(f"the arguments of {handler} are no JSON: {error}") from error
    return plain


def _result(response: EnqueueUpdatesResponseV3, returns: Any) -> Any:
    result = settled(response, CallRejected).result
    if returns is None:
        return result
    try:
        return TypeAdapter(returns).validate_python(result)
    except ValidationError as error:
        raise ReadRefused(f"the result is no {returns}: {first_error(error)}") from None
