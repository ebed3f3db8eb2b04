"""Continuous pulling: one inbox, many pulls, and the count of what they may still bring."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import briefly
from rebaser_core.jetstream.consumers.pull_request import Pending, final, ordinary, requests
from rebaser_core.jetstream.errors import (
    ApiError,
    ConsumerGone,
    HeartbeatsMissed,
    NotFound,
    Unreachable,
)
from rebaser_core.jetstream.messages.delivery import Delivery, delivery_of
from rebaser_core.jetstream.messages.status_message import (
    CONTROL,
    NO_RESPONDERS,
    Status,
    is_delivery,
    status_of,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from rebaser_core.jetstream.api import JetStream

log: Final = logging.getLogger(__name__)

MISSES: Final = 2  # heartbeats missed until a pull is believed lost (ADR-37)
CLOSE_TIMEOUT: Final = 2.0  # seconds
_PAUSE: Final = (0.1, 2.0)  # seconds, first and longest

Refill = Callable[[Pending], Mapping[str, int] | None]
"""Which pull to make now, as `batch` and `max_bytes`, given what is pending; or None."""


class Pulling:
    """The algorithm of ADR-37, `consume`, run inside `next`; no task in the background.

    Args:
        resilient: as the newest ADR has it, ask again after missed heartbeats and
            reconnects, and end only when asking cannot help. Otherwise as its
            first edition: missed heartbeats, a consumer that is not there after a
            reconnect and unknown statuses are the end.
    """

    def __init__(
        self,
        js: "JetStream",
        stream: str,
        consumer: str,
        *,
        expires: float,
        heartbeat: float,
        acks: bool = True,
        resilient: bool = True,
    ) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._expires = expires
        self._heartbeat = heartbeat
        self._silence = MISSES * heartbeat
        self._acks = acks
        self._resilient = resilient
        self._inbox = Inbox(js.link)
        self._lost = False
        self._pause, self._longest_pause = _PAUSE
        self._asked = 0.0
        self._ask_after = 0.0
        self._fruitful = False
        self.pending = Pending()
        self.stopped = False

    async def next(self, refill: Refill) -> Delivery | None:
        """Return the next message, or None when stopped and nothing is left here.

        May be cancelled at any time: a message that has come stays for the next call.

        Raises:
            ConsumerGone: there is no such consumer.
            StatusError: the server refuses such pulls, and will refuse them again.
            HeartbeatsMissed: the server is silent. Not if resilient.
            Unreachable: the connection is closed.
        """
        clock = asyncio.get_running_loop().time
        while True:
            if not self.stopped:
                await self._fill(refill)
            if self._inbox.queue:
                message = self._inbox.queue.popleft()
                if not is_delivery(message):
                    await self._heed(status_of(message))
                elif (delivery := self._taken(message)) is not None:
                    return delivery
            elif self.stopped:
                return None
            elif self._lost or not self._inbox.current:
                await self._renew()
            elif clock() < (until := self._heard + self._silence):
                await self._inbox.wait(self._soonest(until) - clock())
            else:
                self._missed()

    @property
    def _heard(self) -> float:
        """When the server last spoke, or was last asked to: without pulls it has no reason to."""
        return max(self._inbox.heard, self._asked, self._ask_after)

    async def _fill(self, refill: Refill) -> None:
        if self._lost or not self._inbox.current:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._ask_after and (pull := refill(self.pending)):
            await self._ask(pull)

    def _taken(self, message: "Msg") -> Delivery | None:
        delivery = self._delivery(message)
        if delivery is not None:
            self.pending.came(message)
            self._pause = _PAUSE[0]
            self._fruitful = True
        return delivery

    def _delivery(self, message: "Msg") -> Delivery | None:
        link, acks = self._js.link, self._acks
        return delivery_of(link, message, self._stream, self._consumer, acks=acks)

    async def _ask(self, pull: Mapping[str, int]) -> None:
        self._asked = asyncio.get_running_loop().time()
        times = {"expires": self._expires, "heartbeat": self._heartbeat}
        for request in requests(self._js, pull, **times):
            self.pending.made(request)  # before: if cancelled, it may have been sent
            await self._js.link.publish(
                self._subject, json.dumps(request).encode(), reply=self._inbox.subject
            )

    async def _heed(self, status: Status | None) -> None:
        if status is None or status.code == CONTROL:
            return
        if final(status):
            self._lost = True
            raise status.error()
        if (ended := status.pending) is not None:
            self.pending.ended(*ended)
            if not ordinary(status):
                self._rest(status)
            return
        if not self._resilient:
            self.stopped = True
            raise status.error()
        if status.code == NO_RESPONDERS:
            await self._confirm_consumer()
        self._lost = True  # which pull it was, and what it may still bring, is not known
        self._rest(status)

    def _missed(self) -> None:
        if not self._resilient:
            self.stopped = True
            raise HeartbeatsMissed(f"nothing from {self._subject} for {self._silence} s")
        log.info("nothing from %s for %s s, asking again", self._subject, self._silence)
        self._lost = True

    def _rest(self, status: Status) -> None:
        """If pulls bring only this, ask nothing for a while, each time longer."""
        if self._fruitful:
            self._fruitful = False
            return
        log.info("pull from %s/%s: %s", self._stream, self._consumer, status.error())
        self._ask_after = asyncio.get_running_loop().time() + self._pause
        self._pause = min(2 * self._pause, self._longest_pause)

    def _soonest(self, until: float) -> float:
        now = asyncio.get_running_loop().time()
        return min(until, self._ask_after) if self._ask_after > now else until

    async def _confirm_consumer(self) -> None:
        """Nobody answered for the consumer: it is gone, or just moving or starting."""
        try:
            await self._js.consumer_info(self._stream, self._consumer)
        except NotFound as error:
            raise ConsumerGone(error.description) from error
        except (ApiError, Unreachable):
            return

    async def _renew(self) -> None:
        """Leave all pulls behind, with what came of them kept, and start counting anew.

        A new inbox, since the server drops pulls to which nobody listens; with the
        old one they could bring more than was asked for.
        """
        again = self._inbox.subject != ""
        await self._js.link.connected()
        if again and self._inbox.current:
            await self._inbox.drain()
        await self._inbox.open(keep=True)
        self.pending.clear()
        self.pending.messages = len(self._inbox.queue)
        self._lost = False
        if again and not self._resilient:
            await self._confirm_consumer()

    async def stop(self) -> None:
        """Make no more pulls and end those made. `next` still returns what has come by then."""
        self.stopped = True
        await self._inbox.drain()
        await self._inbox.close()
        self._inbox.wake()

    async def close(self) -> None:
        """Stop, and give back at once what has come and was not taken."""
        async with briefly(CLOSE_TIMEOUT):
            await self.stop()
            while self._acks and self._inbox.queue and self._js.link.up:
                message = self._inbox.queue.popleft()
                if is_delivery(message) and (delivery := self._delivery(message)):
                    await delivery.nak()
