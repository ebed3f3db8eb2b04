"""Continuous pulling from a consumer: for a service with free slots, or into a buffer.

`PullConsumer` gets work for a service: messages one by one, never more than it can start.
`Messages` reads with a buffer (ADR-37, consume). Both use `PullEngine`: one inbox, many pulls, and
the count of what they may still bring (ADR-13). `PriorityGroup` is what the pulls of a group say
(ADR-42).
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self, TypedDict

from nats.aio.msg import Msg

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs import ConsumerConfig, DeliverPolicy
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.jetstream.errors import (
    ApiError,
    ConsumerGone,
    HeartbeatsMissed,
    Misconfigured,
    NatsUnreachable,
    NotFound,
)
from rebaser_core.jetstream.inbox import AsyncCloseable, Inbox, MessageReader, best_effort
from rebaser_core.jetstream.messages import (
    BAD_REQUEST,
    CONTROL,
    NO_MESSAGES,
    NO_RESPONDERS,
    REQUEST_ENDED,
    WRONG_PIN,
    Delivery,
    StatusMessage,
    is_delivery,
    parse_delivery,
    parse_status,
)

MAX_SINGLE_PULLS: Final = 32  # pulls at once where each gets one answer
UNLIMITED: Final = 1_000_000  # messages, for a pull that only bytes are to limit
_BENIGN: Final = (NO_MESSAGES, REQUEST_ENDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class PullLimits:
    """The most that a consumer lets one pull ask for; 0 is without a limit."""

    messages: int = 0
    octets: int = 0
    expires: float = 0.0
    """Seconds."""
    pulls: int = 0
    """Number of pulls that may wait at once, those of other clients among them."""

    @classmethod
    def of(cls, config: ConsumerConfig) -> Self:
        return cls(
            messages=max(0, config.max_batch or 0),
            octets=max(0, config.max_bytes or 0),
            expires=config.max_expires.total_seconds() if config.max_expires else 0.0,
            pulls=max(0, config.max_waiting or 0),
        )

    def cut(self, pull: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pull, asking for no more; what is missing is for later ones."""
        most = {"batch": self.messages, "max_bytes": self.octets}
        cut = {
            name: min(pull[name], limit) for name, limit in most.items() if limit and name in pull
        }
        return {**pull, **cut}


NO_LIMITS: Final = PullLimits()


def build_pull_requests(
    js: JetStreamApi,
    pull: Mapping[str, Any],
    *,
    expires: float | None = None,
    heartbeat: float | None = None,
    limits: PullLimits = NO_LIMITS,
) -> list[dict[str, Any]]:
    """Return the requests for a pull: one, or one for each message.

    Where a request gets one answer, a heartbeat would be that answer. There the pull expires after
    the time of a heartbeat, and its end is the sign of life. A group is asked for one message at a
    time until the client is pinned: other requests without the pin would bring nothing.
    """
    pull = limits.cut(pull)
    if not js.single_reply:
        return [{**pull, **_nanoseconds(expires=expires, idle_heartbeat=heartbeat)}]
    if "max_bytes" in pull:
        raise Misconfigured("`max_bytes` cannot limit pulls that get one answer each")
    single = {**pull, "batch": 1, **_nanoseconds(expires=heartbeat or expires)}
    most = 1 if "group" in pull and "id" not in pull else MAX_SINGLE_PULLS
    most = min(most, limits.pulls or most)
    return [single] * min(pull["batch"], most)


def _nanoseconds(**seconds: float | None) -> dict[str, int]:
    return {name: round(value * 1e9) for name, value in seconds.items() if value}


class PullBudget:
    """Messages and bytes that the pulls made may still bring. Never below zero.

    Single pulls are not followed; ADR-37 needs only the sums.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.octets = 0
        self._pulls = 0
        self._bounded_by_bytes = 0
        """Number of pulls that end with a status only, since bytes limit them."""

    @property
    def pulls(self) -> int:
        """Upper bound of the open pulls, counted anew whenever no message is outstanding."""
        return self._pulls if self.messages else 0

    def on_request(self, pull: Mapping[str, int]) -> None:
        self._pulls = self.pulls + 1
        self.messages += pull["batch"]
        self.octets += pull.get("max_bytes", 0)
        self._bounded_by_bytes += "max_bytes" in pull

    def on_message(self, message: Msg) -> None:
        self.messages = max(0, self.messages - 1)
        self.octets = max(0, self.octets - message_size(message))

    def on_end(self, messages: int, octets: int) -> None:
        self.messages = max(0, self.messages - messages)
        self.octets = max(0, self.octets - octets)
        if self._bounded_by_bytes:
            self._bounded_by_bytes -= 1
            if not self._bounded_by_bytes:
                self.clear()  # the rest is the difference between our count and the server's

    def clear(self) -> None:
        self.messages = self.octets = self._bounded_by_bytes = 0


def message_size(message: Msg) -> int:
    """Return what the server counts against `max_bytes`; ADR-37 forgets the headers."""
    headers = message.headers or {}
    block = sum(len(name) + len(value) + 4 for name, value in headers.items())
    whole = len(message.data) + len(message.subject) + len(message.reply) + block
    return whole + (12 if headers else 0)  # the version line and the empty one


def is_benign(status: StatusMessage) -> bool:
    """Whether the status only says that a pull brought less than it might have."""
    return status.code in _BENIGN


def is_terminal(status: StatusMessage) -> bool:
    """Whether this pull will be refused for ever."""
    what = status.description.lower()
    return (
        status.consumer_deleted
        or status.code == BAD_REQUEST
        or "push based" in what
        or _is_over_limit(status)
    )


def _is_over_limit(status: StatusMessage) -> bool:
    """Whether the pull asks for more than the consumer has as its limits."""
    return status.description.lower().startswith("exceeded maxrequest")


def _is_too_large(status: StatusMessage) -> bool:
    """Whether the next message has more bytes than the pull may bring."""
    return status.description.lower().startswith("message size exceeds maxbytes")


def _is_group_refused(status: StatusMessage) -> bool:
    """Whether the consumer has other priority groups than the pull names, or none."""
    return "priority group" in status.description.lower()


_NAME: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_PIN_ID: Final = "Nats-Pin-Id"
_LOWEST_PRIORITY: Final = 9
_POLICIES: Final = {
    "min_pending": "overflow",
    "min_ack_pending": "overflow",
    "priority": "prioritized",
}


@dataclass(frozen=True, slots=True)
class PriorityGroup:
    """The group that pulls belong to, and what its consumer's policy lets them say.

    The policy `pinned_client` needs the name alone: one client gets everything until it has made no
    pull for the consumer's `priority_timeout`, or is unpinned. The reader keeps the pin.

    Raises:
        Misconfigured: no such name or number, or options of two policies.
    """

    name: str
    """1 to 16 letters, digits and `/_=-`."""
    _: KW_ONLY
    min_pending: int | None = None
    """Number of undelivered messages from which the group gets messages, with `overflow`."""
    min_ack_pending: int | None = None
    """Number of messages waiting for acks from which it gets messages. Either number is enough."""
    priority: int | None = None
    """Priority with `prioritized`: 0 (the default) to 9. A pull waits while one of a lower number
    does."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Misconfigured(f"group {self.name!r}: give 1 to 16 letters, digits and /_=-")
        for option in ("min_pending", "min_ack_pending"):
            if (least := getattr(self, option)) is not None and least < 1:
                raise Misconfigured(f"{option}={least} is no condition: give 1 or more")
        if self.priority is not None and not 0 <= self.priority <= _LOWEST_PRIORITY:
            raise Misconfigured(f"priority={self.priority}: give 0, served first, to 9")
        if len({_POLICIES[option] for option in _given(self)}) > 1:
            said = " and ".join(_given(self))
            raise Misconfigured(f"{said} are of different policies: give the consumer's only")


def _given(group: PriorityGroup) -> dict[str, int]:
    return {name: value for name in _POLICIES if (value := getattr(group, name)) is not None}


@dataclass(slots=True)
class Pin:
    """The mark of the client that the server pinned: all pulls of that client carry it."""

    id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One client of a group, in one of its readings.

    All readings of the client share its `pin`; None where the policy pins no client.
    """

    group: PriorityGroup
    pin: Pin | None

    def to_pull(self) -> dict[str, Any]:
        """Return what a pull has to say now."""
        said = {"group": self.group.name} | _given(self.group)
        return said | ({"id": self.pin.id} if self.pin and self.pin.id else {})

    def on_message(self, message: Msg) -> bool:
        """Keep the pin that comes with a message; return whether it is another one.

        Pulls under way without the new pin bring nothing before the client has lost it.
        """
        pin_id = (message.headers or {}).get(_PIN_ID)
        if self.pin is None or pin_id in (None, self.pin.id):
            return False
        self.pin.id = pin_id
        return True

    def on_wrong_pin(self) -> None:
        """Forget the pin: another client has one, or this one will be given another."""
        if self.pin is not None:
            self.pin.id = None


def join_group(group: PriorityGroup | None, config: ConsumerConfig, pin: Pin) -> GroupMember | None:
    """Return the member that pulls the consumer in this group, or None without a group.

    Raises:
        Misconfigured: the consumer has other groups, or none, or its policy does not look at an
            option. The server would serve some such pulls as if they named no group.
    """
    groups = config.priority_groups or ()
    if group is None:
        if groups:
            raise Misconfigured(f"the consumer is pulled in groups: give one of {_list(groups)}")
        return None
    if not groups:
        raise Misconfigured(f"the consumer has no priority groups: leave {group.name} out")
    if group.name not in groups:
        raise Misconfigured(f"the consumer has no group {group.name}: give one of {_list(groups)}")
    for option in _given(group):
        if _POLICIES[option] != config.priority_policy:
            raise Misconfigured(
                f"{option} is for the policy {_POLICIES[option]}, and the consumer's is"
                f" {config.priority_policy}: leave it out"
            )
    # elsewhere the header of the pin is what a client stored, and a pull with an id is refused
    return GroupMember(group, pin if config.priority_policy == "pinned_client" else None)


def _list(groups: Sequence[str]) -> str:
    return ", ".join(groups)


FETCH_EXPIRES: Final = 5.0  # seconds that a batch is waited for


class _BufferOptions(TypedDict, total=False):
    """Size of the buffer, and when to ask for more.

    Give only one of `max_messages` and `max_bytes`. More is asked for once the threshold is used
    up.
    """

    max_messages: int
    """Number of messages that are asked for ahead of the reader."""
    max_bytes: int
    """Bytes asked for ahead, in place of messages, as the server counts them."""
    threshold_messages: int
    """Number of messages, at most `max_messages` (default: half of it)."""
    threshold_bytes: int
    """Bytes, at most `max_bytes` (default: half of it)."""
    expires: float
    """Seconds until an unanswered pull is made again (default: 30)."""
    idle_heartbeat: float
    """Seconds between signs of life of the server; at most half of `expires`."""


class ConsumeOptions(_BufferOptions, total=False):
    """Options of continuous reading; by default 1000 messages and a heartbeat of 5 seconds.

    `resilient` chooses between the newest ADR-37 (ask again after every error while there is a
    consumer; the default) and its first edition (missed heartbeats, or a consumer that is not
    there after a reconnect, are the end; more is asked for at a quarter).
    """

    resilient: bool


class ReaderOptions(_BufferOptions, total=False):
    """Options of an ordered reader; by default a heartbeat of 2 seconds.

    A reader with `max_messages` or `max_bytes` pulls. Without them the server's flow control
    bounds what is sent ahead, or 256 messages where it cannot be answered.
    """

    opt_start_seq: int
    """Sequence of the first message wanted (default: 1), for `by_start_sequence`, which is the
    default of `deliver_policy`."""
    deliver_policy: DeliverPolicy
    """Start of the reading; in force until the first message, or until the server has said which
    sequence it means."""
    opt_start_time: datetime
    """Start of `by_start_time`, which needs it; with a time zone."""
    headers_only: bool
    """Leave the payloads out; `Nats-Msg-Size` tells their size (default: false)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """Options of pulling a consumer; durations in seconds."""

    expires: float
    """Time until an unanswered pull is made again, at most; up to half a second less, so that pulls
    made at different times end together and a single one takes their place."""
    idle_heartbeat: float
    """Time between signs of life."""
    acks: bool | None
    """Whether the consumer wants acks; if not known, the server is asked."""
    resilient: bool = True
    """Whether to ask again after missed heartbeats and reconnects, and to end only when asking
    cannot help, as the newest ADR-37 has it. Otherwise, as in its first edition, missed heartbeats,
    a consumer that is not there after a reconnect and unknown statuses are the end."""
    group: PriorityGroup | None = None
    """The consumer's priority group that is pulled for."""
    pin: Pin = field(default_factory=Pin)
    """Pin of the client, if its consumer pins one."""
    limits: PullLimits = NO_LIMITS
    """Limits of the consumer for a pull, as far as they are known."""

    def fitted(self, config: ConsumerConfig) -> Self:
        """Return options with pulls that the consumer takes, and that end in time for the next one.

        A pin is lost without a pull in time.
        """
        limits = PullLimits.of(config)
        longest = [limits.expires or math.inf]
        if config.priority_timeout:
            longest.append(config.priority_timeout.total_seconds() / 2)
        expires = min(self.expires, *longest)
        heartbeat = min(self.idle_heartbeat, expires / 2)
        return replace(self, expires=expires, idle_heartbeat=heartbeat, limits=limits)


log: Final = logging.getLogger(__name__)

_MISSED_HEARTBEATS: Final = 2  # heartbeats missed until a pull is believed lost (ADR-37)
_CLOSE_TIMEOUT: Final = 2.0  # seconds
_ENDS_EVERY: Final = 0.5
"""Seconds between two ends of pulls: pulls that end together make room for a single one."""
_BACKOFF: Final = Backoff(0.1, 2.0)

Refill = Callable[[PullBudget], Mapping[str, int] | None]
"""Choice of the pull to make now, as `batch` and `max_bytes`, given what is pending; or None."""


class PullEngine:
    """The algorithm of ADR-37, `consume`, run inside `next`; no task in the background."""

    def __init__(self, js: JetStreamApi, stream: str, consumer: str, options: PullOptions) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._options = options
        self._member = GroupMember(options.group, options.pin) if options.group else None
        self._unchecked = self._member is not None
        self._inbox = Inbox(js.connection)
        self._acks = options.acks
        self._stale = True
        self._failures = 0
        self._requested_at = 0.0
        self._request_after = 0.0
        self._progressed = False
        self.budget = PullBudget()
        self.stopped = False

    async def next(self, refill: Refill) -> Delivery | None:
        """Return the next message, or None when stopped and nothing is left here.

        May be cancelled at any time: a message that has come stays for the next call.

        Raises:
            ConsumerGone: there is no such consumer.
            StatusError: the server refuses such pulls, and will refuse them again.
            HeartbeatsMissed: the server is silent. Not if resilient.
            NatsUnreachable: the connection is closed.
        """
        clock = asyncio.get_running_loop().time
        while True:
            if self._inbox.queue and not is_delivery(self._inbox.queue[0]):
                await self._on_status(parse_status(self._inbox.queue.popleft()))
                continue  # first all ends, then one pull in place of what ended
            if not self.stopped:
                await self._fill(refill)
            if self._inbox.queue:
                if (delivery := self._accept(self._inbox.queue.popleft())) is not None:
                    return delivery
            elif self.stopped:
                return None
            elif self._stale or not self._inbox.is_valid:
                await self._reopen()
            elif clock() < (until := self._last_sign_of_life + self._heartbeat_timeout):
                await self._inbox.wait(self._wake_at(until) - clock())
            else:
                self._on_missed_heartbeats()

    @property
    def _heartbeat_timeout(self) -> float:
        return _MISSED_HEARTBEATS * self._options.idle_heartbeat

    @property
    def _last_sign_of_life(self) -> float:
        """Time at which the server last spoke, or was asked to.

        Without pulls it has no reason to speak.
        """
        return max(self._inbox.last_message_at, self._requested_at, self._request_after)

    async def _fill(self, refill: Refill) -> None:
        if self._stale or not self._inbox.is_valid:
            return
        now = asyncio.get_running_loop().time()
        most = self._options.limits.pulls
        if most and self.budget.pulls >= most:
            return
        if now >= self._request_after and (pull := refill(self.budget)):
            await self._request(pull)

    def _accept(self, message: "Msg") -> Delivery | None:
        delivery = self._parse(message)
        if delivery is not None:
            self.budget.on_message(message)
            self._failures = 0
            self._progressed = True
            if self._member and self._member.on_message(message):
                self._stale = True
        return delivery

    def _parse(self, message: "Msg") -> Delivery | None:
        link, acks = self._js.connection, self._acks is not False
        return parse_delivery(link, message, self._stream, self._consumer, acks=acks)

    async def _request(self, pull: Mapping[str, int]) -> None:
        self._requested_at = asyncio.get_running_loop().time()
        times = {"expires": self._expires(), "heartbeat": self._options.idle_heartbeat}
        said = {**pull, **self._member.to_pull()} if self._member else pull
        limits = self._options.limits
        for request in build_pull_requests(self._js, said, **times, limits=limits):
            self.budget.on_request(request)  # before: if cancelled, it may have been sent
            await self._js.connection.publish(
                self._subject, json.dumps(request).encode(), reply=self._inbox.subject
            )

    def _expires(self) -> float:
        """Return the seconds until a pull that is made now ends, with others."""
        longest, now = self._options.expires, self._requested_at
        step = min(_ENDS_EVERY, longest - 2 * self._options.idle_heartbeat)  # as the server wants
        return min(longest, (now + longest) // step * step - now) if step > 0 else longest

    async def _on_status(self, status: StatusMessage | None) -> None:
        if status is None or status.code == CONTROL:
            return
        if status.code == WRONG_PIN and self._member:
            self._member.on_wrong_pin()
            self._stale = True  # all that were made with that pin
            return
        if is_terminal(status):
            self._stale = True
            known = self._options.limits
            if _is_group_refused(status) or _is_over_limit(status):
                await self._confirm_consumer()
            if _is_over_limit(status) and self._options.limits != known:
                return  # the limits were not known, or have changed
            raise status.to_error()
        if (ended := status.pending) is not None:
            self.budget.on_end(*ended)
            if not is_benign(status):
                self._back_off(status)
            return
        if not self._options.resilient:
            self.stopped = True
            raise status.to_error()
        if status.code == NO_RESPONDERS:
            await self._confirm_consumer()
        self._stale = True  # it is not known which pull ended
        self._back_off(status)

    def _on_missed_heartbeats(self) -> None:
        if not self._options.resilient:
            self.stopped = True
            silence = f"nothing from {self._subject} for {self._heartbeat_timeout:g} s"
            raise HeartbeatsMissed(silence)
        log.info("nothing from %s for %g s, asking again", self._subject, self._heartbeat_timeout)
        self._stale = True

    def _back_off(self, status: StatusMessage) -> None:
        """Pause, each time longer, before asking again if pulls bring only this status."""
        if self._progressed:
            self._progressed = False
            return
        level = logging.WARNING if _is_too_large(status) else logging.INFO
        log.log(level, "pull from %s/%s: %s", self._stream, self._consumer, status.to_error())
        self._failures += 1
        self._request_after = asyncio.get_running_loop().time() + _BACKOFF.delay(self._failures)

    def _wake_at(self, until: float) -> float:
        now = asyncio.get_running_loop().time()
        return min(until, self._request_after) if self._request_after > now else until

    async def _confirm_consumer(self) -> None:
        """Look the consumer up, raise if it is gone or not pulled so, and learn what it wants."""
        try:
            config = await self._js.consumer_config(self._stream, self._consumer)
        except NotFound as error:
            raise ConsumerGone(error.description) from error
        except (ApiError, NatsUnreachable):
            return
        self._member = join_group(self._options.group, config, self._options.pin)
        self._unchecked = False
        self._acks = config.is_acked
        self._options = self._options.fitted(config)

    async def _reopen(self) -> None:
        """Abandon all pulls, keep what came of them, and start counting anew.

        The inbox is a new one, since the server drops pulls without a listener; with the old one
        they could bring more than was asked for.
        """
        again = self._inbox.subject != ""
        await self._js.connection.wait_connected()
        if again and self._inbox.is_valid:
            await self._inbox.drain()
        await self._inbox.open(keep=True)
        self.budget.clear()
        self.budget.messages = len(self._inbox.queue)
        if self._acks is None or (again and not self._options.resilient) or self._unchecked:
            await self._confirm_consumer()
        self._stale = False

    async def stop(self) -> None:
        """Make no more pulls and end those made. `next` still returns what has come by then."""
        self.stopped = True
        await self._inbox.drain()
        await self._inbox.close()
        self._inbox.notify()

    async def close(self) -> None:
        """Stop, and give back at once the messages that have come and were not taken."""
        async with best_effort(_CLOSE_TIMEOUT):
            await self.stop()
            while (
                self._acks is not False and self._inbox.queue and self._js.connection.is_connected
            ):
                message = self._inbox.queue.popleft()
                if is_delivery(message) and (delivery := self._parse(message)):
                    await delivery.nak()


class PullConsumer(AsyncCloseable):
    """Messages of an existing consumer, as long as it exists.

    Reconnects, restarts of the server, missed heartbeats and moving leaders are
    survived in silence. One task at a time may call `take`.

    Args:
        js: where the stream is.
        stream: its name.
        consumer: its name.
        idle_heartbeat: seconds between signs of life; after two missed ones it is asked anew.
        expires: seconds until an unanswered pull is made again, at most. For so long the server
            may deliver to a process that is frozen or cut off.
        acks: whether the consumer wants them; by default the server is asked, once. If not,
            settling does nothing (ADR-15).
        group: the priority group that it is pulled for. The server is asked what it has, once.
    """

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        consumer: str,
        *,
        idle_heartbeat: float = 2.0,
        expires: float = 30.0,
        acks: bool | None = None,
        group: PriorityGroup | None = None,
    ) -> None:
        self._name = f"{stream}/{consumer}"
        options = PullOptions(
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            acks=acks,
            group=group,
        )
        self._engine = PullEngine(js, stream, consumer, options)

    async def take(self, free: int = 1) -> Delivery:
        """Return the next message, to be settled by the caller.

        `free` is how many messages the caller could start now; the server is never asked for more,
        so that no delivery waits here. So take until nothing is free.

        May be cancelled at any time: a message that comes meanwhile is returned by
        the next call, or given back by `close`.

        Raises:
            ConsumerGone: the consumer, or its stream, was deleted.
            Misconfigured: it is pulled in other groups, or in none, or has another policy.
            StatusError: the consumer refuses such pulls.
            NatsUnreachable: the connection, or this, is closed.
        """

        def refill(pending: PullBudget) -> dict[str, int] | None:
            missing = free - pending.messages
            return {"batch": missing} if missing > 0 else None

        delivery = await self._engine.next(refill)
        if delivery is None:
            raise NatsUnreachable(f"{self._name} is not pulled any more")
        return delivery

    async def close(self) -> None:
        """Stop pulling. Messages that were delivered and not taken are given back at once."""
        await self._engine.close()


_DEFAULT_MESSAGES: Final = 1000
_DEFAULT_THRESHOLD: Final = 0.5  # part of the buffer from which it is filled again
_FIRST_EDITION_THRESHOLD: Final = 0.25  # the threshold in the first edition of the ADR


@dataclass(frozen=True, kw_only=True)
class ReadBuffer:
    """`_BufferOptions`, checked, with their defaults.

    Raises:
        ValueError: they exclude each other.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    threshold_messages: int | None = None
    threshold_bytes: int | None = None
    expires: float = 30.0
    idle_heartbeat: float = 5.0
    resilient: bool = True

    def __post_init__(self) -> None:
        if self.max_messages is not None and self.max_bytes is not None:
            raise ValueError("either max_messages or max_bytes")
        if 0 in (self.max_messages, self.max_bytes) or not 0 < self.threshold <= self.limit:
            raise ValueError("the limit must be positive and the threshold within it")
        if not 0 < 2 * self.idle_heartbeat <= self.expires:
            raise ValueError("idle_heartbeat must be at most half of expires")

    @property
    def limit(self) -> int:
        return self.max_bytes or self.max_messages or _DEFAULT_MESSAGES

    @property
    def threshold(self) -> int:
        given = self.threshold_bytes if self.max_bytes else self.threshold_messages
        if given is not None:
            return given
        return math.ceil(
            self.limit * (_DEFAULT_THRESHOLD if self.resilient else _FIRST_EDITION_THRESHOLD)
        )

    def refill(self, pending: PullBudget) -> dict[str, int] | None:
        """Return the pull that fills the buffer, if the threshold is used up."""
        free = self.limit - (pending.octets if self.max_bytes else pending.messages)
        if free < self.threshold:
            return None
        return {"batch": UNLIMITED, "max_bytes": free} if self.max_bytes else {"batch": free}

    def fitted(self, config: ConsumerConfig) -> Self:
        """Return it with no more messages by default than the consumer allows in one pull."""
        most = PullLimits.of(config).messages
        if not most or self.max_bytes or self.max_messages or self.threshold_messages:
            return self
        return replace(self, max_messages=min(most, _DEFAULT_MESSAGES))


class Messages(MessageReader):
    """A consumer's messages, one after the other, with more of them ready.

    An async context manager, to be iterated or given a handler (`for_each`). One task at a
    time may read; another one may call `drain` or `stop`.
    """

    def __init__(self, pulling: PullEngine, buffering: ReadBuffer) -> None:
        self._engine = pulling
        self._buffer = buffering

    async def next(self) -> Delivery | None:
        """Return the next message, or None when drained or stopped; errors as of `consume`.

        May be cancelled at any time: a message that comes meanwhile is the next call's.
        """
        return await self._engine.next(self._buffer.refill)

    async def drain(self) -> None:
        """Ask for nothing more. The reading ends after what has come by then."""
        await self._engine.stop()

    async def stop(self) -> None:
        """End it now. What has come and was not handed out is given back."""
        await self._engine.close()

    async def close(self) -> None:
        await self.stop()
