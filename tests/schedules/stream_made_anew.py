"""The requests' stream, deleted and made anew under clients that go on: what S-5 is for.

Sequences are given twice then. A change set that has handled them already refuses what has come,
which stays where it is; nothing of it may pass for handled.
"""

import random
from contextlib import suppress
from typing import Final

from rebaser_client import ClientError, RebaserClient
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from tests.chaos.history import Kind
from tests.schedules.broker import Broker
from tests.schedules.example_batches import Sheet
from tests.schedules.record import Record
from tests.schedules.stream import Stream

LOOKED_AT_WITHIN: Final = 30.0
"""Virtual seconds in which Rebasers have looked at all that came."""

_BEYOND: Final = 3
"""Requests that come, at most, once the stream is as long as before."""


class StreamMadeAnew:
    """One that an operator deleted by mistake, and what clients store in it."""

    def __init__(
        self,
        broker: Broker,
        record: Record,
        sheets: dict[ChangeSet, Sheet],
        rng: random.Random,
    ) -> None:
        self._broker = broker
        self._record = record
        self._sheets = sheets
        self._random = rng
        self._sent: dict[int, RequestId] = {}
        self._name = Subjects().requests_stream
        self._former = self._stream.last_sequence
        self._make(0)
        record.foreseen.add("history broken")

    @property
    def _stream(self) -> Stream:
        return self._broker.streams[self._name]

    def _make(self, last: int) -> None:
        stream = self._stream
        for consumer in list(stream.consumers):
            self._broker.drop(stream, consumer)
        self._broker.streams[self._name] = Stream(stream.config)
        self._broker.streams[self._name].last_sequence = last
        self._record.note("requests' stream", "made anew, behind", last)

    async def ask(self, js: JetStream) -> None:
        """Store requests for each change set, up to some more than there were."""
        async with RebaserClient.on(js.nc, js) as client:
            for _ in range(self._random.randint(1, self._former + _BEYOND)):
                change_set, sheet = self._random.choice(list(self._sheets.items()))
                request_id, batch = RequestId(), sheet.batch(self._random)
                with suppress(ClientError):
                    await client.enqueue_updates(*change_set, batch, request_id=request_id)
                    self._sent[self._stream.last_sequence] = request_id

    def judge(self) -> None:
        """Each request that is gone took effect, or was refused for good, under its own id."""
        settled = {
            commit["settled"]["id"]
            for event in self._record.history.of(Kind.COMMIT)
            if (commit := event.data["commit"]).get("settled")
        }
        for sequence, request_id in self._sent.items():
            if sequence not in self._stream.messages and str(request_id) not in settled:
                self._record.violation(f"S1 {request_id}: {sequence} passed for handled (S-5)")

    def repair(self) -> None:
        """Make it once more, behind the sequences that were given, as the error advises."""
        self._make(self._former)
