"""Work for a service with so many free slots: taken one by one, never more than it can start."""

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.message_reader import AsyncCloseable
from rebaser_core.jetstream.consumers.options import PullOptions
from rebaser_core.jetstream.consumers.priority_group import PriorityGroup
from rebaser_core.jetstream.consumers.pull_engine import PullEngine
from rebaser_core.jetstream.consumers.pull_request import PullBudget
from rebaser_core.jetstream.errors import NatsUnreachable
from rebaser_core.jetstream.messages.delivery import Delivery


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

        `free` is how many the caller could start now; the server is never asked for
        more, so what it delivers does not wait here. So take until nothing is free.

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
        """Stop pulling. What was delivered and not taken is given back at once."""
        await self._engine.close()
