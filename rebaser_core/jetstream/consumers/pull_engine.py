"""Continuous pulling: one inbox, many pulls, and the count of what they may still bring."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.backoff import Backoff
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import best_effort
from rebaser_core.jetstream.consumers.options import PullOptions
from rebaser_core.jetstream.consumers.priority_group import GroupMember, join_group
from rebaser_core.jetstream.consumers.pull_request import (
    PullBudget,
    build_pull_requests,
    is_benign,
    is_group_refused,
    is_over_limit,
    is_terminal,
    is_too_large,
)
from rebaser_core.jetstream.errors import (
    ApiError,
    ConsumerGone,
    HeartbeatsMissed,
    NatsUnreachable,
    NotFound,
)
from rebaser_core.jetstream.messages.delivery import Delivery, parse_delivery
from rebaser_core.jetstream.messages.status_message import (
    CONTROL,
    NO_RESPONDERS,
    WRONG_PIN,
    StatusMessage,
    is_delivery,
    parse_status,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg


log: Final = logging.getLogger(__name__)

MISSED_HEARTBEATS: Final = 2  # heartbeats missed until a pull is believed lost (ADR-37)
CLOSE_TIMEOUT: Final = 2.0  # seconds
_ENDS_EVERY: Final = 0.5
"""Seconds between two ends of pulls: those that end together make room for a single one."""
_BACKOFF: Final = Backoff(0.1, 2.0)

Refill = Callable[[PullBudget], Mapping[str, int] | None]
"""Which pull to make now, as `batch` and `max_bytes`, given what is pending; or None."""


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
        return MISSED_HEARTBEATS * self._options.idle_heartbeat

    @property
    def _last_sign_of_life(self) -> float:
        """When the server last spoke, or was last asked to: without pulls it has no reason to."""
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
            if is_group_refused(status) or is_over_limit(status):
                await self._confirm_consumer()
            if is_over_limit(status) and self._options.limits != known:
                return  # they were not known, or are others by now
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
        self._stale = True  # which pull it was, and what it may still bring, is not known
        self._back_off(status)

    def _on_missed_heartbeats(self) -> None:
        if not self._options.resilient:
            self.stopped = True
            silence = f"nothing from {self._subject} for {self._heartbeat_timeout:g} s"
            raise HeartbeatsMissed(silence)
        log.info("nothing from %s for %g s, asking again", self._subject, self._heartbeat_timeout)
        self._stale = True

    def _back_off(self, status: StatusMessage) -> None:
        """If pulls bring only this, ask nothing for a while, each time longer."""
        if self._progressed:
            self._progressed = False
            return
        level = logging.WARNING if is_too_large(status) else logging.INFO
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
        """Leave all pulls behind, with what came of them kept, and start counting anew.

        A new inbox, since the server drops pulls without a listener; with the
        old one they could bring more than was asked for.
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
        """Stop, and give back at once what has come and was not taken."""
        async with best_effort(CLOSE_TIMEOUT):
            await self.stop()
            while (
                self._acks is not False and self._inbox.queue and self._js.connection.is_connected
            ):
                message = self._inbox.queue.popleft()
                if is_delivery(message) and (delivery := self._parse(message)):
                    await delivery.nak()
