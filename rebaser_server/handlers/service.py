"""Declarations that users write: a service, its state, its handlers.

orders = Service("orders")

@orders.state
class Order:
    items: list[str] = field(default_factory=list)

@orders.handler
async def add(ctx: Context[Order], item: str) -> int:
    ctx.state.items.append(item)
    return len(ctx.state.items)
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import Any, Final, Generic, TypeVar, dataclass_transform, overload

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from rebaser_core import codecs
from rebaser_core.calls import (
    ServiceRecordV1,
    TimerChange,
    derived_id,
    service_id,
    timer_change,
)
from rebaser_core.errors import MalformedMessage, RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.records import RecordName
from rebaser_core.versioning import first_error

StateT = TypeVar("StateT")
ClassT = TypeVar("ClassT", bound=type)
Handle = TypeVar("Handle", bound=Callable[..., Any])

TIMEOUT: Final = 60.0
"""Seconds that a call may take, unless its handler says otherwise."""
STATE_BYTES: Final = 256 * 1024
"""Maximum size of a key's state, as JSON: each call that changes it writes all of it to the log."""
RESULT_BYTES: Final = 256 * 1024
"""Maximum size of what a handler returns, as JSON."""
MAX_SENDS: Final = 1_000
"""Maximum number of calls that one call sends or timers that it sets, and of those it cancels."""
SENDS_BYTES: Final = 256 * 1024
"""Maximum size of the arguments of all of these, as JSON."""

_NAME: Final = TypeAdapter(RecordName)
_is_handler_name: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}").fullmatch


class Reject(Exception):
    """Refuse the call: final, nothing is changed or sent, and the caller reads the reason.

    Example:
        raise Reject("the order is paid")
    """


class ServiceMisused(RebaserError, TypeError):
    """A service is declared, or used by a handler, as it cannot work; the message says how."""


class CallRefused(RebaserError):
    """The call cannot be made as it was asked for; final, and no fault of the handler."""


class CallUnkeepable(RebaserError):
    """The result or the state that a handler left cannot be kept: no JSON, or too large. Final."""


class Context(Generic[StateT]):
    """One call, as its handler sees it.

    All that the handler does with it takes effect together, once it returns, and exactly once: the
    state, what is sent, the timers, and the answer. If it raises, none does.
    """

    def __init__(
        self,
        state: StateT,
        service: str,
        key: str,
        request_id: RequestId,
        time: datetime,
        author: str | None,
    ) -> None:
        self.state = state
        """State of the key: change it, or assign another."""
        self.service: Final = service
        self.key: Final = key
        self.request_id: Final = request_id
        """Id of the call, the same each time it is tried: give it to others as the key of an effect
        outside, which may be tried more than once."""
        self.time: Final = time
        """Time at which NATS stored the call, in UTC: the same each time it is tried."""
        self.author: Final = author
        """Author that the caller named, unchecked."""
        self.sends: Final[list[Send]] = []
        """Calls that leave with this one's commit."""
        self.cancelled: Final[list[str]] = []
        """Timers of the key that this call cancels."""

    def to(self, key: str, service: str | None = None) -> "OtherKey":
        """Return another key, of this service or another one, to send calls to.

        Example:
            ctx.to("p-7", "payments").send("charge", 3)
        """
        return OtherKey(self.sends, service or self.service, key)

    def send(self, handler: str, /, *arguments: Any, **options: Any) -> None:
        """Call a handler of this very key later: see `OtherKey.send`."""
        self.to(self.key).send(handler, *arguments, **options)

    def cancel(self, timer: str) -> None:
        """Cancel a timer of this key, one that this call set, too; no error if there is none.

        Raises:
            ServiceMisused: no timer can have that name, or it is one too many.
        """
        if len(self.cancelled) >= MAX_SENDS:
            raise ServiceMisused(f"a call cancels at most {MAX_SENDS:,} timers")
        self.cancelled.append(_checked(timer, "timer"))
        self.sends[:] = [each for each in self.sends if not self._sets(each, timer)]

    def _sets(self, send: "Send", timer: str) -> bool:
        is_own = (send.service, send.key) == (self.service, self.key)
        return is_own and send.timer is not None and send.timer.name == timer


class OtherKey:
    """A key other than the call's, as a handler sends calls to it."""

    def __init__(self, sends: "list[Send]", service: str, key: str) -> None:
        self._sends = sends
        self._service = _checked(service, "service")
        self._key = _checked(key, "key")

    def send(
        self,
        handler: str,
        /,
        *arguments: Any,
        at: datetime | None = None,
        after: timedelta | float | None = None,
        every: str | None = None,
        zone: str | None = None,
        missed: typing.Literal["once", "skip"] = "once",
        timer: str | None = None,
        **named: Any,
    ) -> None:
        """Send a call, which leaves with the commit of this one: all or none, in order, once each.

        Args:
            handler: of the target's service.
            *arguments: by position; or else by name, in `named`.
            at: time of the call, with a zone.
            after: seconds, or a duration, until the call: from `Context.time`; of another key from
                when its request is stored.
            every: times of calls, in five fields of cron.
            zone: time zone of `every`, UTC by default.
            missed: whether times of `every` that pass while no worker runs are made up by one call.
            timer: name of the timer that `at`, `after` and `every` set; one of that name is
                replaced. The default is a new name, and none for `every`.
            **named: arguments by name.

        Raises:
            ServiceMisused: the arguments contradict each other, or are no JSON.
        """
        if arguments and named:
            raise ServiceMisused("give arguments by position or by name, not some of each")
        if not _is_handler_name(handler):
            raise ServiceMisused(f"{handler!r:.80} is no name of a handler")
        if len(self._sends) >= MAX_SENDS:
            raise ServiceMisused(f"a call sends at most {MAX_SENDS:,} others")
        try:
            change = timer_change(
                timer, RequestId(), at=at, after=after, every=every, zone=zone, missed=missed
            )
        except MalformedMessage as error:
            raise ServiceMisused(str(error)) from None
        text = _json(named or list(arguments), f"the arguments of {handler}")
        self._sends.append(Send(self._service, self._key, handler, text, change))


@dataclass(frozen=True, slots=True)
class Send:
    """A call that a handler sends."""

    service: str
    key: str
    handler: str
    arguments: str
    """A list or an object, as JSON."""
    timer: TimerChange | None = None


def _checked(name: str, what: str) -> str:
    try:
        return _NAME.validate_python(name, strict=True)
    except ValidationError as error:
        why = first_error(error).removeprefix("the body: ")
        raise ServiceMisused(f"{name!r:.80} is no name of a {what}: {why}") from error


_NO_NULLS: Final = ConfigDict(ser_json_inf_nan="constants")
_ANY: Final = TypeAdapter[Any](Any, config=_NO_NULLS)


def _json(value: Any, what: str) -> str:
    """Return the value as JSON that every reader keeps.

    Raises:
        ServiceMisused: it is no JSON, or too large.
    """
    try:
        return dump(_ANY, value, what, SENDS_BYTES)[1]
    except CallUnkeepable as error:
        raise ServiceMisused(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    adapter: TypeAdapter[Any]
    required: bool
    kind: inspect._ParameterKind


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of parameters that callers may give by name."""


class Handler:
    """A function that is called for a key."""

    def __init__(self, function: Callable[..., Any], name: str, timeout: float) -> None:
        self.name = name
        self.function = function
        if type(timeout) not in (int, float) or not timeout > 0:  # so is what is no number
            raise ServiceMisused(
                f"handler {name}: timeout {timeout!r:.40} is no number of seconds above 0"
            )
        self.timeout = timeout
        self.is_async = inspect.iscoroutinefunction(function)
        self.place = f"{function.__module__}.{function.__qualname__}"
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ServiceMisused(
                f"handler {name}: its first parameter is the context: `def {name}(ctx, …)`"
            )
        self._raw = parameters[1:]
        self._signature = inspect.Signature(self._raw)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise ServiceMisused(f"handler {self.name}: an annotation names {error}") from error

    @cached_property
    def parameters(self) -> Sequence[_Parameter]:
        """The parameters behind the context."""
        return [
            _Parameter(
                each.name,
                _adapter(self._hints.get(each.name, Any), f"{self.name}, parameter {each.name}"),
                each.default is inspect.Parameter.empty,
                each.kind,
            )
            for each in self._raw
        ]

    @cached_property
    def result(self) -> TypeAdapter[Any]:
        return _adapter(self._hints.get("return", Any), f"{self.name}, its result")

    def prepare(self) -> None:
        """Look at all annotations, so that a mistake is found before the first call."""
        _ = self.parameters, self.result

    def bind(self, given: Sequence[Any] | Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as the parameters have them.

        Raises:
            CallRefused: they do not fit; the message says which.
        """
        try:
            if isinstance(given, Mapping):
                bound = self._signature.bind(**given)
            else:
                bound = self._signature.bind(*given)
        except TypeError as error:
            raise CallRefused(f"{self.name}{self._signature}: {error}") from None
        for each in self.parameters:
            if each.name not in bound.arguments:
                continue
            value = bound.arguments[each.name]
            bound.arguments[each.name] = self._convert(each, value)
        return list(bound.args), bound.kwargs

    def _convert(self, parameter: _Parameter, value: Any) -> Any:
        try:
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return tuple(parameter.adapter.validate_python(each) for each in value)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                return {
                    name: parameter.adapter.validate_python(each) for name, each in value.items()
                }
            return parameter.adapter.validate_python(value)
        except ValidationError as error:
            why = first_error(error).removeprefix("the body: ")
            raise CallRefused(f"{self.name}, argument {parameter.name}: {why}") from None

    def plain_result(self, returned: Any) -> Any:
        """Return what the handler returned as plain data. Raises `CallUnkeepable`."""
        return dump(self.result, returned, f"what {self.name} returned", RESULT_BYTES)[0]

    def describe(self) -> dict[str, Any]:
        """Describe the handler for callers, as JSON schema."""
        return {
            "doc": inspect.getdoc(self.function) or "",
            "arguments": {each.name: _schema(each.adapter) for each in self.parameters},
            "required": [
                each.name
                for each in self.parameters
                if each.required
                and each.kind
                not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            ],
            "result": _schema(self.result),
            "named": all(each.kind in _NAMED for each in self.parameters),
        }


def _adapter(annotation: Any, what: str) -> TypeAdapter[Any]:
    try:
        # Else a number that is none would become null without a word.
        return TypeAdapter(annotation, config=_NO_NULLS if annotation is Any else None)
    except PydanticSchemaGenerationError as error:
        raise ServiceMisused(f"handler {what}: {str(error).splitlines()[0]}") from error


def _schema(adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.json_schema()
    except Exception:  # noqa: BLE001 - not all that has a schema has one in JSON: a description is for people
        return {}


def dump(
    adapter: TypeAdapter[Any], value: Any, what: str, limit: int, *, by_alias: bool = True
) -> tuple[Any, str]:
    """Return the value as plain data and as JSON, both as every reader keeps it.

    By alias is how its reader, another program, takes it.

    Raises:
        CallUnkeepable: it is no JSON, or too large.
    """
    try:
        # By way of plain data: as text, a float that is no number would be written as null.
        plain = adapter.dump_python(value, mode="json", by_alias=by_alias, warnings="error")
        codecs.validate_json(plain)
        text = orjson.dumps(plain)
    except (PydanticSerializationError, MalformedMessage, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CallUnkeepable(f"{what} cannot be kept as JSON: {reason}") from error
    if len(text) > limit:
        raise CallUnkeepable(f"{what} would have {len(text):,} bytes, more than {limit:,}")
    return plain, text.decode()


Upgrade = Callable[[Any], Any]
CallUpgrade = Callable[[str, Any], tuple[str, Any]]


@dataclass
class _State:
    """The class of a key's state, and what turns older ones into it."""

    kind: type | None = None
    version: int = 1
    upgrades: dict[int, Upgrade] = field(default_factory=dict)


class Service:
    """A named group of handlers, which share a state for each key.

    Handlers of one key are called one after the other, in the order in which calls were stored;
    those of different keys beside each other. `async def` handlers share an event loop of their
    own, `def` handlers have threads.
    """

    def __init__(self, name: str, *, version: int = 1, timeout: float = TIMEOUT) -> None:
        """Name a service.

        Args:
            name: it is the same in every worker and for every caller.
            version: grows when handlers change so that older workers cannot serve newer callers:
                their calls then wait for a worker of that version.
            timeout: seconds that a call may take.
        """
        self.name: Final = _checked(name, "service")
        if type(version) is not int or version < 1:
            raise ServiceMisused(f"service {name}: version {version!r:.40} is no positive integer")
        self.version: Final = version
        self.timeout: Final = timeout
        self.handlers: dict[str, Handler] = {}
        self.middleware: list[Callable[..., Any]] = []
        self._state = _State()
        self._call_upgrades: dict[int, CallUpgrade] = {}

    def __repr__(self) -> str:
        return f"<Service {self.name} {self.version}: {', '.join(self.handlers)}>"

    @overload
    def state(self, kind: ClassT) -> ClassT: ...
    @overload
    def state(self, *, version: int) -> Callable[[ClassT], ClassT]: ...
    @dataclass_transform(field_specifiers=(dataclasses.field,))
    def state(self, kind: Any = None, *, version: int = 1) -> Any:
        """Declare the class of a key's state: a pydantic model, or a dataclass, which it becomes.

        It must be made without arguments: so a key begins. `version` grows when its shape changes;
        `upgrade` then says how the older one is read.
        """

        def declare(declared: type) -> type:
            if not dataclasses.is_dataclass(declared) and not issubclass(declared, BaseModel):
                declared = dataclass(declared)
            self._state.kind, self._state.version = declared, version
            self.__dict__.pop("_state_adapter", None)
            return declared

        return declare if kind is None else declare(kind)

    def upgrade(self, version: int) -> Callable[[Upgrade], Upgrade]:
        """Declare how a state of `version`, as plain JSON, becomes one of the next version."""

        def declare(function: Upgrade) -> Upgrade:
            self._state.upgrades[version] = function
            return function

        return declare

    def upgrade_call(self, version: int) -> Callable[[CallUpgrade], CallUpgrade]:
        """Declare how a call of a caller of `version` becomes one of the next version.

        The function gets the handler's name and the arguments, a list or a dict, and returns both.
        """

        def declare(function: CallUpgrade) -> CallUpgrade:
            self._call_upgrades[version] = function
            return function

        return declare

    @overload
    def handler(self, function: Handle) -> Handle: ...
    @overload
    def handler(
        self, *, name: str | None = None, timeout: float | None = None
    ) -> Callable[[Handle], Handle]: ...
    def handler(
        self, function: Any = None, *, name: str | None = None, timeout: float | None = None
    ) -> Any:
        """Declare a handler. Its first parameter is the `Context`; the others are its arguments.

        Annotations say what callers may give, and pydantic converts it. It may run again if its
        commit was refused, or its process died: effects outside take `Context.request_id` as key.

        Args:
            function: the handler.
            name: by which it is called; the function's own by default.
            timeout: seconds that a call may take; the service's by default.
        """

        def declare(declared: Handle) -> Handle:
            called = name or declared.__name__
            if not _is_handler_name(called):
                raise ServiceMisused(f"{called!r:.80} is no name of a handler")
            if called in self.handlers:
                raise ServiceMisused(f"service {self.name} has two handlers {called}")
            limit = self.timeout if timeout is None else timeout
            self.handlers[called] = Handler(declared, called, limit)
            return declared

        return declare if function is None else declare(function)

    def wrap(self, around: Callable[..., Any]) -> Callable[..., Any]:
        """Declare a callable around each call: `async def around(ctx, handler, call_next)`.

        It calls `await call_next()`, which returns what the handler returns, and may raise
        `Reject`. The last one declared is the outermost.
        """
        if not inspect.iscoroutinefunction(around):
            raise ServiceMisused("what is around calls is `async def`")
        self.middleware.append(around)
        return around

    def prepare(self) -> None:
        """Look at all declarations; raise `ServiceMisused` for one that cannot work."""
        if not self.handlers:
            raise ServiceMisused(f"service {self.name} has no handler: @{self.name}.handler")
        for each in self.handlers.values():
            each.prepare()
        for step in range(1, self._state.version):
            if step not in self._state.upgrades:
                raise ServiceMisused(
                    f"service {self.name}: its state is of version {self._state.version}, and "
                    f"nothing is declared to upgrade({step})"
                )
        self.dump_state(self.new_state())

    @property
    def state_version(self) -> int:
        return self._state.version

    @cached_property
    def _state_adapter(self) -> TypeAdapter[Any]:
        kind: Any = self._state.kind or Any
        return _adapter(kind, f"{self.name}, its state")

    def new_state(self) -> Any:
        """Return the state of a key that was never called."""
        if self._state.kind is None:
            return None
        try:
            return self._state.kind()
        except (TypeError, ValidationError) as error:
            raise ServiceMisused(
                f"service {self.name}: its state cannot be made without arguments: {error}"
            ) from error

    def read_state(self, text: str, version: int) -> Any:
        """Return the state that was kept, upgraded. It may raise what an upgrade raises."""
        if version == self._state.version:
            return self._read_own(text)
        plain = codecs.loads(codecs.JSON, text.encode())
        for step in range(version, self._state.version):
            plain = self._state.upgrades[step](plain)
        return self._state_adapter.validate_python(plain, by_alias=True, by_name=True)

    def _read_own(self, text: str) -> Any:
        return self._state_adapter.validate_json(text, by_alias=True, by_name=True)

    def dump_state(self, state: Any) -> str:
        """Return the state as it is kept, by the names of its fields. Raises `CallUnkeepable`."""
        what = f"the state of {self.name}"
        text = dump(self._state_adapter, state, what, STATE_BYTES, by_alias=False)[1]
        try:
            self._read_own(text)  # else no later call of the key could be made
        except ValidationError as error:
            why = first_error(error).removeprefix("the body: ")
            raise CallUnkeepable(f"{what} cannot be read again: {why}") from error
        return text

    def find(
        self, name: str, arguments: Sequence[Any] | Mapping[str, Any], version: int
    ) -> tuple[Handler, Sequence[Any] | Mapping[str, Any]]:
        """Return the handler that a caller of this version calls, and its arguments.

        Raises:
            CallRefused: there is no such handler.
        """
        for step in range(version, self.version):
            upgrade = self._call_upgrades.get(step)
            if upgrade is not None:
                # A copy, which it may change: the call is kept as it came, in a timer.
                name, arguments = upgrade(name, deepcopy(arguments))
        handler = self.handlers.get(name)
        if handler is None:
            close = get_close_matches(name, self.handlers, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            known = ", ".join(sorted(self.handlers))
            raise CallRefused(f"{self.name} has no handler {name}, but {known}{meant}")
        return handler, arguments

    def describe(self) -> ServiceRecordV1:
        """Describe the service for callers."""
        return ServiceRecordV1(
            id=derived_id(f"service {self.name}", 0),
            workspace_id=service_id(self.name),
            name=self.name,
            version=self.version,
            handlers={name: each.describe() for name, each in self.handlers.items()},
            state=None if self._state.kind is None else _schema(self._state_adapter),
        )

    def context(self, key: str, state: Any = None) -> Context[Any]:
        """Return a context to call handlers with in a test: with this state, or as a key begins.

        What a handler does to it stays in it: `state`, `sends`, `cancelled`.
        """
        if state is None:
            state = self.new_state()
        return Context(state, self.name, _checked(key, "key"), RequestId(), datetime.now(UTC), None)

    def run(self, *others: "Service") -> None:
        """Serve this service, and `others`, until SIGTERM or SIGINT.

        Settings are the variables REBASER_*, as for `rebaser serve`.
        """
        # By name, and late: a program that declares a service loads nothing of a worker.
        import_module("rebaser_server.service.worker").run([self, *others])
