"""The requests of one change set: in order, each once, deleted by sequence when handled."""

from types import TracebackType
from typing import Self

from rebaser_client.publishing import persistently
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStream, OrderedConsumer
from rebaser_core.subjects import Subjects
from rebaser_server.errors import HistoryBroken

_DELETE_FOR = 20.0  # seconds in which an unanswered delete is tried again


class RequestQueue:
    """Reads through our own ordered consumer, whose consumer sequence has no gap.

    So what it hands out is the lowest request present behind the one before (I4),
    and no read per request is needed to know it (W6, made cheaper).
    """

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._stream = subjects.requests_stream
        self._subject = subjects.requests(change_set)
        self._consumer = OrderedConsumer(js, self._stream, self._subject)

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._consumer.close()

    async def next(self, quiet: float) -> Delivery | None:
        """The next request; None if none came for `quiet` seconds and the server has none.

        May be cancelled without losing anything.
        """
        return await self._consumer.next(quiet=quiet)

    async def delete(self, sequence: int) -> None:
        """Have a handled request gone (W9).

        Raises:
            Unreachable: it may be there still. It will be delivered again, and skipped.
        """
        await persistently(lambda: self._js.delete_message(self._stream, sequence), _DELETE_FOR)

    async def first(self, after: int = 0) -> int | None:
        """The lowest request behind sequence `after` that the stream's leader has (W12)."""
        message = await self._js.get_message(
            self._stream, sequence=after + 1, next_by_subject=self._subject
        )
        return None if message is None else message.sequence

    async def require_sequence(self, handled: int) -> None:
        """Raise `HistoryBroken` if the stream ends before what was handled already (S-5).

        New requests would then be taken for handled ones and deleted.
        """
        info = await self._js.stream_info(self._stream)
        last = info["state"]["last_seq"]
        if last < handled:
            raise HistoryBroken(
                f"{self._subject}: {handled} was handled, but {self._stream} ends at {last}; "
                "was the stream made anew? Recreate it with a first_seq above the former last one"
            )
