"""Requests come in the order of their stream, each once, and are gone once they are handled."""

from pathlib import Path

import pytest

from rebaser_server.errors import HistoryInconsistent
from rebaser_server.processor.request_queue import RequestQueue
from tests.helpers.deployment import new_change_sets
from tests.helpers.simulated_nats import Nats, simulated


def test_requests_come_in_order_once_and_handled_ones_are_deleted(tmp_path: Path) -> None:
    """I4, W9: another change set's requests in between stay where they are."""
    own, other = new_change_sets(2)

    async def test(nats: Nats) -> None:
        for number in range(6):
            subject = nats.streams.requests(other if number % 2 else own)
            await nats.streams.js.publish(subject, b"%d" % number)

        async with RequestQueue(nats.streams, own) as queue:
            taken = [await queue.next(1) for _ in range(3)]
            for request in filter(None, taken[:2]):
                await queue.handled.add(request.stream_sequence)
            await queue.handled.wait()
            assert await queue.next(1) is None

        assert [request.payload for request in taken if request] == [b"0", b"2", b"4"]
        left = await nats.streams.js.stream_subjects(nats.streams.requests_stream)
        assert left == {nats.streams.requests(own): 1, nats.streams.requests(other): 3}

    simulated(tmp_path, test)


def test_without_a_consumer_the_next_request_wakes_the_queue(tmp_path: Path) -> None:
    [change_set] = new_change_sets(1)

    async def test(nats: Nats) -> None:
        async with RequestQueue(nats.streams, change_set, idle=0.5) as queue:
            assert await queue.next(3) is None
            await nats.streams.js.publish(nats.streams.requests(change_set), b"late")
            request = await queue.next(3)

        assert request is not None
        assert request.payload == b"late"

    simulated(tmp_path, test)


def test_a_stream_that_ends_before_what_was_handled_was_made_anew(tmp_path: Path) -> None:
    """S-5: new requests would count as settled."""
    [change_set] = new_change_sets(1)

    async def test(nats: Nats) -> None:
        queue = RequestQueue(nats.streams, change_set)
        await nats.streams.js.publish(nats.streams.requests(change_set), b"")
        await queue.require_sequence(1)
        with pytest.raises(HistoryInconsistent, match="made anew"):
            await queue.require_sequence(2)

    simulated(tmp_path, test)
