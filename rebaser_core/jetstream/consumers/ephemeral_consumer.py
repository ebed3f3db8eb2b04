"""The server's consumer behind an ordered reader: made under a name of its own, deleted after."""

from datetime import timedelta
from typing import Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.consumers.message_reader import best_effort
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo

DELETE_TIMEOUT: Final = 1.0  # seconds to delete a consumer; else it dies by itself


class EphemeralConsumer:
    """One at a time, each with a name that none before it had."""

    def __init__(
        self, js: JetStreamApi, stream: str, *, headers_only: bool, inactive_threshold: float
    ) -> None:
        """`inactive_threshold`: seconds that it lives without us."""
        self._js = js
        self._stream = stream
        self._config = ConsumerConfig(
            ack_policy="none",
            max_deliver=1,
            replay_policy="instant",
            headers_only=headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=timedelta(seconds=inactive_threshold),
        )
        self._undeleted: list[str] = []
        self.name: str | None = None

    async def create(self, name: str, config: ConsumerConfig) -> ConsumerInfo:
        """Have the server make it; what the server says of it.

        May be cancelled, or raise, and be there all the same.
        """
        self.name = name
        wanted = self._config | config | ConsumerConfig(name=name)
        return await self._js.create_consumer(self._stream, wanted)

    async def delete(self) -> None:
        """Delete the consumers that this object created.

        What cannot be deleted now is deleted next time: the server takes a client whose
        connection went deaf for a listener, and would keep its consumer for minutes.
        """
        if self.name:
            self._undeleted.append(self.name)
            self.name = None
        if self._js.connection.is_connected:
            async with best_effort(DELETE_TIMEOUT):
                while self._undeleted:
                    await self._js.delete_consumer(self._stream, self._undeleted[-1])
                    self._undeleted.pop()
