"""Flow control of a push consumer, answered when the user has reached it (ADR-15)."""

import asyncio

from rebaser_core.jetstream.connection.connection import Connection
from rebaser_core.jetstream.messages.status_message import StatusMessage


class FlowControl:
    """The answers of one consumer's reader: one to each question, and one to each reminder.

    A lost answer leaves the server waiting, which only its heartbeats tell.

    Args:
        connection: where to answer.
        reply_timeout: seconds after which a repeated question means that answers get lost.
    """

    def __init__(self, connection: Connection, *, reply_timeout: float) -> None:
        self._connection = connection
        self._reply_timeout = reply_timeout
        self._answered: str | None = None
        self._answered_at = 0.0

    async def acknowledge(self, status: StatusMessage, arrived_at: float | None = None) -> bool:
        """Answer, and return False if the server evidently does not hear us.

        Call it when the status is reached in the queue: what came before is by then
        with the user, and that is all the server may assume. `arrived_at` is the loop
        time at which the status came, where known.
        """
        subject = status.flow_control
        if subject is None:
            return True
        await self._connection.publish(subject)
        if subject != self._answered:
            # not before: a cancelled answer is given to the next reminder
            self._answered, self._answered_at = subject, asyncio.get_running_loop().time()
            return True
        return arrived_at is None or arrived_at < self._answered_at + self._reply_timeout
