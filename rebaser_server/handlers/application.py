"""Services as the application that the core drives: a key is a change set, a call a request."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Never, Self

import orjson
import structlog

from rebaser_core import trace_context
from rebaser_core.calls import (
    CallRequestV1,
    arguments_violation,
    derived_id,
    key_of,
    read_call,
)
from rebaser_core.commits import CallEffect, RequestOutcome, SettledRequest
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequest
from rebaser_core.streams import Streams
from rebaser_core.versioning import AUTHOR, MESSAGE_TYPE, header
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.handlers.checkpoints import KeyMachine, content_of
from rebaser_server.handlers.content import KeyChange, KeyContent, Outgoing, Timer
from rebaser_server.handlers.directory import Directory
from rebaser_server.handlers.event_loop import HandlerExecution, HandlerHeldUp
from rebaser_server.handlers.sending import Alarms, CallPlanner, Seals
from rebaser_server.handlers.service import (
    SENDS_BYTES,
    CallRefused,
    CallUnkeepable,
    Context,
    Reject,
    Send,
    Service,
)
from rebaser_server.handlers.times import LATE, first_time, next_time, time_of
from rebaser_server.processor.application import (
    Application,
    Applied,
    RequestMessage,
    Unprocessable,
)
from rebaser_server.processor.dead_letters import closed_reason, reject
from rebaser_server.processor.ownership import Ownership, Settle
from rebaser_server.runtime.tasks import background, wait_forever
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

_LONG: Final = 0.02
"""Seconds of a handler for which those who wait for the answers to earlier calls wait, too."""


class HandlerApplication(KeyMachine, Application):
    """An `Application`: calls are made in order, each key's state is what they left."""

    def __init__(
        self, streams: Streams, batches: BatchStore, services: Mapping[str, Service]
    ) -> None:
        super().__init__(batches.files)
        self._streams = streams
        self._services = services
        self._execution = HandlerExecution()
        self._seals = Seals(batches.files)
        self._alarms = Alarms(streams)
        self._directory = Directory(streams, services)
        for name, service in services.items():
            metrics.declare_handlers(name, service.handlers)

    def read(self, request: Delivery) -> CallRequestV1:
        if header(request.headers, MESSAGE_TYPE) == EnqueueUpdatesRequest.name:
            raise NewerVersion("a batch of updates waits for a Rebaser of value graphs")
        call = read_call(request.headers, request.payload)
        if ChangeSet(call.workspace_id, call.change_set_id) != key_of(call.service, call.key):
            raise Unprocessable(f"the ids are not those of key {call.key!r} of {call.service!r}")
        return call

    def is_batchable(self, message: RequestMessage) -> bool:
        return isinstance(message, CallRequestV1)

    async def apply(
        self, ownership: Ownership, request: Delivery, message: RequestMessage
    ) -> Applied:
        if not isinstance(message, CallRequestV1):
            raise TypeError(f"{type(message).__name__} is no call")
        if (message.origin or message.firing) and message.seal != await self._seals.of(message):
            raise Unprocessable("its origin or firing is not of a worker of this deployment")
        content = content_of(ownership.state)
        end = partial(SettledRequest, id=message.id, sequence=request.stream_sequence)
        if reason := closed_reason(ownership.state):
            return Applied(reject(end(outcome=RequestOutcome.REFUSED), reason))
        # O4: a run that goes on with the sends of another may come later than ids are remembered.
        if message.origin is not None and content.has_heard(message.origin):
            return Applied(end(outcome=RequestOutcome.DUPLICATE))
        try:
            size = len(request.payload)
            violation = arguments_violation(message.handler, message.arguments, size)
            if violation is not None:
                raise CallRefused(violation)
            effect, result = await self._effect(content, request, message, ownership.settle)
            is_call = not (message.timer or message.cancel or message.firing)
            handler = message.handler if is_call else None
        except (CallRefused, Reject) as error:
            refused = reject(end(outcome=RequestOutcome.REFUSED), str(error) or "rejected")
            author = header(request.headers, AUTHOR)
            return Applied(refused, call=_heard(content, message, author, str(error)))
        except CallUnkeepable as error:
            raise Unprocessable(str(error)) from error
        if effect.sends:
            effect = replace(effect, trace=trace_context.inject({}))
        content.take(effect)
        return Applied(
            end(outcome=RequestOutcome.APPLIED),
            is_edit=True,
            is_dirty=effect.is_dirty,
            call=CallEffect(handler=handler, result=result, effect=effect.to_json()),
        )

    async def _effect(
        self,
        content: KeyContent,
        request: Delivery,
        call: CallRequestV1,
        settle: Settle | None = None,
    ) -> tuple[KeyChange, Any]:
        """Return what the call changes, all in one commit (O1), and its result.

        Nothing is changed yet.
        """
        service = self._service(call, content)
        # Before the handler, which may fail: people then look for the key by its name.
        self._directory.see(call.service, call.key)
        now = request.timestamp.astimezone(UTC)
        name = None if content.key else (call.service, call.key)
        if call.firing is not None:
            return self._fired(content, request, call, now), None
        if call.cancel is not None:
            if call.cancel not in content.timers:
                raise CallRefused(f"there is no timer {call.cancel!r}")
            return KeyChange(name, timers={call.cancel: None}, heard=call.origin), None
        if call.timer is not None:
            # Looked at now, so that the caller hears of a mistake, and not a dead letter.
            handler, arguments = service.find(call.handler, call.arguments, call.service_version)
            handler.bind(arguments)
            timer = Timer(
                call.handler,
                orjson.dumps(call.arguments).decode(),
                first_time(call.timer, now),
                request.stream_sequence,
                call.timer.every,
                call.timer.zone,
                call.timer.missed,
                call.service_version,
            )
            self._alarms.require()
            changes: dict[str, Timer | None] = {call.timer.name: timer}
            said = {"timer": call.timer.name, "next": timer.next}
            return KeyChange(name, timers=changes, heard=call.origin), said
        with _Counted(service.name) as count:
            async with _if_long(settle):
                return await self._called(service, count, content, request, call)

    def _service(self, call: CallRequestV1, content: KeyContent) -> Service:
        """Return the service that serves the call.

        Raises:
            NewerVersion: none of this process does; another one may.
        """
        service = self._services.get(call.service)
        if service is None:
            known = ", ".join(sorted(self._services))
            raise NewerVersion(f"service {call.service} is not served here, where {known} is")
        if call.service_version > service.version:
            raise NewerVersion(
                f"a call of version {call.service_version} of service {call.service}; "
                f"this worker serves version {service.version}"
            )
        if content.version > service.state_version:
            raise NewerVersion(
                f"the state is of version {content.version}; "
                f"this worker of {call.service} knows up to {service.state_version}"
            )
        return service

    async def _called(
        self,
        service: Service,
        count: "_Counted",
        content: KeyContent,
        request: Delivery,
        call: CallRequestV1,
    ) -> tuple[KeyChange, Any]:
        handler, given = service.find(call.handler, call.arguments, call.service_version)
        count.handler = handler.name
        arguments, named = handler.bind(given)
        before, now = content.state, request.timestamp.astimezone(UTC)
        state = (
            service.new_state() if before is None else service.read_state(before, content.version)
        )
        context = Context(
            state, call.service, call.key, call.id, now, header(request.headers, AUTHOR)
        )
        returned = await self._execution.call(
            handler, context, arguments, named, service.middleware
        )
        result = handler.plain_result(returned)
        after = service.dump_state(context.state)
        is_new = after != before or content.version != service.state_version
        size = sum(len(send.arguments) for send in context.sends)
        if size > SENDS_BYTES:  # a commit has all of them
            raise CallUnkeepable(
                f"the arguments that {handler.name} sends have {size:,} bytes, more than "
                f"{SENDS_BYTES:,}"
            )
        timers: dict[str, Timer | None] = dict.fromkeys(context.cancelled)
        sends: list[Outgoing] = []
        for send in context.sends:
            # Of what this worker knows: its code is what the call is written for.
            version = 1
            if (known := self._services.get(send.service)) is not None:
                version = known.version
                _require_taken(send, known, handler.name)
            if send.timer is not None and (send.service, send.key) == (call.service, call.key):
                self._alarms.require()
                timers[send.timer.name] = Timer(
                    send.handler,
                    send.arguments,
                    first_time(send.timer, now),
                    request.stream_sequence,
                    send.timer.every,
                    send.timer.zone,
                    send.timer.missed,
                    version,
                )
                continue
            sends.append(
                self._outgoing(
                    request,
                    call,
                    len(sends),
                    send.service,
                    send.key,
                    send.handler,
                    send.arguments,
                    None if send.timer is None else send.timer.to_wire(),
                    version,
                )
            )
        effect = KeyChange(
            None if content.key else (call.service, call.key),
            after if is_new else None,
            service.state_version,
            timers,
            sends,
            call.origin,
        )
        return effect, result

    def _fired(
        self, content: KeyContent, request: Delivery, call: CallRequestV1, now: datetime
    ) -> KeyChange:
        """Return what a timer's time changes: the call is sent to the key itself.

        So the timer goes on, also if the call fails.
        """
        firing = call.firing
        if firing is None:
            raise AssertionError("of the caller")
        timer = content.timers.get(firing.name)
        if timer is None or timer.next != firing.at:
            raise CallRefused(f"timer {firing.name!r} is not set to {firing.at} any more")
        due, following = time_of(timer.next), None
        if timer.every is not None:
            next_one = next_time(timer.every, timer.zone, max(due, now))
            if next_one is not None:
                following = timer._replace(next=next_one, set_by=request.stream_sequence)
        changes: dict[str, Timer | None] = {firing.name: following}
        if timer.every is not None and timer.missed == "skip" and now - due > LATE:
            log.info("time of a timer missed", timer=firing.name, at=firing.at)
            return KeyChange(timers=changes)
        made = self._outgoing(
            request,
            call,
            0,
            content.service,
            content.key,
            timer.handler,
            timer.arguments,
            None,
            timer.version,
        )
        return KeyChange(timers=changes, sends=[made])

    def _outgoing(
        self,
        request: Delivery,
        call: CallRequestV1,
        index: int,
        service: str,
        key: str,
        handler: str,
        arguments: str,
        timer: dict[str, Any] | None,
        version: int,
    ) -> Outgoing:
        sequence = request.stream_sequence
        # Of the sender's place: a run that sends it again mints the same id.
        place = f"{call.workspace_id}.{call.change_set_id} {sequence} {index}"
        sent = derived_id(place, round(request.stored * 1000))
        return Outgoing(
            sequence, index, service, key, handler, arguments, timer, version, str(sent)
        )

    def on_begin(self, ownership: Ownership) -> None:
        self._alarms.check_soon(ownership)

    def planner(self, change_set: ChangeSet) -> CallPlanner:
        return CallPlanner(self._streams, self._seals, self._alarms, change_set)

    async def prepare(self) -> None:
        """Enter the services, so that callers find them as soon as this worker takes calls."""
        await self._directory.enter_services()

    async def run(self) -> Never:
        """Keep the directory of services and keys, and hear alarms, until cancelled."""
        try:
            async with background(self._directory.run()), background(self._alarms.run(self._seals)):
                await wait_forever()
        finally:
            self._execution.close()


@asynccontextmanager
async def _if_long(settle: Settle | None) -> AsyncIterator[None]:
    """Call `settle` beside the body if that takes long, and await both. A cancellation ends it."""
    if settle is None:
        yield
        return
    loop, begun = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    timer = loop.call_later(_LONG, lambda: begun.append(loop.create_task(settle())))
    try:
        yield
    except asyncio.CancelledError:
        for task in begun:
            task.cancel()
        raise
    finally:
        timer.cancel()
        for task in begun:
            await task


class _Counted:
    """Counts the attempt at a call that the body is, and the time that it takes."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._begun = time.monotonic()
        self.handler = metrics.NO_HANDLER
        """The handler, once it is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outcome: metrics.CallOutcome = "failed"
        match error:
            case HandlerHeldUp() | asyncio.CancelledError():
                return  # it is made again, and nothing is known about it
            case None:
                outcome = "returned"
            case Reject():
                outcome = "rejected"
            case CallRefused():
                outcome = "refused"
        metrics.CALLS.labels(self._service, self.handler, outcome).inc()
        if outcome != "refused":
            took = time.monotonic() - self._begun
            metrics.CALL_SECONDS.labels(self._service, self.handler).observe(took)


def _require_taken(send: Send, target: Service, sender: str) -> None:
    """Raise `CallUnkeepable` if the target refuses what is sent: no caller would hear of it."""
    try:
        handler, given = target.find(send.handler, orjson.loads(send.arguments), target.version)
        handler.bind(given)
    except CallRefused as error:
        raise CallUnkeepable(f"{sender} sends what is refused: {error}") from error


def _heard(
    content: KeyContent, refused: CallRequestV1, sender: str | None, reason: str
) -> CallEffect | None:
    """Note that a call of another key was refused: sent again, it is refused for good (O4)."""
    if refused.origin is None:
        return None
    log.info(
        "call of another key refused",
        service=refused.service,
        key=refused.key,
        handler=refused.handler,
        sender=sender,
        reason=reason,
    )
    effect = KeyChange(heard=refused.origin)
    content.take(effect)
    return CallEffect(effect=effect.to_json())
