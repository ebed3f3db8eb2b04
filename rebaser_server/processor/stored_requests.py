"""One change set's requests, as the leader of their stream has them."""

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, StoredMessage
from rebaser_core.subjects import Subjects
from rebaser_server.errors import HistoryInconsistent


class StoredRequests:
    """Looks at them; it takes none."""

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._stream = subjects.requests_stream
        self._subject = subjects.requests(change_set)

    async def lowest_sequence(self, after: int = 0) -> int | None:
        """Return the lowest request's sequence after `after`, as the leader has it (S-4, W12)."""
        message = await self.lowest(after)
        return None if message is None else message.sequence

    async def lowest(self, after: int = 0) -> StoredMessage | None:
        """Return the lowest request after sequence `after`, as the leader has it."""
        return await self._js.get_message(
            self._stream, sequence=after + 1, next_by_subject=self._subject
        )

    async def require_sequence(self, handled: int) -> None:
        """Raise `HistoryInconsistent` if the stream ends before the last settled request (S-5).

        New requests would otherwise count as settled, and be deleted.
        """
        last = (await self._js.stream_info(self._stream)).state.last_seq
        if last < handled:
            raise HistoryInconsistent(
                f"{self._subject}: {handled} was handled, but {self._stream} ends at {last}; "
                "was the stream made anew? Recreate it with a first_seq above the former last one"
            )
